"""Steps on batches that Poisson sampling has drawn: their ε, by dp_accounting.

Every step takes each example with its probability, independently of all else, and adds
Gaussian noise to the sum of the clipped gradients. Neighbours differ by one example
that is added or removed. The figures are false for batches made in any other way.
"""

import collections
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tff_agg import checks

# A grid of 1e-5 changes the sixth digit at most where ε > 0.4, at ten times the cost.
_GRID = 1e-4


class Sampled(NamedTuple):
    """Some steps that are alike.

    Attributes:
      noise_multiplier: Standard deviation of a step's noise over the clip norm.
      probability: The chance of an example to be in a step's batch.
      steps: How many.
    """

    noise_multiplier: float
    probability: float
    steps: int


Steps = tuple[Sampled, ...]
# The chance of an example to be in a step's batch: always the same, or step by step.
Chance = float | tuple[float, ...]


def steps_of(noise_multiplier: float, chance: Chance, steps: int) -> Steps:
    """Returns the first `steps` steps, those together that are alike.

    Example:
      >>> [tuple(part) for part in steps_of(2.0, (0.1, 0.0, 0.3, 0.1), 4)]
      [(2.0, 0.1, 2), (2.0, 0.3, 1)]
    """
    sigma = checks.noise_multiplier(noise_multiplier)
    check_sampling(chance, steps)
    if not isinstance(chance, tuple):
        return (Sampled(sigma, float(chance), int(steps)),)
    times = collections.Counter(p for p in chance[:steps] if p)
    return tuple(Sampled(sigma, p, n) for p, n in sorted(times.items()))


@functools.lru_cache
def tight(steps: Steps, mu: float, delta: float) -> float:
    """Returns the ε at δ of steps and a Gaussian mechanism, off a fine grid.

    Example:
      >>> round(tight(steps_of(3.0, 4096 / 50_000, 3068), 0.0, 1e-5), 2)
      7.42
    """
    accountant = _accountant("pld")
    accountant.compose(_event(steps, mu))
    return float(accountant.get_epsilon(delta))


def by_renyi(steps: Steps, rho: float, delta: float) -> float:
    """Returns the ε at δ of steps and of what is ρ-zCDP, by Rényi accounting.

    Example:
      >>> round(by_renyi(steps_of(3.0, 0.08, 875), 0.0, 1e-5), 1)
      3.8
    """
    from dp_accounting import rdp

    # A finer grid of orders is slow for sampled events: the library's own.
    orders = _orders()
    total = rho * np.asarray(orders) + renyi(steps, orders)
    return float(rdp.compute_epsilon(orders, total, delta)[0]) if total.any() else 0.0


@functools.cache
def _orders() -> tuple[float, ...]:
    from dp_accounting import rdp

    return tuple(rdp.RdpAccountant().orders)


def renyi(steps: Steps, orders: tuple[float, ...]) -> np.ndarray:
    """Returns bounds of the Rényi divergence of all steps together."""
    total = np.zeros(len(orders))
    for sigma, probability, times in steps:
        total += times * _divergences(sigma, probability, orders)
    return total


@functools.cache
def _divergences(
    sigma: float, probability: float, orders: tuple[float, ...]
) -> np.ndarray:
    """Returns the divergences of one step, which a run asks for again and again."""
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(list(orders))
    accountant.compose(_event((Sampled(sigma, probability, 1),)))
    return np.asarray(accountant.rdp)


