"""What else was released about the same users, to be counted with a run.

A vocabulary that was chosen with noise is such a release: training uses it, so that
its ρ and δ are part of what the run's models reveal. If each release is ρ-zCDP apart
from an event of probability δ, all of them together have the sum of the ρ, apart from
an event whose probability is at most the sum of the δ.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tff_agg import checks
from tff_agg.aliases import JsonObject
from tff_agg.privacy import losses
from tff_agg.privacy.losses import Loss


@dataclasses.dataclass(frozen=True)
class Release:
    """Something published from the users' data before the run.

    Attributes:
      name: What it is, for example 'vocabulary'.
      rho: Its ρ of zCDP, for one user's contributions set to zero.
      delta: The probability that the ρ does not hold; taken off the run's δ.
      method: How it was made, in words.
      is_gaussian: Whether it is a Gaussian mechanism. One with the same ρ that is not
        may reveal more: its ε is then that of its Rényi divergences.

    Example:
      >>> Release('vocabulary', rho=0.02, delta=1e-7).to_json()['rho']
      0.02
    """

    name: str
    rho: float
    delta: float = 0.0
    method: str = ""
    is_gaussian: bool = False

    def __post_init__(self) -> None:
        checks.number("rho", self.rho, "[0, inf)")
        checks.number("delta", self.delta, "[0, 1)")

    @property
    def loss(self) -> Loss:
        """What it reveals, to be added to that of training."""
        return losses.of_rho(self.rho, self.is_gaussian)

    def to_json(self) -> JsonObject:
        """Returns the release as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Release":
        """Reads back what `to_json` returned."""
        return cls(**{f.name: values[f.name] for f in dataclasses.fields(cls)})


def delta_left(delta: float, releases: Sequence[Release]) -> float:
    """Returns the part of δ that releases leave; refuses a δ that they use up."""
    left = delta - math.fsum(release.delta for release in releases)
    if left <= 0:
        raise ValueError(
            f"delta={delta:g} must be above the delta of what was released before: "
            + ", ".join(f"{r.name} {r.delta:g}" for r in releases)
        )
    return left
