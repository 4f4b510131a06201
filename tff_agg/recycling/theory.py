"""What theory says of checkpoints instead of runs: how long to wait, how many to take.

The bounds are for strongly convex losses; for a neural network they are a guide at
most. In the paper the times of `mixing` are κ_1 and κ_2: the least t_1 and γ.
"""

import math
from typing import NamedTuple

from tff_agg import checks


class Mixing(NamedTuple):
    """How long noise takes to do away with where it began, by Theorem 5.1.

    Attributes:
      burn_in: κ_1, from the initial model to the first checkpoint.
      separation: κ_2, from one checkpoint to the next.
    """

    burn_in: float
    separation: float


def mixing(
    smoothness: float,
    dimension: int,
    start_distance: float,
    bias: float,
    constant: float = 1.0,
) -> Mixing:
    """Returns κ_1 and κ_2, after which the estimate's bias is of the order of `bias`.

    Time is the sum of the learning rates, for a 1-strongly convex loss and noise with
    σ = 1; a neural network's loss is not convex, and for it they are a rough guide.

        κ_1 = 1/(2M) + ln(c M (‖θ_0 − θ*‖² + p ln M)) + c ln(1/Δ)
        κ_2 = 1/(2M) + ln(c M (ln(1/Δ) + p ln M)) + c ln(1/Δ)

    A poor start makes κ_1 long, and not κ_2: that is where checkpoints gain on runs.

    Args:
      smoothness: M, at least 1.
      dimension: p, the number of parameters.
      start_distance: ‖θ_0 − θ*‖.
      bias: Δ, in (0, 1).
      constant: c, of which the theorem says that it is large enough.

    Example:
      >>> near, far = (mixing(10.0, 100, distance, 0.01) for distance in (1.0, 1e6))
      >>> round(far.burn_in - near.burn_in, 1), far.separation == near.separation
      (22.2, True)
    """
    if not smoothness >= 1 or dimension < 1 or not 0 < bias < 1 or not constant > 0:
        raise ValueError(
            f"smoothness={smoothness} and dimension={dimension} must be at least 1, "
            f"bias={bias} in (0, 1), constant={constant} positive"
        )
    spread = dimension * math.log(smoothness)
    both = 1 / (2 * smoothness) + constant * math.log(1 / bias)

    def after(distance2: float) -> float:
        inside = constant * smoothness * (distance2 + spread)
        return both + math.log(inside) if inside > 0 else both

    return Mixing(after(start_distance**2), after(math.log(1 / bias)))


class Samples(NamedTuple):
    """How many samples of a prediction T rounds of one privacy budget give.

    Attributes:
      checkpoints: 1 + (T − t_1)/γ, from one run.
      runs: T/t_1, from independent runs that are stopped at t_1.
    """

    checkpoints: int
    runs: int


def samples(total: int, burn_in: int, separation: int) -> Samples:
    """Counts the samples of one run's checkpoints, and of runs that share its rounds.

    Args:
      total: T, the rounds that the budget allows.
      burn_in: t_1, the rounds of the shortest run that will do; at least 1.
      separation: γ.

    Example:
      >>> samples(1000, burn_in=500, separation=50)
      Samples(checkpoints=11, runs=2)
    """
    checks.whole("burn_in", burn_in, most=total)
    checks.whole("separation", separation)
    return Samples(1 + (total - burn_in) // separation, total // burn_in)


class CheckpointCount(NamedTuple):
    """The number of checkpoints that the bound on the error suggests.

    Attributes:
      checkpoints: The number to use, at least 2.
      exact: The number before rounding.
      bound: The bound on the mean squared error at that number.
    """

    checkpoints: int
    exact: float
    bound: float


def suggested_count(total: float, c1: float, c2: float) -> CheckpointCount:
    """Suggests how many evenly spaced checkpoints of a run of length T to use.

    Minimises the bound 1/k + 3 exp(−(T/k − c1) / c2) on the mean squared error of the
    sample variance: k = T / (c1 + c2 ln(3T / c2)), rounded to an integer above one.

    Args:
      total: T, in the same unit as c1 and c2.
      c1: The time that mixing needs to begin (1/(2M) + ln(c2 M (p + ‖θ_0 − θ*‖²)) for a
        1-strongly convex, M-smooth loss in p dimensions).
      c2: The time in which what is left of the bias falls by a factor of e.

    Raises:
      ValueError: T < 2 c1, where the bound says nothing for any number of checkpoints,
        or 3T ≤ c2, where the formula would leave T/k > c1.

    Example:
      >>> suggested_count(2000, c1=100, c2=10).checkpoints
      12
    """
    checks.number("c1", c1, "(0, inf)")
    checks.number("c2", c2, "(0, inf)")
    if total < 2 * c1:
        raise ValueError(
            f"total={total} must be at least 2·c1={2 * c1}: below that the bound holds "
            "for no number of checkpoints, and the suggestion would mean nothing."
        )
    if 3 * total <= c2:
        raise ValueError(f"total={total} must be above c2/3={c2 / 3:g}.")
    exact = total / (c1 + c2 * math.log(3 * total / c2))
    count = max(2, round(exact))
    bound = 1 / count + 3 * math.exp(-(total / count - c1) / c2)
    return CheckpointCount(count, exact, bound)
