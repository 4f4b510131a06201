"""The guarantee of DP-SGD: noise on batches that Poisson sampling has drawn.

Every step takes each example with the same probability, independently of all else,
and adds Gaussian noise to the sum of the clipped gradients. Neighbours differ by one
example that is added or removed. All figures are dp_accounting's.
"""

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tff_agg.privacy import checks, guarantees

# The chance of an example to be in a step's batch: always the same, or step by step.
Chance = float | tuple[float, ...]


@functools.lru_cache
def dp_sgd_epsilon(
    noise_multiplier: float,
    sampling_probability: Chance,
    steps: int,
    delta: float,
    method: str = "pld",
) -> float:
    """Returns ε of DP-SGD with Poisson sampling, adding or removing one example.

    Args:
      noise_multiplier: Standard deviation of a step's noise over the clip norm.
      sampling_probability: The chance of each example to be in a step's batch. The
        figure is false for batches that are made in any other way. Where it changes
        from step to step: the chances of all steps, of which the first `steps` count.
      steps: How many steps.
      delta: δ.
      method: 'pld' (tight) or 'rdp'.

    Example:
      >>> round(dp_sgd_epsilon(3.0, 0.08, 875, 1e-5, method='rdp'), 1)
      3.8
    """
    sigma = checks.check_noise_multiplier(noise_multiplier)
    checks.check_delta(delta)
    guarantees.check_method(method)
    check_sampling(sampling_probability, steps)
    if sigma == 0:
        return float("inf")
    if method == "rdp":
        return _epsilon_by_renyi(sigma, sampling_probability, int(steps), delta)
    accountant = _accountant(method)
    accountant.compose(_event(sigma, sampling_probability, int(steps)))
    return float(accountant.get_epsilon(delta))


def _epsilon_by_renyi(sigma: float, chance: Chance, steps: int, delta: float) -> float:
    """Adds up divergences that are computed once for each chance."""
    from dp_accounting import rdp

    orders = rdp.RdpAccountant().orders
    times = _times(chance, steps)
    total = sum(n * _divergences(sigma, p) for p, n in times.items())
    return float(rdp.compute_epsilon(orders, total, delta)[0]) if times else 0.0


@functools.cache
def _divergences(sigma: float, probability: float) -> np.ndarray:
    """The divergences of one step at the library's orders."""
    accountant = _accountant("rdp")
    accountant.compose(_event(sigma, probability, 1))
    return accountant.rdp


def _times(chance: Chance, steps: int) -> dict[float, int]:
    """How many of the first steps take an example with which chance."""
    if not isinstance(chance, tuple):
        return {chance: steps}
    return dict(sorted(collections.Counter(p for p in chance[:steps] if p).items()))


def dp_sgd_noise(
    epsilon: float, sampling_probability: Chance, steps: int, delta: float
) -> float:
    """Finds the least noise multiplier whose ε is not above the one asked for.

    Example:
      >>> round(dp_sgd_noise(1.0, 4096 / 50_000, 568, 1e-5), 2)
      7.38
    """
    checks.check_epsilon(epsilon)
    checks.check_delta(delta)
    check_sampling(sampling_probability, steps)
    import dp_accounting as dp

    def event(sigma: float):
        return _event(sigma, sampling_probability, int(steps))

    def epsilon_of(sigma: float) -> float:
        return dp_sgd_epsilon(sigma, sampling_probability, steps, delta)

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


def dp_sgd_steps(
    epsilon: float, noise_multiplier: float, sampling_probability: float, delta: float
) -> int:
    """Finds the most steps whose ε is not above the one asked for.

    Raises:
      ValueError: One step alone exceeds ε.

    Example:
      >>> dp_sgd_steps(1.0, 8.0, 4096 / 50_000, 1e-5)
      669
    """
    checks.check_epsilon(epsilon)
    first = dp_sgd_epsilon(noise_multiplier, sampling_probability, 1, delta)
    if first > epsilon:
        raise ValueError(
            f"noise_multiplier={noise_multiplier} allows no step at epsilon={epsilon}: "
            f"one step alone has epsilon={first:.6g} at delta={delta}"
        )
    import dp_accounting as dp

    def event(steps: int):
        return _event(noise_multiplier, sampling_probability, steps)

    start = dp.LowerEndpointAndGuess(1, 2)
    return int(_calibrate("pld", event, epsilon, delta, start, discrete=True))


def dp_sgd_renyi(
    noise_multiplier: float,
    sampling_probability: Chance,
    steps: int,
    orders: Sequence[float],
) -> dict[float, float]:
    """Returns the Rényi divergence bound of all steps together, at some orders.

    These figures of several runs on the same examples add up, order by order.

    Example:
      >>> dp_sgd_renyi(1.0, 1.0, 10, orders=[2])
      {2: 10.0}
    """
    sigma = checks.check_noise_multiplier(noise_multiplier)
    check_sampling(sampling_probability, steps)
    if sigma == 0:
        return {order: float("inf") for order in orders}
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(list(orders))
    accountant.compose(_event(sigma, sampling_probability, int(steps)))
    found = (float(value) for value in accountant.rdp)
    return dict(zip(orders, found, strict=True))


def check_sampling(probability: Chance, steps: int) -> None:
    """Refuses what is no probability of sampling, or no number of steps."""
    whole = isinstance(steps, int | np.integer) and not isinstance(steps, bool)
    if not whole or steps < 1:
        raise ValueError(f"steps must be a positive integer, got {steps!r}")
    if isinstance(probability, tuple):
        if len(probability) < steps or not all(0 <= p <= 1 for p in probability):
            raise ValueError(
                f"sampling_probability must have a number in [0, 1] for each of the "
                f"{steps} steps, got {len(probability)}"
            )
    elif not checks.is_number(probability) or not 0 < probability <= 1:
        raise ValueError(f"sampling_probability must be in (0, 1], got {probability!r}")


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


def _event(sigma: float, probability: Chance, steps: int):
    """Returns dp_accounting's event of all steps; imported late, it takes a second."""
    import dp_accounting as dp

    def sampled(chance: float, times: int):
        event = dp.PoissonSampledDpEvent(chance, dp.GaussianDpEvent(sigma))
        return dp.SelfComposedDpEvent(event, times)

    parts = [sampled(p, n) for p, n in _times(probability, steps).items()]
    return parts[0] if len(parts) == 1 else dp.ComposedDpEvent(parts)


def _accountant(method: str):
    """Returns a fresh accountant for one example added or removed."""
    from dp_accounting import pld, rdp

    if method == "rdp":
        # Our finer grid of orders is slow for sampled events: the library's own.
        return rdp.RdpAccountant()
    # A grid of 1e-5 changes the sixth digit at most where ε > 0.4, at ten times the
    # cost.
    return pld.PLDAccountant(value_discretization_interval=1e-4)
