"""From noise to guarantees: ρ of zCDP, ε at a δ, and back.

Every correlated mechanism is one Gaussian mechanism on Cx, so its guarantee depends on
the noise multiplier alone: the noise's standard deviation over the whole sensitivity.
DP-SGD with Poisson sampling composes many sampled Gaussian mechanisms.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.optimize

METHODS = ("pld", "rdp")
_WHOLE_ORDERS = tuple(range(2, 257))


class Epsilons(NamedTuple):
    """The same guarantee by several conversions, the loosest first.

    Attributes:
      zcdp: ρ + 2√(ρ·ln(1/δ)), the textbook conversion of zCDP.
      rdp_whole_orders: Rényi accounting at whole orders only. It is the conversion
        that gives the 18.9 and 8.2 found in the literature for noise multipliers
        0.341 and 0.682 at δ = 1e-6.
      rdp: Rényi accounting over a fine grid of orders.
      pld: The privacy-loss distribution: tight up to numerical precision.
    """

    zcdp: float
    rdp_whole_orders: float
    rdp: float
    pld: float


def check_noise_multiplier(value: float) -> float:
    """Returns the noise multiplier; refuses what is negative or not a number."""
    if not _is_number(value) or not math.isfinite(value) or value < 0:
        raise ValueError(
            f"noise_multiplier must be a finite number of at least 0, got {value!r}"
        )
    return float(value)


def check_delta(value: float) -> float:
    """Returns δ; refuses what is not strictly between 0 and 1."""
    if not _is_number(value) or not 0 < value < 1:
        raise ValueError(f"delta must be strictly between 0 and 1, got {value!r}")
    return float(value)


def check_epsilon(value: float) -> float:
    """Returns ε; refuses what is not a positive finite number."""
    if not _is_number(value) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"epsilon must be a positive finite number, got {value!r}")
    return float(value)


def _is_number(value: object) -> bool:
    kinds = (int, float, np.integer, np.floating)
    return isinstance(value, kinds) and not isinstance(value, bool)


def rho(noise_multiplier: float) -> float:
    """Returns the ρ of zCDP of a Gaussian mechanism: 1/(2σ²).

    Example:
      >>> round(rho(0.341), 2)
      4.3
    """
    sigma = check_noise_multiplier(noise_multiplier)
    return math.inf if sigma == 0 else 0.5 / sigma**2


def epsilon_from_rho(rho_value: float, delta: float) -> float:
    """Converts ρ-zCDP to ε by the textbook formula, the loosest of all."""
    check_delta(delta)
    return rho_value + 2 * math.sqrt(rho_value * math.log(1 / delta))


def gaussian_epsilons(noise_multiplier: float, delta: float) -> Epsilons:
    """Returns ε of a Gaussian mechanism by each conversion.

    Example:
      >>> round(gaussian_epsilons(0.341, 1e-6).pld, 2)
      17.65
    """
    sigma = check_noise_multiplier(noise_multiplier)
    check_delta(delta)
    if sigma == 0:
        return Epsilons(math.inf, math.inf, math.inf, math.inf)
    return Epsilons(
        epsilon_from_rho(rho(sigma), delta),
        _rdp_epsilon(_gaussian_event(sigma), delta, _WHOLE_ORDERS),
        _rdp_epsilon(_gaussian_event(sigma), delta),
        gaussian_epsilon(sigma, delta),
    )


def gaussian_epsilon(
    noise_multiplier: float, delta: float, method: str = "pld"
) -> float:
    """Returns ε of a Gaussian mechanism with sensitivity 1.

    Args:
      noise_multiplier: Standard deviation over sensitivity; 0 gives infinity.
      delta: δ.
      method: 'pld' (tight) or 'rdp'.
    """
    sigma = check_noise_multiplier(noise_multiplier)
    check_delta(delta)
    _check_method(method)
    if sigma == 0:
        return math.inf
    if method == "rdp":
        return _rdp_epsilon(_gaussian_event(sigma), delta)
    # A grid relative to ε keeps the work bounded; the error is far below 1e-6.
    rough = epsilon_from_rho(rho(sigma), delta)
    return _pld_epsilon(_gaussian_event(sigma), delta, max(rough, 1e-3) * 5e-5)


def dp_sgd_epsilon(
    noise_multiplier: float,
    sampling_probability: float,
    steps: int,
    delta: float,
    method: str = "pld",
) -> float:
    """Returns ε of DP-SGD with Poisson sampling, adding or removing one example.

    Args:
      noise_multiplier: Standard deviation of a step's noise over the clip norm.
      sampling_probability: The chance of each example to be in a step's batch. The
        figure is false for batches that are made in any other way.
      steps: How many steps.
      delta: δ.
      method: 'pld' (tight) or 'rdp'.

    Example:
      >>> round(dp_sgd_epsilon(3.0, 0.08, 875, 1e-5, method='rdp'), 1)
      3.8
    """
    sigma = check_noise_multiplier(noise_multiplier)
    check_delta(delta)
    _check_method(method)
    if not _is_number(sampling_probability) or not 0 < sampling_probability <= 1:
        raise ValueError(
            f"sampling_probability must be in (0, 1], got {sampling_probability!r}"
        )
    if not isinstance(steps, int | np.integer) or steps < 1:
        raise ValueError(f"steps must be a positive integer, got {steps!r}")
    if sigma == 0:
        return math.inf
    import dp_accounting

    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(
            sampling_probability, _gaussian_event(sigma)
        ),
        int(steps),
    )
    if method == "rdp":
        # Fractional orders are slow for sampled events: the library's own choice.
        return _rdp_epsilon(event, delta, ())
    return _pld_epsilon(event, delta, 1e-4)


def _check_method(method: str) -> None:
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")


def _gaussian_event(sigma: float):
    """Returns dp-accounting's event; imported late because it takes a second."""
    import dp_accounting

    return dp_accounting.GaussianDpEvent(sigma)


