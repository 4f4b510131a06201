"""Where things are in a state: the one place that knows.

A state is what a run carries from round to round: θ^AGG, the noise with its secret
seed, and the server's step. There are two containers for it: `State`, a dict, and the
`LearningAlgorithmState` of TFF's learning processes. All others ask here.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict, TypeVar

import numpy as np

from tff_agg import backends, structure
from tff_agg.aliases import Structure
from tff_agg.noise import seeds
from tff_agg.noise.mechanism import State as NoiseState
from tff_agg.server import step as steps

#: Either container.
AnyState = TypeVar("AnyState")


class State(TypedDict):
    """A state as a dict, for JAX, numpy and loops of your own.

    Attributes:
      aggregate: θ^AGG_t.
      noise: The state of the noisy mean, which owns the round.
      server: The state of the server's step.
    """

    aggregate: Any
    noise: NoiseState
    server: steps.State


class _Parts(NamedTuple):
    """A state's parts, from whichever container."""

    aggregate: Any
    noise: Any
    server: Any


def _is_tff(state: Any) -> bool:
    return hasattr(state, "global_model_weights")


def _parts(state: Any) -> _Parts:
    if _is_tff(state):
        weights = state.global_model_weights.trainable
        return _Parts(weights, state.aggregator, state.finalizer)
    return _Parts(state["aggregate"], state["noise"], state["server"])


def replaced(state: AnyState, **parts: Any) -> AnyState:
    """Returns a state with other parts: `aggregate`, `noise` or `server`.

    Example:
      replaced(state, noise=noise, server=server)
    """
    held: Any = state
    if not _is_tff(held):
        changed: Any = {**held, **parts}
        return changed
    names = {"noise": "aggregator", "server": "finalizer"}
    given = {names[name]: part for name, part in parts.items() if name in names}
    if "aggregate" in parts:
        weights = held.global_model_weights
        kind = type(weights)
        aggregate = parts["aggregate"]
        given["global_model_weights"] = kind(aggregate, weights.non_trainable)
    return held._replace(**given)


def aggregate(state: Any) -> Any:
    """Returns θ^AGG_t, the weights that updates are computed at."""
    return _parts(state).aggregate


def iterate(state: Any) -> Any:
    """Returns θ_t, the weights that the server stepped to."""
    return _parts(state).server["iterate"]


def averager(state: Any) -> Structure:
    """Returns the averager's state."""
    return _parts(state).server["averager"]


def noise(state: Any) -> NoiseState:
    """Returns the state of the noisy mean. Its seed and buffers are secret."""
    return _parts(state).noise


def server(state: Any) -> steps.State:
    """Returns the state of the server's step."""
    return _parts(state).server


def round_of(state: Any) -> Any:
    """Returns how many rounds are done, as the noisy mean counts them."""
    return _parts(state).noise["round"]


def seed_of(state: Any) -> np.ndarray | None:
    """Returns the secret seed as int64 integers, None where there is no noise.

    Batches that are drawn by chance are drawn with it, too: the sampler keys its own
    stream by it.
    """
    seed = _parts(state).noise.get("seed")
    # JAX has the same bits in twice as many words.
    return None if seed is None else np.ascontiguousarray(seed).view(np.int64)


def without_noise(state: AnyState) -> AnyState:
    """Returns a state whose noise is forgotten: the seed and all buffers are zeros.

    For the last state of a run. It cannot go on, and nobody who reads it can take the
    noise off the models. The buffers are as secret as the seed: they are sums of the
    very noise that was added.

    Example:
      seed_of(without_noise(state))  # array([0, 0])
    """
    kept = _parts(state).noise

    def zeros(leaf: Any) -> np.ndarray:
        return np.zeros_like(np.asarray(leaf))

    hidden = {
        name: structure.map_leaves(zeros, kept[name])
        for name in ("seed", "buffers")
        if name in kept
    }
    return replaced(state, noise=_with(kept, hidden)) if hidden else state


def with_noise_seed(state: AnyState, seed: Sequence[int]) -> AnyState:
    """Returns a fresh state with another seed for its noise.

    Args:
      state: A state before its first round.
      seed: Integers of 64 bits, as many as the state's seed has. Whoever knows them can
        take the noise off again.

    Raises:
      ValueError: The seed is not made of such integers, the run has begun (its noise is
        correlated over rounds and must go on with its seed), or the state belongs to a
        process without noise.

    Example:
      state = with_noise_seed(process.initialize(), seed=(1, 2))
    """
    kept = _parts(state).noise
    if "seed" not in kept:
        raise ValueError("state belongs to a process without noise: it has no seed")
    if (played := int(kept["round"])) != 0:
        raise ValueError(
            f"the noise seed can be set before the first round only; state is after "
            f"{played} rounds"
        )
    old = kept["seed"]
    new = seeds.seed_in(backends.of(old), seed)
    if not structure.shapes_agree(old, new):
        raise ValueError(
            f"the state's seed has {np.size(np.asarray(seed_of(state)))} integers of "
            f"64 bits; the one given has {np.size(seed)}"
        )
    return replaced(state, noise=_with(kept, {"seed": new}))


def at_weights(state: AnyState, step: steps.ServerStep, weights: Structure) -> AnyState:
    """Returns a state at other weights: θ_t and θ^AGG_t alike.

    The averager starts anew at them; round, noise and the optimiser's state stay.
    """
    fresh = step.init(weights)
    moved = {"averager": fresh["averager"], "iterate": weights}
    held = _with(_parts(state).server, moved)
    return replaced(state, aggregate=weights, server=held)


def _with(mapping: Any, changes: dict[str, Any]) -> Any:
    """Returns a mapping of the same kind and order with other values."""
    changed = type(mapping)(mapping)
    changed.update(changes)
    return changed
