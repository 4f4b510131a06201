"""What a run reveals of one user: losses, which add up.

Every correlated mechanism is one Gaussian mechanism on Cx, so that its loss depends on
the noise multiplier alone. Sampled steps and releases of other kinds stand beside it.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from tff_agg import checks
from tff_agg.privacy import gaussian, sampled

#: How a loss becomes an ε, the loosest way first. 'zcdp' is the textbook's conversion;
#: 'rdp_whole_orders' gives the 18.9 and 8.2 of the literature; 'rdp' has a fine grid of
#: orders; 'tight' is exact where all is Gaussian, and off a fine grid where steps are
#: sampled.
METHODS = ("zcdp", "rdp_whole_orders", "rdp", "tight")


@dataclasses.dataclass(frozen=True)
class Loss:
    """The privacy loss of everything that is revealed together.

    Attributes:
      mu: Of all Gaussian mechanisms: how far one user moves the mean, in standard
        deviations of the noise. Infinity where nothing is hidden.
      other_rho: The ρ of zCDP of what is no Gaussian mechanism. Its ε is that of Rényi
        divergences, never that of a Gaussian mechanism with this ρ, which is smaller.
      kinds: Steps on sampled batches, one entry for each kind of user or example; the
        loss is that of the kind that is worst off.

    Example:
      >>> one = Loss(mu=1 / 0.341)
      >>> round(one.rho, 2), round(one.epsilon(1e-6), 2)
      (4.3, 17.65)
      >>> round((one + Loss(mu=1.0)).rho, 2)
      4.8
    """

    mu: float = 0.0
    other_rho: float = 0.0
    kinds: tuple[sampled.Steps, ...] = ()

    def __add__(self, other: "Loss") -> "Loss":
        if self.kinds and other.kinds:
            # Nobody says which kind of the one is which of the other.
            kinds = tuple(one + two for one in self.kinds for two in other.kinds)
        else:
            kinds = self.kinds or other.kinds
        return Loss(
            math.hypot(self.mu, other.mu), self.other_rho + other.other_rho, kinds
        )

    @property
    def rho(self) -> float:
        """The least ρ for which all this is ρ-zCDP; sampling does not lower it."""
        steps = max(
            (sum(n * 0.5 / s**2 for s, _, n in kind) for kind in self.kinds),
            default=0.0,
        )
        return self._rho_of_the_rest + steps

    @property
    def _rho_of_the_rest(self) -> float:
        return self.mu * self.mu / 2 + self.other_rho

    @property
    def methods(self) -> tuple[str, ...]:
        """Which of `METHODS` there are."""
        return METHODS[2:] if self.kinds else METHODS

    def epsilon(self, delta: float, method: str = "tight") -> float:
        """Returns the ε at δ, by one of `methods`."""
        checks.delta(delta)
        checks.choice("method", method, self.methods)
        if math.isinf(self.rho):
            return math.inf
        if self.kinds:
            return max(self._of_steps(kind, delta, method) for kind in self.kinds)
        if method == "zcdp":
            return gaussian.textbook(self.rho, delta)
        if method == "rdp_whole_orders":
            return gaussian.by_renyi(self.rho, delta, gaussian.WHOLE_ORDERS)
        if method == "rdp" or self.other_rho:
            return gaussian.by_renyi(self.rho, delta)
        return gaussian.epsilon(self.mu, delta)

    def _of_steps(self, steps: sampled.Steps, delta: float, method: str) -> float:
        """Returns the ε of one kind of example."""
        if method == "rdp" or self.other_rho:
            return sampled.by_renyi(steps, self._rho_of_the_rest, delta)
        return sampled.tight(steps, self.mu, delta)

    def epsilons(self, delta: float) -> dict[str, float]:
        """Returns the ε at δ by every method, the loosest first."""
        return {method: self.epsilon(delta, method) for method in self.methods}

    def renyi(self, orders: Sequence[float]) -> dict[float, float]:
        """Returns bounds of the Rényi divergence at some orders; these add up."""
        rest = self._rho_of_the_rest * np.asarray(orders, float)
        found = [rest + sampled.renyi(kind, tuple(orders)) for kind in self.kinds]
        worst = np.max(found, axis=0) if found else rest
        return dict(zip(orders, map(float, worst), strict=True))


UNBOUNDED = Loss(mu=math.inf)


def of_noise(noise_multiplier: float) -> Loss:
    """Returns the loss of a Gaussian mechanism, from its noise over its sensitivity.

    Example:
      >>> round(of_noise(0.682).epsilon(1e-6, 'rdp_whole_orders'), 2)
      8.16
    """
    sigma = checks.noise_multiplier(noise_multiplier)
    return UNBOUNDED if sigma == 0 else Loss(mu=1 / sigma)


def of_rho(rho: float, is_gaussian: bool = True) -> Loss:
    """Returns the loss of what is ρ-zCDP, by Gaussian mechanisms or otherwise.

    Example:
      >>> round(of_rho(4.3).epsilon(1e-6), 1)
      17.6
    """
    if not rho >= 0:
        raise ValueError(f"rho={rho} must not be negative.")
    if is_gaussian or math.isinf(rho):
        return Loss(mu=math.sqrt(2 * rho))
    return Loss(other_rho=rho)


def noise_for(epsilon: float, delta: float, spent: Loss = Loss()) -> float:  # noqa: B008
    """Finds the least noise multiplier of a Gaussian mechanism that keeps an ε at δ.

    Args:
      epsilon: The ε to reach, together with what is spent.
      delta: δ.
      spent: What else is revealed.

    Raises:
      ValueError: What is spent leaves nothing.

    Example:
      >>> round(noise_for(8.0, 1e-6), 6)
      0.652935
    """
    checks.epsilon(epsilon)
    checks.delta(delta)
    if spent.other_rho:
        rho = _rho_for(epsilon, delta)
    else:
        rho = gaussian.mu(epsilon, delta) ** 2 / 2
    if (left := rho - spent.rho) <= 0:
        raise ValueError(
            f"epsilon={epsilon:g} at delta={delta:g} allows a rho of {rho:.4g}, and "
            f"{spent.rho:.4g} is spent"
        )
    return raised(
        math.sqrt(0.5 / left),
        lambda sigma: (of_noise(sigma) + spent).epsilon(delta) <= epsilon,
    )


def _rho_for(epsilon: float, delta: float) -> float:
    """Returns the largest ρ of zCDP whose ε is not above the one asked for."""
    low, high = 0.0, epsilon
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        fits = gaussian.by_renyi(middle, delta) <= epsilon
        low, high = (middle, high) if fits else (low, middle)
    return low


def raised(value: float, holds: Callable[[float], bool]) -> float:
    """Raises a value by last digits until what was rounded away holds again."""
    step = 2e-16
    while not holds(value):
        value, step = value * (1 + step), 2 * step
    return value


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
    checks.delta(delta)
    if delta * population < 1:
        return None
    return (
        f"delta={delta:g} is not below 1/{population} (one over the number of {unit}): "
        f"such a guarantee would permit publishing the data of one of them; choose a "
        f"delta well below {1 / population:.2g}"
    )
