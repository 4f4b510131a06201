"""From noise to guarantees: ρ of zCDP, ε at a δ, and back.

Every correlated mechanism is one Gaussian mechanism on Cx, so its guarantee depends on
the noise multiplier alone: the noise's standard deviation over the whole sensitivity.
`sampled_guarantees` has the figures of DP-SGD, where batches are sampled.
"""

import math
from typing import NamedTuple

from tff_agg.privacy import checks, gaussian

METHODS = ("pld", "rdp")


class Epsilons(NamedTuple):
    """The same guarantee by several conversions, the loosest first.

    Attributes:
      zcdp: ρ + 2√(ρ·ln(1/δ)), the textbook conversion of zCDP.
      rdp_whole_orders: Rényi accounting at whole orders only. It is the conversion
        that gives the 18.9 and 8.2 found in the literature for noise multipliers
        0.341 and 0.682 at δ = 1e-6.
      rdp: Rényi accounting over a fine grid of orders.
      pld: The closed form: tight.
    """

    zcdp: float
    rdp_whole_orders: float
    rdp: float
    pld: float


def rho(noise_multiplier: float) -> float:
    """Returns the ρ of zCDP of a Gaussian mechanism: 1/(2σ²).

    Example:
      >>> round(rho(0.341), 2)
      4.3
    """
    sigma = checks.check_noise_multiplier(noise_multiplier)
    return math.inf if sigma == 0 else 0.5 / sigma**2


def gaussian_epsilons(noise_multiplier: float, delta: float) -> Epsilons:
    """Returns ε of a Gaussian mechanism by each conversion.

    Example:
      >>> round(gaussian_epsilons(0.341, 1e-6).pld, 2)
      17.65
    """
    sigma = checks.check_noise_multiplier(noise_multiplier)
    checks.check_delta(delta)
    if sigma == 0:
        return Epsilons(math.inf, math.inf, math.inf, math.inf)
    return Epsilons(
        gaussian.textbook(rho(sigma), delta),
        gaussian.by_renyi(rho(sigma), delta, gaussian.WHOLE_ORDERS),
        gaussian.by_renyi(rho(sigma), delta),
        gaussian.epsilon(1 / sigma, delta),
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
    sigma = checks.check_noise_multiplier(noise_multiplier)
    checks.check_delta(delta)
    check_method(method)
    if sigma == 0:
        return math.inf
    if method == "rdp":
        return gaussian.by_renyi(rho(sigma), delta)
    return gaussian.epsilon(1 / sigma, delta)


def check_method(method: str) -> None:
    """Refuses the name of a method that there is not."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")


def calibrate(epsilon: float, delta: float) -> float:
    """Finds the least noise multiplier whose ε is not above the one asked for.

    Args:
      epsilon: The ε to reach with a Gaussian mechanism, that is with any correlated
        mechanism.
      delta: δ.

    Example:
      >>> round(calibrate(gaussian_epsilon(0.682, 1e-6), 1e-6), 4)
      0.682
    """
    sigma, step = 1 / gaussian.mu(epsilon, delta), 2e-16
    # The quotient was rounded; the ε we report must not exceed what was asked for.
    while gaussian_epsilon(sigma, delta) > epsilon:
        sigma, step = sigma * (1 + step), 2 * step
    return sigma


def delta_warning(delta: float, population: int, unit: str = "users") -> str | None:
    """Returns what to say about a δ that is too large for a population, or None.

    A mechanism that publishes the data of one of n users, chosen at random, is
    (0, 1/n)-differentially private: a δ of 1/n or more promises nothing to speak of.

    Args:
      delta: δ.
      population: How many users (or examples) the data have.
      unit: What they are called.

    Example:
      >>> delta_warning(1e-6, 342_477) is None
      True
    """
    checks.check_delta(delta)
    if delta * population < 1:
        return None
    return (
        f"delta={delta:g} is not below 1/{population} (one over the number of {unit}): "
        f"such a guarantee would permit publishing the data of one of them; choose a "
        f"delta well below {1 / population:.2g}"
    )


def gaussian_epsilon_of(rho: float, delta: float) -> float:
    """Returns the tight ε of Gaussian mechanisms that are ρ-zCDP together.

    Example:
      >>> round(gaussian_epsilon_of(4.3, 1e-6), 1)
      17.6
    """
    checks.check_delta(delta)
    if not rho >= 0:
        raise ValueError(f"rho={rho} must not be negative.")
    if rho == 0:
        return 0.0
    if math.isinf(rho):
        return math.inf
    return gaussian_epsilon(math.sqrt(0.5 / rho), delta)
