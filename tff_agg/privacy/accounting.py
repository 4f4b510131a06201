"""How participation, mechanism and noise become a loss: one accounting for each kind.

Which one a plan has follows from its participation: users whose rounds keep a schema
are covered by one Gaussian mechanism over the whole run (DP-FTRL); batches drawn by
Poisson sampling by sampled Gaussian steps (DP-SGD). What a plan asks of its accounting
is the protocol `Accounting`.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Protocol

from tff_agg import checks
from tff_agg.aliases import JsonObject
from tff_agg.privacy import cohorts, losses, sampled, tf_privacy
from tff_agg.privacy.losses import Loss
from tff_agg.privacy.participation import (
    Participation,
    PoissonSampling,
    Sampling,
    ShiftingPoissonSampling,
    check_schema,
    implies,
)
from tff_agg.privacy.sensitivity import Sensitivity, sensitivity, so_far

if TYPE_CHECKING:
    from tff_agg.privacy.plan import Plan

ORDERS = (1.5, 2, 4, 8, 16, 32, 64, 128, 256)
RHO_NOTE = (
    "ρ is that of all steps without amplification by sampling. No smaller ρ holds: "
    "zCDP bounds the Rényi divergences of all orders at once, and sampling helps at "
    "low orders only. ε is computed from the sampled mechanism and is far below what "
    "this ρ would give. To compose runs, add up their Rényi divergences by order."
)
# Enough to tell a fixed batch size or shuffled epochs from Poisson sampling.
_LOOKED_AT = 500


class Accounting(Protocol):
    """How a plan's noise becomes a loss, and what is to be said of that."""

    @property
    def words(self) -> str:
        """The name of the words for the report."""

    @property
    def adjacency(self) -> str:
        """What makes two data sets neighbours, in words."""

    def check(self, plan: "Plan") -> None:
        """Refuses a plan whose parts do not fit together."""

    def most_users(self, plan: "Plan") -> int | None:
        """Returns the most users in one sum; None where that is left to chance."""

    def sensitivity(self, plan: "Plan") -> Sensitivity:
        """Returns what one unit of the noise multiplier covers."""

    def loss(
        self, plan: "Plan", noise_multiplier: float, rounds: int, quick: bool = False
    ) -> Loss:
        """Returns the loss of the first rounds; where `quick`, one not below it."""

    def noise_for(
        self, plan: "Plan", epsilon: float, delta: float, spent: Loss
    ) -> float:
        """Returns the least noise multiplier that keeps an ε."""

    def rounds_for(
        self, plan: "Plan", epsilon: float, delta: float, spent: Loss
    ) -> int:
        """Returns the most rounds that keep an ε."""

    def check_sampler(self, plan: "Plan", sampler: Any) -> None:
        """Refuses a sampler that does not keep what the plan counts on."""

    def facts(self, plan: "Plan") -> JsonObject:
        """Returns what only plans of this kind have, as JSON values."""


