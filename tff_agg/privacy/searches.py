"""What a search over private runs means for the guarantee, in numbers and in words.

Picking a run, or a way to use it, by looking at several runs releases something about
all of them. Every run is a Gaussian mechanism, so all runs together are one as well:
their ρ add up, and ε follows from the sum as for one plan.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tff_agg import checks
from tff_agg.aliases import JsonObject
from tff_agg.privacy import losses, prose


@dataclasses.dataclass(frozen=True)
class SearchCost:
    """What a search means for the guarantee.

    Attributes:
      algorithm: What was searched for, 'training' or 'inference' aggregation.
      runs: How many private training runs were looked at.
      points: How many points of the grid were looked at.
      rho: The ρ of one run (the largest); infinity without noise.
      rho_total: The ρ of all of them together.
      delta: The δ of both ε.
      epsilon: The ε of one run.
      epsilon_total: The ε of all of them together.
      paragraph: The same in words, for the privacy report.
    """

    algorithm: str
    runs: int
    points: int
    rho: float
    rho_total: float
    delta: float
    epsilon: float
    epsilon_total: float
    paragraph: str

    def to_json(self) -> JsonObject:
        """Returns the figures as JSON values; None stands for infinity."""
        fields = dataclasses.asdict(self)
        return {k: None if v == math.inf else v for k, v in fields.items()}


def training_search(
    rho: float,
    delta: float,
    runs: int,
    *,
    delta_of_releases: float = 0.0,
    is_gaussian: bool = True,
    shared_users: Mapping[str, int] | None = None,
) -> SearchCost:
    """Returns how a choice among several training runs weakens the guarantee.

    Args:
      rho: The ρ of zCDP of one run, releases before it included (infinity for a run
        without a guarantee).
      delta: δ.
      runs: How many runs on the private data were looked at, failed ones included.
      delta_of_releases: The part of δ that releases before the runs take up.
      is_gaussian: Whether all of the ρ is that of Gaussian mechanisms.
      shared_users: For each set of data that runs were scored on, how many of its users
        are users of the training data; None if not counted.

    Example:
      >>> training_search(1.0, 1e-6, runs=4).rho_total
      4.0
    """
    checks.whole("runs", runs)
    total = runs * rho
    each, together = (
        _epsilon(x, delta, delta_of_releases, is_gaussian) for x in (rho, total)
    )
    return _cost(
        "training", shared_users, runs=runs, points=runs, rho=rho, rho_total=total,
        delta=delta, epsilon=each, epsilon_total=together,
    )  # fmt: skip


def inference_search(
    rhos: Sequence[float],
    delta: float,
    points: int,
    *,
    delta_of_releases: float = 0.0,
    is_gaussian: bool = True,
    shared_users: Mapping[str, int] | None = None,
) -> SearchCost:
    """Returns what comparing ways to aggregate the checkpoints of finished runs means.

    Args:
      rhos: The ρ of each run whose checkpoints were read, releases before it included.
      delta: δ.
      points: How many ways were compared.
      delta_of_releases: The part of δ that releases before the runs take up.
      is_gaussian: Whether all of the ρ is that of Gaussian mechanisms.
      shared_users: For each set of data that ways were scored on, how many of its users
        are users of the training data; None if not counted.

    Example:
      >>> inference_search([1.0], 1e-6, points=52).rho_total
      1.0
    """
    if not rhos:
        raise ValueError("rhos must name at least one run.")
    runs, rho, total = len(rhos), max(rhos), math.fsum(rhos)
    each, together = (
        _epsilon(x, delta, delta_of_releases, is_gaussian) for x in (rho, total)
    )
    return _cost(
        "inference", shared_users, runs=runs, points=points, rho=rho, rho_total=total,
        delta=delta, epsilon=each, epsilon_total=together,
    )  # fmt: skip


def _cost(
    algorithm: str, shared: Mapping[str, int] | None, **figures: Any
) -> SearchCost:
    """Returns the figures of a search together with what they mean."""
    text = prose.paragraph(f"{algorithm}_search", shared=shared, **figures)
    return SearchCost(algorithm, paragraph=text, **figures)


def _epsilon(
    rho: float, delta: float, delta_of_releases: float, is_gaussian: bool
) -> float:
    """Returns ε at δ, of which releases have taken a part."""
    checks.delta(delta)
    left = delta - delta_of_releases
    return losses.of_rho(rho, is_gaussian).epsilon(left) if left > 0 else math.inf
