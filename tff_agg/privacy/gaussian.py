"""The Gaussian mechanism in closed form: δ, ε, μ, tests, and ε by looser conversions.

Whoever sees the noise of a Gaussian mechanism has to tell two normal distributions of
variance 1 apart whose means differ by μ, the sensitivity over the noise's standard
deviation. With Φ the normal distribution function,

  δ(ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ).

That is exact (Balle and Wang, 2018). It is solved for ε and for μ through its
logarithm, which neither underflows nor cancels where δ is tiny.
"""

import math
import sys
from collections.abc import Callable

import numpy as np
import scipy.optimize
from scipy.special import erf, log_ndtr, ndtr, ndtri

from tff_agg import checks

WHOLE_ORDERS = np.arange(2.0, 257.0)
# All whole orders are among them, so that they are never looser than those alone.
FINE_ORDERS = np.concatenate(
    [1 + np.geomspace(1e-3, 10.0, 400), WHOLE_ORDERS, [512.0, 1024.0]]
)
# brentq stops where either is reached; the absolute one must not be what stops it.
_RELATIVE, _ABSOLUTE = 4 * sys.float_info.epsilon, 1e-300


def delta(mu: float, epsilon: float) -> float:
    """Returns the δ at ε of two normal distributions whose means are μ apart.

    Example:
      >>> round(delta(1.0, 1.0), 4)
      0.1269
    """
    if mu <= 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    return math.exp(_log_delta(mu, epsilon))


def epsilon(mu: float, delta: float) -> float:
    """Returns the ε at δ of two normal distributions whose means are μ apart.

    Example:
      >>> round(epsilon(1 / 0.341, 1e-6), 2)
      17.65
    """
    checks.delta(delta)
    # At ε = 0, δ is 2Φ(μ/2) − 1.
    if mu <= 0 or erf(mu / math.sqrt(8)) <= delta:
        return 0.0
    if math.isinf(top := textbook(mu**2 / 2 if mu < 1e150 else math.inf, delta)):
        return math.inf

    def above(x: float) -> float:
        return _log_delta(mu, x) - math.log(delta)

    return _root(above, 0.0, top) if above(0.0) > 0 else 0.0


def mu(epsilon_value: float, delta: float) -> float:
    """Returns the largest μ whose ε at δ, as `epsilon` gives it, is not above ε.

    Example:
      >>> round(1 / mu(8.0, 1e-6), 6)
      0.652935
    """
    checks.epsilon(epsilon_value)
    checks.delta(delta)

    def above(x: float) -> float:
        return _log_delta(x, epsilon_value) - math.log(delta)

    high = 1.0
    while above(high) < 0:
        high *= 2
    low = high / 2
    while above(low) >= 0:
        low /= 2
    found = _root(above, low, high)
    step = _RELATIVE
    while epsilon(found, delta) > epsilon_value:
        found, step = found * (1 - step), 2 * step
    return found


def power(mu: float, size: np.ndarray) -> np.ndarray:
    """Returns the power of the best test that tells the two apart, at some sizes.

    The size is its rate of false positives, the power that of true ones. No test of
    whether one user took part does better (Dong, Roth and Su, 2022).

    Example:
      >>> power(1.0, np.array([0.0, 0.05, 1.0])).round(4).tolist()
      [0.0, 0.2595, 1.0]
    """
    if math.isinf(mu):
        return np.ones_like(size, float)
    return ndtr(ndtri(np.asarray(size, float)) + mu)


def textbook(rho: float, delta: float) -> float:
    """Converts ρ-zCDP to ε by the textbook's ρ + 2√(ρ·ln(1/δ)), the loosest of all."""
    checks.delta(delta)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def by_renyi(rho: float, delta: float, orders: np.ndarray = FINE_ORDERS) -> float:
    """Converts ρ-zCDP to ε through the Rényi divergences ρα at some orders α.

    It holds for whatever is ρ-zCDP, a Gaussian mechanism or not (Canonne, Kamath and
    Steinke, 2020). The whole orders alone give the 18.9 and 8.2 found in the literature
    for noise multipliers 0.341 and 0.682 at δ = 1e-6.

    Example:
      >>> round(by_renyi(0.5 / 0.682**2, 1e-6, WHOLE_ORDERS), 2)
      8.16
    """
    checks.delta(delta)
    if math.isinf(rho):
        return math.inf
    # Orders next to 1 are useless, and their logarithms cancel.
    alpha = orders[orders > 1.01]
    found = (
        rho * alpha
        + np.log1p(-1 / alpha)
        - (math.log(delta) + np.log(alpha)) / (alpha - 1)
    )
    # Bretagnolle and Huber: chances then differ by at most √(1 − e^(−ρα)) < δ.
    found[delta**2 + np.expm1(-rho * alpha) > 0] = 0.0
    return max(0.0, float(found.min()))


def _log_delta(mu: float, epsilon: float) -> float:
    """Returns log δ(ε)."""
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    rest = -math.expm1(min(second - first, 0.0))
    return float(first) + math.log(rest or 1e-300)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Returns where a function is zero between two points, to the last digits."""
    return float(
        scipy.optimize.brentq(function, low, high, xtol=_ABSOLUTE, rtol=_RELATIVE)
    )
