"""From the rounds' means to the directions of the server's steps."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tff_agg import backends, checks, structure
from tff_agg.aliases import Array, Json, Scalar, Structure
from tff_agg.backends import Backend
from tff_agg.structure import Form


class Optimiser(NamedTuple):
    """From the rounds' means to the directions of the server's steps.

    Attributes:
      init: `init(θ_0) -> state`.
      next: `next(state, mean, round) -> (state, direction)`, the learning rate left
        out. `round` counts from 0.
      linear: Whether directions are linear in the means, as they are with momentum.
      parameters: What identifies it, as JSON values.
    """

    init: Callable[[Structure], Structure]
    next: Callable[[Any, Any, Scalar], tuple[Structure, Any]]
    linear: bool
    parameters: Mapping[str, Json]


def momentum(decay: float = 0.0, nesterov: bool = False) -> Optimiser:
    """Returns gradient descent with momentum; plain with a decay of 0.

    Args:
      decay: What is left of the momentum after a round, in [0, 1).
      nesterov: Whether the step looks ahead along the momentum.

    Example:
      >>> optimiser = momentum(0.5)
      >>> state, direction = optimiser.next(np.ones(1), np.ones(1), 0)
      >>> direction
      array([1.5])
    """
    checks.number("the server's momentum", decay, "[0, 1)")
    if nesterov and not decay:
        raise ValueError("nesterov=True needs a momentum above 0, got 0")

    def rolled(old: Any, new: Any) -> Any:
        return backends.combine(backends.of(new), [(float(decay), old), (1.0, new)])

    def next_(buffer: Any, mean: Any, round: Scalar) -> tuple[Structure, Any]:
        if not decay:
            return (), mean
        ahead = rolled(buffer, mean)
        return ahead, rolled(ahead, mean) if nesterov else ahead

    return Optimiser(
        _zeros if decay else lambda theta: (),
        next_,
        True,
        {"momentum": decay, "nesterov": nesterov},
    )


def adam(beta_1: float = 0.9, beta_2: float = 0.99, epsilon: float = 1e-3) -> Optimiser:
    """Returns Adam: momentum over the root of the squares' moving average.

    Args:
      beta_1: What is left of the momentum after a round, in [0, 1).
      beta_2: What is left of the average of squares, in [0, 1).
      epsilon: Is added to the root. The smaller, the more weights are moved that have
        hardly anything but noise.
    """
    return _moments("adam", beta_1, beta_2, epsilon, _averaged_squares)


def yogi(beta_1: float = 0.9, beta_2: float = 0.99, epsilon: float = 1e-3) -> Optimiser:
    """Returns Yogi: Adam whose average of squares changes by no more than a square.

    Args: As `adam`.
    """
    return _moments("yogi", beta_1, beta_2, epsilon, _towards_squares)


def adagrad(epsilon: float = 1e-3) -> Optimiser:
    """Returns AdaGrad: over the root of the sum of all squares so far.

    Args:
      epsilon: Is added to the sum.
    """
    checks.number("adagrad's epsilon", epsilon, "(0, inf)")

    def next_(sums: Any, mean: Any, round: Scalar) -> tuple[Structure, Any]:
        backend = backends.of(mean)
        sums = _map(lambda s, g: s + g * g, sums, mean)
        return sums, _map(lambda g, s: g / backend.sqrt(s + epsilon), mean, sums)

    return Optimiser(_zeros, next_, False, {"name": "adagrad", "epsilon": epsilon})


def keeping_means(optimiser: Optimiser) -> Optimiser:
    """Returns an optimiser whose state also has the last round's mean, as 'mean'.

    For the audit: what is released by a step that is not linear says less of the means
    than they say themselves.

    Example:
      >>> kept = keeping_means(adam())
      >>> state, _ = kept.next(kept.init(np.zeros(1)), np.ones(1), 0)
      >>> state['mean']
      array([1.])
    """

    def next_(state: Any, mean: Any, round: Scalar) -> tuple[Structure, Any]:
        inner, direction = optimiser.next(state["state"], mean, round)
        return {"mean": mean, "state": inner}, direction

    return optimiser._replace(
        init=lambda theta: {"mean": _zeros(theta), "state": optimiser.init(theta)},
        next=next_,
    )


def _moments(
    name: str,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    squares: Callable[[Backend, float, Array, Array], Array],
) -> Optimiser:
    """Returns an optimiser with a momentum and an estimate of the squares."""
    checks.number(f"{name}'s beta_1", beta_1, "[0, 1)")
    checks.number(f"{name}'s beta_2", beta_2, "[0, 1)")
    checks.number(f"{name}'s epsilon", epsilon, "(0, inf)")

    def init(theta: Structure) -> Structure:
        return {"momentum": _zeros(theta), "squares": _zeros(theta)}

    def next_(state: Any, mean: Any, round: Scalar) -> tuple[Structure, Any]:
        backend = backends.of(mean)
        rolled = _map(lambda m, g: m + (1 - beta_1) * (g - m), state["momentum"], mean)
        second = _map(
            lambda v, g: squares(backend, beta_2, v, g), state["squares"], mean
        )
        # Both averages began at zero.
        first_share = _share_seen(backend, beta_1, round)
        second_share = _share_seen(backend, beta_2, round)
        factor = backend.sqrt(second_share) / first_share

        def direction(m: Array, v: Array) -> Array:
            scale = backend.cast(factor, structure.dtype_of(m))
            return scale * m / (backend.sqrt(v) + epsilon)

        after = {"momentum": rolled, "squares": second}
        return after, _map(direction, rolled, second)

    parameters: dict[str, Json] = {
        "name": name, "beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon,
    }  # fmt: skip
    return Optimiser(init, next_, False, parameters)


def _averaged_squares(backend: Backend, beta: float, v: Array, g: Array) -> Array:
    return v + (1 - beta) * (g * g - v)


def _towards_squares(backend: Backend, beta: float, v: Array, g: Array) -> Array:
    squares = g * g
    down = backend.where(squares < v, -squares, 0 * squares)
    return v + (1 - beta) * backend.where(squares > v, squares, down)


def _share_seen(backend: Backend, beta: float, round: Scalar) -> Array:
    """Returns 1 − βᵗ after t rounds, the round counted from 0 included."""
    rounds = backend.cast(round + 1, np.float32)
    return 1 - backend.exp(rounds * math.log(beta)) if beta else 0 * rounds + 1


def _zeros(theta: Structure) -> Structure:
    return structure.map_leaves(backends.of(theta).zeros, theta)


def _map(fn: Callable[..., Array], first: Form, *others: Structure) -> Form:
    """Maps leaves; the results have the dtypes of the first structure's."""
    backend = backends.of(first)

    def cast(leaf: Array, *rest: Array) -> Array:
        return backend.cast(fn(leaf, *rest), structure.dtype_of(leaf))

    return structure.map_leaves(cast, first, *others)
