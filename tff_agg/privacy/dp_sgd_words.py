"""What a privacy report says about a plan of DP-SGD."""

from tff_agg.privacy.plan_protocol import PrivacyPlan, ReportWords

RHO_NOTE = (
    "ρ is that of all steps without amplification by sampling. No smaller ρ holds: "
    "zCDP bounds the Rényi divergences of all orders at once, and sampling helps at "
    "low orders only. ε is computed from the sampled mechanism and is far below what "
    "this ρ would give. To compose runs, add up their Rényi divergences by order."
)
ENFORCED = (
    "Each example's gradient is clipped to the clip norm before it is added to the "
    "sum.",
    "The sum is divided by the expected batch size, not by the number of examples that "
    "were really drawn.",
    "Every step adds noise of its own, with the plan's standard deviation.",
)
ASSUMED = (
    "The trainer is trusted: it sees the gradients and keeps the noise and the batches "
    "secret (central model of differential privacy).",
    "Secret sampling: the figures hold for somebody who does not know which examples "
    "were drawn in which step.",
    "No example is in the data twice.",
)
NOT_COVERED = (
    "Users with several examples: the unit is one example, not one person.",
    "Hyperparameter tuning: runs on the same data that were made to choose this run's "
    "settings are further releases, with a cost of their own. The figures above are "
    "of this run alone; what is known of such searches is under Tuning.",
    "Floating-point noise: attacks on low-order bits of the normals or on their "
    "generator are outside the proof.",
    "The number of examples, which the sampling probability reveals, and metrics that "
    "are computed without noise.",
)


def report_words(plan: PrivacyPlan) -> ReportWords:
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
        enforced=ENFORCED,
        assumed=ASSUMED,
        not_covered=NOT_COVERED,
    )