@dataclasses.dataclass(frozen=True)
class OneGaussian:
    """All rounds are one Gaussian mechanism on Cx, whatever the users send: DP-FTRL.

    Attributes:
      participation: In which rounds one user may take part.
    """

    participation: Participation
    words = "dp_ftrl"
    adjacency = (
        "zero-out: two data sets are neighbours if one comes from the other by "
        "replacing all contributions of one user with zero, everything else (the "
        "rounds, the other users' cohorts and the fixed divisor) staying as it is"
    )

    def check(self, plan: "Plan") -> None:
        """Refuses rounds that the schema claims and that do not fit."""
        self.participation.largest(plan.rounds)

    def most_users(self, plan: "Plan") -> int | None:
        """Returns the planned cohort size."""
        return plan.cohort_size

    def sensitivity(self, plan: "Plan") -> Sensitivity:
        """Returns the mechanism's sensitivity to updates of norm at most 1."""
        return sensitivity(plan.mechanism, self.participation, plan.rounds)

    def loss(
        self, plan: "Plan", noise_multiplier: float, rounds: int, quick: bool = False
    ) -> Loss:
        """Returns the loss of the first rounds, which a part of the sensitivity has."""
        whole = losses.of_noise(noise_multiplier)
        if rounds == plan.rounds:
            return whole
        schema = self.participation
        if quick:
            found = so_far(plan.mechanism, schema, rounds, plan.rounds)
        else:
            found = sensitivity(plan.mechanism, schema.cut(rounds), rounds)
        # An upper bound may be looser for fewer rounds; the whole run bounds it too.
        share = min(found.value / plan.sensitivity.value, 1.0)
        return Loss(mu=whole.mu * share)

    def noise_for(
        self, plan: "Plan", epsilon: float, delta: float, spent: Loss
    ) -> float:
        """Returns the noise multiplier in closed form."""
        return losses.noise_for(epsilon, delta, spent)

    def rounds_for(
        self, plan: "Plan", epsilon: float, delta: float, spent: Loss
    ) -> int:
        """Refuses: noise is relative to the sensitivity, however many rounds."""
        raise ValueError(
            "the noise multiplier of correlated noise is relative to the sensitivity "
            "of all rounds, so that their number does not change ε: give rounds"
        )

    def check_sampler(self, plan: "Plan", sampler: Any) -> None:
        """Looks at schema, rounds, cohort size, and the cohorts of all rounds."""
        cohorts.check_can_be_seen(
            sampler, "participation", "rounds", "cohort_size", "users"
        )
        kept = check_schema(sampler.participation)
        if not implies(kept, self.participation, plan.rounds):
            raise ValueError(
                f"the sampler keeps {kept}, which allows more than the plan's "
                f"{self.participation} over {plan.rounds} rounds"
            )
        if sampler.rounds < plan.rounds:
            raise ValueError(
                f"the sampler serves {sampler.rounds} rounds, the plan {plan.rounds}"
            )
        if sampler.cohort_size != plan.cohort_size:
            raise ValueError(
                f"the sampler draws cohorts of {sampler.cohort_size}, the plan divides "
                f"by {plan.cohort_size}"
            )
        cohorts.check_cohorts(
            self.participation, (sampler.users(t) for t in range(plan.rounds))
        )

    def facts(self, plan: "Plan") -> JsonObject:
        """Returns the other reading of the noise multiplier."""
        per_node = tf_privacy.rho_of_per_node(
            plan.noise_multiplier, plan.rounds, self.participation
        )
        return {
            "rho_if_read_as_per_node_multiplier": None
            if plan.no_guarantee
            else checks.finite(per_node)
        }