def _rdp_epsilon(event, delta: float, orders: tuple[float, ...] | None = None) -> float:
    """Returns ε by Rényi accounting; () means the orders the library chooses."""
    from dp_accounting import rdp

    if orders is None:
        fine = 1 + np.geomspace(1e-3, 10.0, 400)
        # All whole orders are among them, so that it is never looser than those alone.
        orders = (*fine.tolist(), *_WHOLE_ORDERS, 512, 1024)
    accountant = rdp.RdpAccountant(list(orders) or None)
    accountant.compose(event)
    return float(accountant.get_epsilon(delta))


def _pld_epsilon(event, delta: float, interval: float) -> float:
    """Returns ε by the privacy-loss distribution on a grid of the given width."""
    from dp_accounting import pld

    accountant = pld.PLDAccountant(value_discretization_interval=interval)
    accountant.compose(event)
    return float(accountant.get_epsilon(delta))


def calibrate(
    epsilon: float,
    delta: float,
    *,
    epsilon_of: Callable[[float], float] | None = None,
    method: str = "pld",
    tolerance: float = 1e-6,
) -> float:
    """Finds the least noise multiplier whose ε is not above the one asked for.

    Args:
      epsilon: The ε to reach.
      delta: δ.
      epsilon_of: ε as a falling function of the noise multiplier, for example
        `lambda s: dp_sgd_epsilon(s, 0.01, 1000, 1e-5)`; a Gaussian mechanism with
        this δ (that is any correlated mechanism) by default.
      method: 'pld' or 'rdp', where `epsilon_of` is not given.
      tolerance: How far below `epsilon` the result's ε may be.

    Returns:
      The noise multiplier, on the safe side.

    Example:
      >>> round(calibrate(gaussian_epsilon(0.682, 1e-6), 1e-6), 4)
      0.682
    """
    check_epsilon(epsilon)
    check_delta(delta)
    _check_method(method)
    if epsilon_of is None:
        guess = _exact_gaussian(epsilon, delta)

        def epsilon_of(sigma: float) -> float:
            return gaussian_epsilon(sigma, delta, method)

    else:
        guess = 1.0
    return _invert(epsilon_of, epsilon, guess, tolerance)


def _invert(
    epsilon_of: Callable[[float], float], target: float, guess: float, tolerance: float
) -> float:
    """Solves by bracketing around a guess, then by shrinking the bracket."""
    low, high = guess, guess
    at_low = at_high = epsilon_of(guess)
    step = 1e-4
    while at_high > target:
        if high > 1e9:
            raise ValueError(f"no noise multiplier below 1e9 reaches epsilon={target}")
        low, at_low, high, step = high, at_high, high * (1 + step), min(1.0, step * 8)
        at_high = epsilon_of(high)
    while at_low < target:
        if low < 1e-9:
            return high
        high, at_high, low, step = low, at_low, low / (1 + step), min(1.0, step * 8)
        at_low = epsilon_of(low)
    for count in range(200):
        if target - at_high <= tolerance or high - low <= 1e-15 * high:
            break
        if count % 3 == 2 or not math.isfinite(at_low):
            middle = (low + high) / 2
        else:
            # A secant step aimed just below the target lands on the safe side.
            aim = target - tolerance / 2
            middle = low + (high - low) * (at_low - aim) / (at_low - at_high)
            middle = min(max(middle, low), high)
        value = epsilon_of(middle)
        if value > target:
            low, at_low = middle, value
        else:
            high, at_high = middle, value
    return high


def _exact_gaussian(epsilon: float, delta: float) -> float:
    """Returns the noise multiplier with exactly (ε, δ), from the closed form."""
    from scipy.special import log_ndtr

    def gap(log_sigma: float) -> float:
        sigma = math.exp(log_sigma)
        first = log_ndtr(0.5 / sigma - epsilon * sigma)
        second = epsilon + log_ndtr(-0.5 / sigma - epsilon * sigma)
        return float(
            first + math.log1p(-math.exp(min(second - first, -1e-16))) - math.log(delta)
        )

    return math.exp(scipy.optimize.brentq(gap, math.log(1e-3), math.log(1e5)))


@functools.lru_cache(maxsize=4096)
def gaussian_epsilon_of(rho: float, delta: float) -> float:
    """Returns the tight ε of Gaussian mechanisms that are ρ-zCDP together.

    Example:
      >>> round(gaussian_epsilon_of(4.3, 1e-6), 1)
      17.6
    """
    check_delta(delta)
    if not rho >= 0:
        raise ValueError(f"rho={rho} must not be negative.")
    if rho == 0:
        return 0.0
    if math.isinf(rho):
        return math.inf
    return gaussian_epsilon(math.sqrt(0.5 / rho), delta)
