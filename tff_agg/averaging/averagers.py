"""Averagers: the checkpoint aggregation function f_AGG as a pair of pure functions.

An averager turns the checkpoints θ_0, θ_1, … of a training run into aggregates
θ^AGG_0, θ^AGG_1, …, one step at a time. The same object runs inside the server's
computation (training aggregation), over stored checkpoints (inference aggregation)
and in JAX training loops: it works on nested structures of numpy arrays, TensorFlow
tensors (eager or in a graph) and JAX arrays alike. Averaging is post-processing of
what the private training has released already, so it costs no privacy.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from tff_agg import backends, checks, structure
from tff_agg.aliases import Array, JsonObject, Scalar, Structure
from tff_agg.averaging import windows
from tff_agg.structure import Form

#: Every averager has a state of its own kind; only its own `next` looks inside.
State = Any


class Next(Protocol):
    """The step of an averager: its aggregate has the form of the checkpoint."""

    def __call__(self, state: State, theta: Form, /) -> tuple[State, Form]:
        """Returns the state after θ_t, and θ^AGG_t."""


class Averager(NamedTuple):
    """A checkpoint aggregation function, as two pure functions over structures.

    Attributes:
      init: `init(θ_0) -> state`. The aggregate of θ_0 alone is θ_0.
      next: `next(state, θ_t) -> (state, θ^AGG_t)`, for t = 1, 2, ….
      weights: `weights(t)` gives the t + 1 weights with which θ_0 … θ_t enter
        θ^AGG_t: non-negative and summing to one. None where an averager of your own
        is not a fixed convex combination.
      name: What reports call it.

    The state is a nested structure of arrays whose shapes and dtypes never change, so
    that it can be part of a compiled computation's state and be saved and restored.

    Any f_AGG of your own is an `Averager` too. The mean of the newest checkpoint and
    the one before it:

      >>> import numpy as np
      >>> def of_two(previous, current):
      ...     mean = structure.map_leaves(lambda a, b: (a + b) / 2, previous, current)
      ...     return current, mean
      >>> mine = Averager(init=lambda theta: theta, next=of_two, name='mean of two')
      >>> state = mine.init({'w': np.float32(0)})
      >>> state, aggregate = mine.next(state, {'w': np.float32(4)})
      >>> float(aggregate['w'])
      2.0
    """

    init: Callable[[Structure], State]
    next: Next
    weights: Callable[[int], np.ndarray] | None = None
    name: str = "own"

    def to_json(self) -> JsonObject:
        """Returns its name, which rounds its numbers, and weights, which do not."""
        weights = None if self.weights is None else self.weights(20).tolist()
        return {"name": self.name, "weights_of_20_steps": weights}


def last() -> Averager:
    """Returns the averager that keeps the newest checkpoint: plain training.

    Example:
      >>> last().weights(3).tolist()
      [0.0, 0.0, 0.0, 1.0]
    """
    return Averager(
        init=lambda theta: (),
        next=lambda state, theta: (state, theta),
        weights=_unit,
        name="last",
    )


def uta(k: int) -> Averager:
    """Returns uniform tail averaging: the mean of the last min(t + 1, k) checkpoints.

    The initial model counts as a checkpoint. The state holds the last k checkpoints,
    and every step adds them up anew: a step costs k − 1 additions, no rounding error
    piles up over a long run, and a checkpoint with NaN or infinite values spoils the
    mean only while it is in the window. To average hundreds of stored checkpoints, see
    `tff_agg.recycling.windows.tail_means`, which keeps one sum and no window.

    Args:
      k: How many checkpoints to average, at least 1.

    Example:
      >>> uta(2).weights(3).tolist()
      [0.0, 0.0, 0.5, 0.5]
    """
    k = checks.whole("k", k)

    def weights(t: int) -> np.ndarray:
        checks.whole("t", t, least=0)
        count = min(t + 1, k)
        out = np.zeros(t + 1)
        out[t + 1 - count :] = 1.0 / count
        return out

    init, next_ = windows.tail_mean(k)
    return Averager(init, next_, weights, f"uta(k={k})")


def ema(
    *,
    weight: float | None = None,
    decay: float | None = None,
    warm_up: bool = False,
) -> Averager:
    """Returns the exponential moving average, with β on either side of it.

    Give exactly one of `weight` and `decay`: it says what β is the weight of. Without
    a warm-up they say the same with `weight = 1 - decay`. The warm-up is the paper's
    schedule β_t = min(β, (1 + t) / (10 + t)), for the β that is given, and does the
    opposite in the two: under `decay` the initial model is soon forgotten, under
    `weight`, which is the paper's equation to the letter, it is left slowly.

    Args:
      weight: The weight of the newest checkpoint, in (0, 1].
      decay: The weight of the old average, in [0, 1).
      warm_up: Whether what is given is at most (1 + t) / (10 + t) at step t.

    Example:
      >>> ema(weight=0.25).weights(2).tolist()
      [0.5625, 0.1875, 0.25]
      >>> ema(decay=0.75).weights(2).tolist()
      [0.5625, 0.1875, 0.25]
      >>> ema(weight=0.95, warm_up=True).weights(1).round(3).tolist()  # β_1 = 2 / 11
      [0.818, 0.182]
      >>> ema(decay=0.95, warm_up=True).weights(1).round(3).tolist()
      [0.182, 0.818]
    """
    if (weight is None) == (decay is None):
        raise ValueError(
            "ema takes exactly one of weight= (of the newest checkpoint) and decay= "
            f"(of the old average); got weight={weight!r} and decay={decay!r}"
        )
    on_newest = weight is not None
    side, beta = ("weight", weight) if on_newest else ("decay", decay)
    largest = checks.number(side, beta, "(0, 1]" if on_newest else "[0, 1)")
    name = f"ema({side}={largest:g}"

    def newest_weight(t: Scalar) -> Scalar:
        if warm_up:
            beta_t = backends.of(t).minimum(largest, (1.0 + t) / (10.0 + t))
        else:
            beta_t = largest + 0.0 * t
        return beta_t if on_newest else 1.0 - beta_t

    return _moving(newest_weight, name + (", warm_up)" if warm_up else ")"))


def pda(gamma: float) -> Averager:
    """Returns polynomial-decay averaging with parameter γ ≥ 0.

    The t-th of the checkpoints (counting the initial model as the first) enters with
    weight (γ + 1) / (t + γ). γ = 0 is the mean of all checkpoints so far; a larger γ
    puts more weight on later ones.

    Args:
      gamma: γ, a finite number that is not negative.

    Example:
      >>> pda(0).weights(3).tolist()
      [0.25, 0.25, 0.25, 0.25]
    """
    gamma = checks.number("gamma", gamma, "[0, inf)")

    def newest_weight(t: Scalar) -> Scalar:
        # `t` counts from 0 here and from 1 in the formula.
        return (gamma + 1.0) / (t + 1.0 + gamma)

    return _moving(newest_weight, f"pda(gamma={gamma:g})")


def schedule_free(beta: float = 0.9, gamma: float = 8.0) -> Averager:
    """Returns the broadcast of schedule-free training: between iterate and average.

    The aggregate is β · average + (1 − β) · newest checkpoint, where the average is
    that of `pda(gamma)`. It is meant for `step_from='iterate'` without server momentum:
    gradients are taken near the long average, while the iterate steps on by itself.
    The average takes the part of a decaying learning rate and β that of momentum
    (Defazio et al., "The Road Less Scheduled", 2024). With `step_from='aggregate'` the
    iterate would be pulled back to its own past, which is another method.

    The closed form: with p_i the weights of `pda(gamma)`, checkpoint i has the weight
    β · p_i, and the newest one 1 − β in addition.

    Args:
      beta: β, the share of the average, in [0, 1]. 0 is `last()`, 1 is `pda(gamma)`.
      gamma: γ of the average, a finite number that is not negative.

    Example:
      >>> schedule_free(beta=0.5, gamma=0).weights(3).tolist()
      [0.125, 0.125, 0.125, 0.625]
    """
    beta = checks.number("beta", beta, "[0, 1]")
    running = pda(gamma)
    assert running.weights is not None
    average_weights = running.weights

    def next_(state: State, theta: Form) -> tuple[State, Form]:
        state, average = running.next(state, theta)

        def between(mean: Array, newest: Array) -> Array:
            dtype = structure.dtype_of(mean)
            share, rest = np.array([beta, 1.0 - beta]).astype(dtype)
            return mean * share + newest * rest

        return state, structure.map_leaves(between, average, theta)

    def weights(t: int) -> np.ndarray:
        return beta * average_weights(t) + (1.0 - beta) * _unit(t)

    return Averager(
        running.init, next_, weights, f"schedule_free(beta={beta:g}, gamma={gamma:g})"
    )


def starting_at(tau: int, averager: Averager) -> Averager:
    """Returns `averager`, whose aggregate is used only from step τ on.

    Before step τ the aggregate is the checkpoint itself. The averager sees every
    checkpoint all along: from τ on, its aggregate is over all of θ_0 … θ_t, just as
    if there had been no τ.

    Args:
      tau: The first step whose aggregate is used, at least 0.
      averager: The averager to use from then on.

    Example:
      >>> starting_at(2, pda(0)).weights(1).tolist()
      [0.0, 1.0]
      >>> starting_at(2, pda(0)).weights(2).round(3).tolist()
      [0.333, 0.333, 0.333]
    """
    tau = checks.whole("tau", tau, least=0)

    def init(theta: Structure) -> State:
        return {"step": windows.counter(theta), "inner": averager.init(theta)}

    def next_(state: State, theta: Form) -> tuple[State, Form]:
        step = state["step"] + 1
        inner, aggregate = averager.next(state["inner"], theta)
        used = backends.of(step).cond(step >= tau, lambda: aggregate, lambda: theta)
        return {"step": step, "inner": inner}, used

    weights = None
    if (inner_weights := averager.weights) is not None:

        def weights(t: int) -> np.ndarray:
            return _unit(t) if t < tau else inner_weights(t)

    return Averager(init, next_, weights, f"{averager.name} from step {tau}")


def fold(averager: Averager, checkpoints: Iterable[Form]) -> Iterator[Form]:
    """Yields θ^AGG_0, θ^AGG_1, … for the checkpoints θ_0, θ_1, … of an iterable.

    Example:
      >>> [float(x) for x in fold(uta(2), [np.float32(v) for v in (1, 3, 5)])]
      [1.0, 2.0, 4.0]
    """
    state: Any = None
    for t, theta in enumerate(checkpoints):
        if t == 0:
            state, aggregate = averager.init(theta), theta
        else:
            state, aggregate = averager.next(state, theta)
        yield aggregate


def _moving(newest_weight: Callable[[Scalar], Scalar], name: str) -> Averager:
    """The averager a_t = (1 - w_t) a_{t-1} + w_t θ_t with w_t = newest_weight(t)."""

    def init(theta: Structure) -> State:
        windows.check_floating(theta)
        return {"step": windows.counter(theta), "average": theta}

    def next_(state: State, theta: Form) -> tuple[State, Form]:
        structure.check_alike(
            theta, state["average"], "checkpoint", "the ones before have"
        )
        step = state["step"] + 1
        library = backends.of(step)
        weight = newest_weight(library.cast(step, np.float64))

        def blend(old: Array, new: Array) -> Array:
            dtype = structure.dtype_of(old)
            # Both factors are rounded from the same double: rounding 1 - w after w
            # had been rounded would lose the small weights of a long memory.
            rest, share = library.cast(1.0 - weight, dtype), library.cast(weight, dtype)
            return old * rest + new * share

        average = structure.map_leaves(blend, state["average"], theta)
        return {"step": step, "average": average}, average

    def weights(t: int) -> np.ndarray:
        checks.whole("t", t, least=0)
        out = np.zeros(t + 1)
        out[0] = 1.0
        for i in range(1, t + 1):
            weight = float(newest_weight(np.float64(i)))
            out[:i] *= 1.0 - weight
            out[i] = weight
        return out

    return Averager(init, next_, weights, name)


def _unit(t: int) -> np.ndarray:
    checks.whole("t", t, least=0)
    out = np.zeros(t + 1)
    out[t] = 1.0
    return out