@functools.lru_cache
def noise_for(
    epsilon: float, chance: Chance, steps: int, delta: float, mu: float = 0.0
) -> float:
    """Finds the least noise multiplier whose ε is not above the one asked for.

    Args:
      epsilon: The ε to reach, together with a Gaussian mechanism.
      chance: The chance of an example to be in a step's batch.
      steps: How many steps.
      delta: δ.
      mu: Of the Gaussian mechanism.

    Example:
      >>> round(noise_for(1.0, 4096 / 50_000, 568, 1e-5), 2)
      7.38
    """
    checks.epsilon(epsilon)
    checks.delta(delta)
    check_sampling(chance, steps)
    import dp_accounting as dp

    def event(sigma: float) -> Any:
        return _event(steps_of(sigma, chance, steps), mu)

    def epsilon_of(sigma: float) -> float:
        return tight(steps_of(sigma, chance, steps), mu, delta)

    # Rényi accounting is fast at any noise and nearly always the safe side of PLD,
    # whose cost grows without bound as the noise falls: it gives PLD its bracket.
    start = dp.LowerEndpointAndGuess(1e-2, 1.0)
    high = _calibrate("rdp", event, epsilon, delta, start)
    while epsilon_of(high) > epsilon:
        high *= 1.2
    low = 0.85 * high
    while epsilon_of(low) <= epsilon:
        high, low = low, 0.85 * low
    bracket = dp.ExplicitBracketInterval(low, high)
    return _calibrate("pld", event, epsilon, delta, bracket)


def steps_for(
    epsilon: float,
    noise_multiplier: float,
    probability: float,
    delta: float,
    mu: float = 0.0,
) -> int:
    """Finds the most steps whose ε is not above the one asked for.

    Raises:
      ValueError: One step alone exceeds ε.

    Example:
      >>> steps_for(1.0, 8.0, 4096 / 50_000, 1e-5)
      669
    """
    checks.epsilon(epsilon)
    sigma = checks.noise_multiplier(noise_multiplier)
    one = steps_of(sigma, probability, 1)
    first = tight(one, mu, delta) if sigma else float("inf")
    if first > epsilon:
        raise ValueError(
            f"noise_multiplier={noise_multiplier} allows no step at epsilon={epsilon}: "
            f"one step alone has epsilon={first:.6g} at delta={delta}"
        )
    import dp_accounting as dp

    def event(steps: int) -> Any:
        return _event(steps_of(sigma, probability, steps), mu)

    start = dp.LowerEndpointAndGuess(1, 2)
    return int(_calibrate("pld", event, epsilon, delta, start, discrete=True))


def check_sampling(chance: Chance, steps: int) -> None:
    """Refuses what is no probability of sampling, or no number of steps."""
    checks.whole("steps", steps)
    if isinstance(chance, tuple):
        if len(chance) < steps or not all(0 <= p <= 1 for p in chance):
            raise ValueError(
                f"the chances of sampling must be a number in [0, 1] for each of the "
                f"{steps} steps, got {len(chance)}"
            )
    else:
        checks.number("the chance of sampling", chance, "(0, 1]")


def _calibrate(
    method: str,
    event: Callable[[Any], Any],
    epsilon: float,
    delta: float,
    bracket: Any,
    discrete: bool = False,
) -> float:
    """Finds the parameter of an event that reaches ε, on the safe side."""
    import dp_accounting as dp
    from dp_accounting import mechanism_calibration

    try:
        return dp.calibrate_dp_mechanism(
            lambda: _accountant(method), event, epsilon, delta, bracket, discrete
        )
    except mechanism_calibration.NoBracketIntervalFoundError:
        sought = "number of steps" if discrete else "noise multiplier"
        raise ValueError(
            f"no {sought} was found whose epsilon is {epsilon} at delta={delta}"
        ) from None


def _event(steps: Steps, mu: float = 0.0) -> Any:
    """Returns dp_accounting's event; imported late, it takes a second."""
    import dp_accounting as dp

    parts = []
    for sigma, probability, times in steps:
        event = dp.PoissonSampledDpEvent(probability, dp.GaussianDpEvent(sigma))
        parts.append(dp.SelfComposedDpEvent(event, times))
    if mu:
        parts.append(dp.GaussianDpEvent(1 / mu))
    return parts[0] if len(parts) == 1 else dp.ComposedDpEvent(parts)


def _accountant(method: str) -> Any:
    """Returns a fresh accountant for one example added or removed."""
    from dp_accounting import pld, rdp

    if method == "rdp":
        return rdp.RdpAccountant()
    return pld.PLDAccountant(value_discretization_interval=_GRID)