@dataclasses.dataclass(frozen=True)
class SampledGaussian:
    """Every step draws its batch anew and adds noise of its own: DP-SGD.

    Attributes:
      participation: How batches are drawn. Where chances move, all figures are of the
        group that is worst off.
    """

    participation: Sampling
    words = "dp_sgd"
    adjacency = (
        "add or remove: two data sets are neighbours if one comes from the other by "
        "adding or removing one example"
    )

    def check(self, plan: "Plan") -> None:
        """Refuses correlated noise, and batches of another size than is divided by."""
        if plan.mechanism.name != "identity":
            raise ValueError(
                "batches drawn by Poisson sampling are accounted for with independent "
                f"noise: mechanism must be identity(), got {plan.mechanism.name}"
            )
        population = self.participation.population_size
        if plan.cohort_size > population:
            raise ValueError(
                f"cohort_size={plan.cohort_size} is above population_size={population}"
            )
        expected = self.participation.expected_size
        if expected is not None and not math.isclose(
            plan.cohort_size, expected, rel_tol=1e-9
        ):
            raise ValueError(
                f"cohort_size={plan.cohort_size}, but {self.participation} draws "
                f"{expected:.6g} on average"
            )
        for chance in self._chances(plan.rounds):
            sampled.check_sampling(chance, plan.rounds)

    def most_users(self, plan: "Plan") -> int | None:
        """Returns None: the size of a batch is left to chance."""
        return None

    def sensitivity(self, plan: "Plan") -> Sensitivity:
        """Returns that of one step."""
        return Sensitivity(1.0, True, "one clipped gradient in one step")

    def _chances(self, rounds: int) -> list[sampled.Chance]:
        """Returns how often an example is taken, for each kind of example."""
        if isinstance(self.participation, PoissonSampling):
            return [self.participation.probability]
        # Groups that mirror each other are one to the accountant.
        first = (chances[:rounds] for chances in self.participation.probabilities)
        return list({tuple(sorted(chances)): chances for chances in first}.values())

    def loss(
        self, plan: "Plan", noise_multiplier: float, rounds: int, quick: bool = False
    ) -> Loss:
        """Returns the loss of the first steps."""
        if noise_multiplier == 0:
            return losses.UNBOUNDED
        return Loss(
            kinds=tuple(
                sampled.steps_of(noise_multiplier, chance, rounds)
                for chance in self._chances(rounds)
            )
        )

    def noise_for(
        self, plan: "Plan", epsilon: float, delta: float, spent: Loss
    ) -> float:
        """Returns the noise multiplier that the worst example needs."""
        self._refuse_others(spent)
        return max(
            sampled.noise_for(epsilon, chance, plan.rounds, delta, spent.mu)
            for chance in self._chances(plan.rounds)
        )

    def rounds_for(
        self, plan: "Plan", epsilon: float, delta: float, spent: Loss
    ) -> int:
        """Returns the most steps, where all of them have one probability."""
        self._refuse_others(spent)
        if not isinstance(self.participation, PoissonSampling):
            raise ValueError(
                "rounds_for_epsilon cannot go on with chances that move: give rounds"
            )
        return sampled.steps_for(
            epsilon,
            plan.noise_multiplier,
            self.participation.probability,
            delta,
            spent.mu,
        )

    def _refuse_others(self, spent: Loss) -> None:
        """Refuses to search beside releases that are no Gaussian mechanisms."""
        if spent.other_rho:
            raise ValueError(
                "noise and steps for an ε are found beside Gaussian releases only; "
                "give noise_multiplier and rounds, and see the plan's epsilon"
            )

    def check_sampler(self, plan: "Plan", sampler: Any) -> None:
        """Looks at the probabilities, the population, and some batches."""
        cohorts.check_can_be_seen(
            sampler, "participation", "population_size", "rounds", "users"
        )
        planned, kept = self.participation, sampler.participation
        some = (sampler.users(t) for t in range(min(plan.rounds, _LOOKED_AT)))
        if isinstance(planned, ShiftingPoissonSampling):
            if kept != planned:
                raise ValueError(
                    f"the sampler keeps {kept.describe()}; the plan counts on other "
                    f"probabilities: {planned.describe()}"
                )
            groups = [group.users for group in sampler.groups]
            cohorts.check_batches(planned, some, groups)
            return
        if not isinstance(kept, PoissonSampling):
            raise ValueError(
                f"the sampler keeps {kept}, but the figures of DP-SGD hold for "
                f"{planned} only"
            )
        if not math.isclose(kept.probability, planned.probability, rel_tol=1e-9):
            raise ValueError(
                f"the sampler takes examples with probability {kept.probability:.6g}, "
                f"the plan counts on {planned.probability:.6g} (cohort_size="
                f"{plan.cohort_size} of population_size={planned.population_size})"
            )
        if sampler.population_size != planned.population_size:
            raise ValueError(
                f"the sampler draws from {sampler.population_size} examples, the plan "
                f"counts on {planned.population_size}"
            )
        if sampler.rounds < plan.rounds:
            raise ValueError(
                f"the sampler serves {sampler.rounds} steps, the plan {plan.rounds}"
            )
        cohorts.check_batches(planned, some)

    def facts(self, plan: "Plan") -> JsonObject:
        """Returns the population, and what composes: Rényi divergences."""
        population = self.participation.population_size
        return {
            "rho_note": RHO_NOTE,
            "renyi_divergence_by_order": {
                f"{order:g}": checks.finite(value)
                for order, value in plan.loss.renyi(ORDERS).items()
            },
            "population_size": population,
            "sampling_probability": plan.cohort_size / population,
            "mechanism": "dp_sgd",
        }


def accounting_of(participation: Participation | Sampling) -> Accounting:
    """Returns the accounting that a participation asks for."""
    if isinstance(participation, Sampling):
        return SampledGaussian(participation)
    return OneGaussian(check_schema(participation))
