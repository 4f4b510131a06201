"""What a search over private runs means for the guarantee, in numbers and in words.

Picking a run, or a way to use it, by looking at several runs releases something about
all of them. Every run is a Gaussian mechanism, so all runs together are one as well:
their ρ add up, and ε follows from the sum as for one plan.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from tff_agg import checks
from tff_agg.aliases import JsonObject
from tff_agg.privacy import losses


def shared_users_in_words(shared: Mapping[str, int] | None) -> str:
    """Returns whose data scores are computed on, and what follows for the guarantee.

    Args:
      shared: For each set of data that models are scored on, how many of its users are
        users of the training data; None if not counted.

    Example:
      >>> shared_users_in_words({'heldout': 0, 'test': 0})[:45]
      'No user of the training data is in the heldou'
    """
    without = (
        "Scores are computed without noise: the people behind the data that models are "
        "scored on are used without privacy protection, and no figure here covers them."
    )
    if shared is None:
        return (
            "Whether users of the training data are also in the validation or test "
            f"data was not counted. {without} If there are such users, scores and "
            "whatever is chosen by them depend on training users' data without noise. "
            "On public data nothing is lost by that."
        )
    sets = " or ".join(f"the {name}" for name in shared)
    if not any(shared.values()):
        return (
            f"No user of the training data is in {sets} data. {without} On public data "
            "nothing is lost by that."
        )
    counts = " and ".join(f"{n:,} are also in the {name}" for name, n in shared.items())
    return (
        f"Of the users of the training data, {counts} data: scores there are computed "
        f"on training users' data. {without} The guarantee of a run does not cover "
        "what these scores, or a choice made by them, reveal about those users."
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
    if math.isinf(rho):
        text = (
            f"The aggregation in training was chosen among {runs} runs, of which at "
            "least one has no guarantee (no noise, or a known noise seed); neither has "
            "their choice."
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
    text += " " + shared_users_in_words(shared_users)
    return SearchCost("training", runs, runs, rho, total, delta, each, together, text)


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
    read = "one private run" if runs == 1 else f"{runs} private runs"
    if math.isinf(total):
        read = "one run" if runs == 1 else f"{runs} runs"
    text = (
        f"{points} ways to aggregate checkpoints at inference were compared on "
        f"validation data, over the checkpoints of {read}. "
    )
    if math.isinf(total):
        text += (
            "There are runs without a guarantee among them (no noise, or a known noise "
            "seed): nothing is guaranteed."
        )
    elif runs == 1:
        text += (
            f"They only read checkpoints that the run's guarantee of ε = {each:.2f} at "
            f"δ = {delta:g} ({rho:.4g}-zCDP) covers already: reading them is "
            f"post-processing{_free(shared_users)}, however many ways are compared; "
            "that guarantee stands as it is. (If the run itself was chosen among "
            "several, the figure of that search takes its place.)"
        )
    else:
        text += (
            "The choice depends on all of these runs, so for a model that uses it the "
            "guarantee of one run is not enough: by plain composition all "
            f"{runs} together are {total:.4g}-zCDP, which is ε = {together:.2f} at "
            f"δ = {delta:g} (one alone: ε = {each:.2f}). Beyond that, reading the "
            f"checkpoints is post-processing{_free(shared_users)}, however many ways "
            "are compared."
        )
    text += " " + shared_users_in_words(shared_users)
    return SearchCost(
        "inference", runs, points, rho, total, delta, each, together, text
    )


def _free(shared: Mapping[str, int] | None) -> str:
    """Returns what comparing costs training users: nothing if none is scored on."""
    if shared is not None and not any(shared.values()):
        return " and costs the users of the training data no privacy"
    return ", and costs no privacy to users on whose data nothing is scored"


def _epsilon(
    rho: float, delta: float, delta_of_releases: float, is_gaussian: bool
) -> float:
    """Returns ε at δ, of which releases have taken a part."""
    checks.delta(delta)
    left = delta - delta_of_releases
    return losses.of_rho(rho, is_gaussian).epsilon(left) if left > 0 else math.inf
