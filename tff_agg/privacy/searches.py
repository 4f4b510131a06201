"""What a search over private runs means for the guarantee, in numbers and in words.

Whoever picks a run, or a way to use it, by looking at several runs has released
something about all of them. Every run is a Gaussian mechanism, so all runs together are
one as well: their ρ add up, and ε follows from the sum by the plan's own conversion.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tff_agg.privacy import guarantees

_WITHOUT_NOISE = (
    " Accuracies on validation and test data are computed without noise: the people "
    "behind those data are used without privacy protection, and no figure here covers "
    "them. On public data nothing is lost by that."
)


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

    def to_json(self) -> dict[str, Any]:
        """Returns the figures as JSON values; None stands for infinity."""
        fields = dataclasses.asdict(self)
        return {k: None if v == math.inf else v for k, v in fields.items()}


def training_search(rho: float, delta: float, runs: int) -> SearchCost:
    """Says how a choice among several training runs weakens the guarantee.

    Args:
      rho: The ρ of zCDP of one run (infinity for a run without noise).
      delta: δ.
      runs: How many runs on the private data were looked at, failed ones included.

    Example:
      >>> training_search(1.0, 1e-6, runs=4).rho_total
      4.0
    """
    if runs < 1:
        raise ValueError(f"runs={runs} must be at least 1.")
    total = runs * rho
    each, together = (
        guarantees.gaussian_epsilon_of(rho, delta),
        guarantees.gaussian_epsilon_of(total, delta),
    )
    if math.isinf(rho):
        text = (
            f"The aggregation in training was chosen among {runs} runs without noise; "
            "neither one of them nor their choice has any guarantee."
        )
    elif runs == 1:
        text = (
            f"One private training run was looked at; its guarantee of ε = {each:.2f} "
            f"at δ = {delta:g} ({rho:.4g}-zCDP) stands as it is."
        )
    else:
        text = (
            f"The aggregation in training was chosen among {runs} private runs, each "
            f"with ε = {each:.2f} at δ = {delta:g} ({rho:.4g}-zCDP). The choice "
            "depends on all of them, so the guarantee of one run does not cover the "
            f"model that was chosen. By plain composition all {runs} runs together "
            f"are {total:.4g}-zCDP, which is ε = {together:.2f} at δ = {delta:g}; "
            "that may be claimed for the chosen model, whichever users the runs share. "
            "Where the parameters were taken over from another data set, or from the "
            "literature, the guarantee of one run holds."
        )
    text += _WITHOUT_NOISE
    return SearchCost("training", runs, runs, rho, total, delta, each, together, text)


def inference_search(rhos: Sequence[float], delta: float, points: int) -> SearchCost:
    """Says what comparing ways to aggregate the checkpoints of finished runs means.

    Args:
      rhos: The ρ of each run whose checkpoints were read.
      delta: δ.
      points: How many ways were compared.

    Example:
      >>> inference_search([1.0], 1e-6, points=52).rho_total
      1.0
    """
    if not rhos:
        raise ValueError("rhos must name at least one run.")
    runs, rho, total = len(rhos), max(rhos), math.fsum(rhos)
    each, together = (
        guarantees.gaussian_epsilon_of(rho, delta),
        guarantees.gaussian_epsilon_of(total, delta),
    )
    read = "one private run" if runs == 1 else f"{runs} private runs"
    if math.isinf(total):
        read = "one run" if runs == 1 else f"{runs} runs"
    text = (
        f"{points} ways to aggregate checkpoints at inference were compared on "
        f"validation data, over the checkpoints of {read}. "
    )
    if math.isinf(total):
        text += "There are runs without noise among them: nothing is guaranteed."
    elif runs == 1:
        text += (
            f"They only read checkpoints that the run's guarantee of ε = {each:.2f} at "
            f"δ = {delta:g} ({rho:.4g}-zCDP) covers already: this is post-processing "
            "and costs the users of the training data no privacy, however many ways "
            "are compared; that guarantee stands as it is. (If the run itself was "
            "chosen among several, the figure of that search takes its place.)"
        )
    else:
        text += (
            "The choice depends on all of these runs, so for a model that uses it the "
            "guarantee of one run is not enough: by plain composition all "
            f"{runs} together are {total:.4g}-zCDP, which is ε = {together:.2f} at "
            f"δ = {delta:g} (one alone: ε = {each:.2f}). Beyond that the comparison is "
            "post-processing and costs no privacy, however many ways are compared."
        )
    text += _WITHOUT_NOISE
    return SearchCost(
        "inference", runs, points, rho, total, delta, each, together, text
    )
