"""What a privacy report says about a plan."""

import dataclasses
import math

from tff_agg.privacy.accounting import RHO_NOTE
from tff_agg.privacy.plan import Plan


@dataclasses.dataclass(frozen=True)
class ReportWords:
    """What a privacy report says about one kind of plan.

    Attributes:
      statement: The guarantee in a sentence or two.
      setting: The model of differential privacy, its level and the algorithm.
      unit: Whose data is protected, and how much of it.
      accounting: How the figures were computed.
      enforced: What the software makes sure of.
      assumed: What it takes for granted.
      not_covered: What the figures say nothing about.
    """

    statement: str
    setting: str
    unit: str
    accounting: str
    enforced: tuple[str, ...]
    assumed: tuple[str, ...]
    not_covered: tuple[str, ...]


ENFORCED = (
    "Each user's update is clipped to the clip norm before it is added to the sum.",
    "The sum is divided by the planned cohort size, not by the number of users that "
    "really took part.",
    "The noise's scale is computed from the mechanism's own matrix, the participation "
    "schema and the noise multiplier; no other number enters it.",
    "The mechanism refuses to serve more rounds than its sensitivity was computed for.",
    "Noise is a function of the secret seed and the round: a resumed run repeats the "
    "same noise and reveals nothing twice.",
)
ASSUMED = (
    "The server is trusted: it sees clipped updates and keeps the noise seed secret "
    "(central model of differential privacy).",
    "All data of one user is under one user id.",
    "The participation schema holds for the users' real identities.",
)
NOT_COVERED = (
    "Hyperparameter tuning: runs on the same users that were made to choose this run's "
    "settings are further releases, with a cost of their own. The figures above are "
    "of this run alone; what is known of such searches is under Tuning.",
    "Floating-point noise: normals are drawn in floating point by a counter-based "
    "generator that is not made for cryptography; attacks on low-order bits or on the "
    "generator itself are outside the proof.",
    "Secret sampling: the figures hold even if everybody knows who took part in which "
    "round; nothing is gained from amplification by sampling.",
    "Anything made from users' data before training, such as a vocabulary, unless it "
    "is listed under Releases before training.",
    "Data used for evaluation and for counts of users or examples: no noise is added.",
    "Metrics that the server computes from users' data without noise.",
)


def _dp_ftrl(plan: Plan) -> ReportWords:
    """Returns what the report says about a plan of DP-FTRL."""
    return ReportWords(
        statement=plan.no_guarantee or _statement(plan),
        setting="central differential privacy, user level, federated training",
        unit="one user: all contributions of a user id over the whole run",
        accounting="one Gaussian mechanism on the encoded rounds; every release is "
        "post-processing of it, also when later updates depend on earlier noise",
        enforced=ENFORCED,
        assumed=ASSUMED,
        not_covered=NOT_COVERED,
    )


def _statement(plan: Plan) -> str:
    """Returns the guarantee in a sentence or two."""
    if not plan.releases:
        return (
            f"The {plan.rounds} rounds together satisfy {plan.rho:.4g}-zCDP, and "
            f"({plan.epsilon:.4g}, {plan.delta:g})-differential privacy, for one user."
        )
    names = ", ".join(f"the {release.name}" for release in plan.releases)
    parts = " + ".join(f"{r.rho:.4g} ({r.name})" for r in plan.releases)
    off = math.fsum(release.delta for release in plan.releases)
    return (
        f"The {plan.rounds} rounds and {names} together satisfy "
        f"({plan.epsilon:.4g}, {plan.delta:g})-differential privacy for one user. "
        f"Their ρ is {plan.rho:.4g} = {plan.training_rho:.4g} (training) + {parts}; it "
        f"holds except with a probability of {off:g}, and ε is computed for what that "
        "leaves of δ."
    )


_SGD_ENFORCED = (
    "Each example's gradient is clipped to the clip norm before it is added to the "
    "sum.",
    "The sum is divided by the expected batch size, not by the number of examples that "
    "were really drawn.",
    "Every step adds noise of its own, with the plan's standard deviation.",
)
_SGD_ASSUMED = (
    "The trainer is trusted: it sees the gradients and keeps the noise and the batches "
    "secret (central model of differential privacy).",
    "Secret sampling: the figures hold for somebody who does not know which examples "
    "were drawn in which step.",
    "No example is in the data twice.",
)
_SGD_NOT_COVERED = (
    "Users with several examples: the unit is one example, not one person.",
    "Hyperparameter tuning: runs on the same data that were made to choose this run's "
    "settings are further releases, with a cost of their own. The figures above are "
    "of this run alone; what is known of such searches is under Tuning.",
    "Floating-point noise: attacks on low-order bits of the normals or on their "
    "generator are outside the proof.",
    "The number of examples, which the sampling probability reveals, and metrics that "
    "are computed without noise.",
)


def _dp_sgd(plan: Plan) -> ReportWords:
    """Returns what the report says about a plan of DP-SGD."""
    return ReportWords(
        statement=plan.no_guarantee
        or f"The {plan.rounds} steps together satisfy ({plan.epsilon:.4g}, "
        f"{plan.delta:g})-differential privacy for one example, with batches drawn "
        "by Poisson sampling.",
        setting="central differential privacy, example level, DP-SGD",
        unit="one example of the training data",
        accounting="the privacy-loss distribution of the Gaussian mechanism on "
        "Poisson-sampled batches, composed over the steps; Rényi accounting as an "
        f"independent check. {RHO_NOTE[:-1]}",
        enforced=_SGD_ENFORCED,
        assumed=_SGD_ASSUMED,
        not_covered=_SGD_NOT_COVERED,
    )


def report_words(plan: Plan) -> ReportWords:
    """Returns what the report says about a plan."""
    return {"dp_ftrl": _dp_ftrl, "dp_sgd": _dp_sgd}[plan.accounting.words](plan)
