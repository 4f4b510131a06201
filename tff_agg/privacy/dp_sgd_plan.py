"""The plan of DP-SGD: examples drawn by Poisson sampling, noise of its own each step.

It stands beside `Plan`, which is for DP-FTRL, and has the same figures, reports and
refusals. Its unit is one example, its neighbours differ by one example added or
removed, and its ε holds for Poisson sampling only.
"""

import dataclasses
import functools
import math
from typing import Any

from tff_agg.aliases import JsonObject
from tff_agg.privacy import checks, dp_sgd_words, guarantees, sampled_guarantees
from tff_agg.privacy.dp_sgd_words import RHO_NOTE
from tff_agg.privacy.plan_protocol import ReportWords, check_can_be_seen
from tff_agg.privacy.poisson import PoissonSampling, ShiftingPoissonSampling

ADJACENCY = (
    "add or remove: two data sets are neighbours if one comes from the other by adding "
    "or removing one example"
)
ORDERS = (1.5, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DPSGDPlan:
    """A run of DP-SGD as planned.

    Attributes:
      clip_norm: The largest L2 norm of one example's gradient.
      noise_multiplier: Standard deviation of a step's noise over the clip norm.
      batch_size: The expected batch size, and the fixed divisor of the sum.
      population_size: How many examples there are. Each is in a step's batch with
        probability `batch_size / population_size`.
      steps: The length of the run.
      delta: δ of the (ε, δ) figures.
      shift: Where the chances of examples move from step to step: those of each group.
        All figures are then of the group that is worst off.
      noise_seed_is_known: Whether anybody else can know the seed of the noise or of the
        sampling, as in tests and demos. Such a run has no guarantee: ρ and ε are
        infinite, whatever the noise.
      claimed_epsilon: If given, the plan is refused when its (nominal) ε is above it.

    Example:
      >>> plan = DPSGDPlan(clip_norm=1.0, noise_multiplier=3.0, batch_size=4096,
      ...                  population_size=50_000, steps=3068, delta=1e-5)
      >>> round(plan.epsilon, 2)
      7.42
    """

    clip_norm: float
    noise_multiplier: float
    batch_size: int
    population_size: int
    steps: int
    delta: float
    shift: ShiftingPoissonSampling | None = None
    noise_seed_is_known: bool = False
    claimed_epsilon: float | None = None

    def __post_init__(self) -> None:
        checks.check_positive("clip_norm", self.clip_norm)
        for name in ("batch_size", "population_size", "steps"):
            checks.check_count(name, getattr(self, name))
        if self.batch_size > self.population_size:
            raise ValueError(
                f"batch_size={self.batch_size} is above population_size="
                f"{self.population_size}"
            )
        checks.check_noise_multiplier(self.noise_multiplier)
        checks.check_delta(self.delta)
        if self.shift is not None:
            for chances in self.shift.probabilities:
                sampled_guarantees.check_sampling(chances, self.steps)
        if (claim := self.claimed_epsilon) is None:
            return
        checks.check_epsilon(claim)
        # A little slack: the claim may be a figure that was itself computed here.
        if self.nominal_epsilon > claim + 1e-5:
            raise ValueError(
                f"noise_multiplier={self.noise_multiplier} over {self.steps} steps "
                f"gives epsilon={self.nominal_epsilon:.6g} at delta={self.delta}, "
                f"above claimed_epsilon={claim:.6g}; use DPSGDPlan.for_epsilon to find "
                "the multiplier, or DPSGDPlan.steps_for_epsilon the steps"
            )

    @classmethod
    def for_epsilon(
        cls,
        epsilon: float,
        *,
        batch_size: int,
        population_size: int,
        steps: int,
        delta: float,
        **rest: Any,
    ) -> "DPSGDPlan":
        """Makes the plan with the least noise that reaches ε in so many steps.

        Example:
          plan = DPSGDPlan.for_epsilon(
              8.0, clip_norm=1.0, batch_size=4096, population_size=50_000,
              steps=3068, delta=1e-5)
          plan.noise_multiplier, plan.epsilon  # at most 8.0
        """
        if "noise_multiplier" in rest:
            raise ValueError("for_epsilon finds noise_multiplier; do not give it")
        # Refuses bad numbers by their names, before any search.
        plan = cls(
            noise_multiplier=1.0,
            batch_size=batch_size,
            population_size=population_size,
            steps=steps,
            delta=delta,
            **rest,
        )
        sigma = max(
            sampled_guarantees.dp_sgd_noise(epsilon, chance, steps, delta)
            for chance in plan._chances(steps)
        )
        return dataclasses.replace(
            plan, noise_multiplier=sigma, claimed_epsilon=epsilon
        )

    @classmethod
    def steps_for_epsilon(
        cls,
        epsilon: float,
        *,
        noise_multiplier: float,
        batch_size: int,
        population_size: int,
        delta: float,
        **rest: Any,
    ) -> "DPSGDPlan":
        """Makes the plan with the most steps that keep ε with so much noise.

        Raises:
          ValueError: Not even one step keeps it.
        """
        if "steps" in rest:
            raise ValueError("steps_for_epsilon finds steps; do not give it")
        if rest.get("shift") is not None:
            raise ValueError("steps_for_epsilon cannot go on with a shift: give steps")
        plan = cls(
            noise_multiplier=noise_multiplier,
            batch_size=batch_size,
            population_size=population_size,
            steps=1,
            delta=delta,
            **rest,
        )
        steps = sampled_guarantees.dp_sgd_steps(
            epsilon, noise_multiplier, plan.sampling_probability, delta
        )
        return dataclasses.replace(plan, steps=steps, claimed_epsilon=epsilon)

    @property
    def sampling_probability(self) -> float:
        """The chance of each example to be in a step's batch."""
        return self.batch_size / self.population_size

    @property
    def participation(self) -> PoissonSampling | ShiftingPoissonSampling:
        """How batches are made."""
        return self.shift or PoissonSampling(self.sampling_probability)

    def _chances(self, steps: int) -> list[sampled_guarantees.Chance]:
        """How often an example is taken, for each kind of example."""
        if self.shift is None:
            return [self.sampling_probability]
        # Groups that mirror each other are one to the accountant.
        first = (chances[:steps] for chances in self.shift.probabilities)
        return list({tuple(sorted(chances)): chances for chances in first}.values())

    def _epsilon(self, sigma: float, steps: int, method: str = "pld") -> float:
        """The ε of so many steps for the example that is worst off."""
        return max(
            sampled_guarantees.dp_sgd_epsilon(sigma, chance, steps, self.delta, method)
            for chance in self._chances(steps)
        )

    @property
    def releases(self) -> tuple[()]:
        """What else was released about the same examples: nothing that is counted."""
        return ()

    @property
    def rounds(self) -> int:
        """The steps, under the name that all plans share."""
        return self.steps

    @property
    def cohort_size(self) -> int:
        """The expected batch size, under the name that all plans share."""
        return self.batch_size

    @property
    def noise_stddev(self) -> float:
        """What unit noise is multiplied with before it is added to the clipped sum."""
        return self.noise_multiplier * self.clip_norm

    @property
    def adjacency(self) -> str:
        """What makes two data sets neighbours, in words."""
        return ADJACENCY

    @property
    def no_guarantee(self) -> str | None:
        """Why there is no guarantee, in words; None where there is one."""
        if self.noise_seed_is_known:
            return "none: the noise seed is known"
        return "none: no noise is added" if self.noise_multiplier == 0 else None

    @property
    def _private_multiplier(self) -> float:
        """The noise multiplier as far as it protects anybody."""
        return 0.0 if self.no_guarantee else self.noise_multiplier

    @property
    def rho(self) -> float:
        """The ρ of zCDP of all steps, without amplification: see `RHO_NOTE`."""
        return self.rho_after(self.steps)

    @property
    def epsilon(self) -> float:
        """ε at `delta` for all steps, by the tight conversion (PLD)."""
        return math.inf if self.no_guarantee else self.nominal_epsilon

    @functools.cached_property
    def nominal_epsilon(self) -> float:
        """What ε is if the noise seed is secret."""
        return self._epsilon(self.noise_multiplier, self.steps)

    @functools.cached_property
    def renyi(self) -> dict[float, float]:
        """The Rényi divergence of all steps at `ORDERS`; this is what composes."""
        found = [
            sampled_guarantees.dp_sgd_renyi(
                self._private_multiplier, chance, self.steps, ORDERS
            )
            for chance in self._chances(self.steps)
        ]
        return {order: max(of[order] for of in found) for order in ORDERS}

    def _check_steps(self, steps: int) -> None:
        """Refuses a number of steps that the plan does not have."""
        sampled_guarantees.check_sampling(self.sampling_probability, steps)
        if steps > self.steps:
            raise ValueError(f"the plan has {self.steps} steps, asked after {steps}")

    def rho_after(self, rounds: int) -> float:
        """Returns the ρ of so many steps, without amplification: see `RHO_NOTE`."""
        self._check_steps(rounds)
        return rounds * guarantees.rho(self._private_multiplier)

    def epsilon_after(self, rounds: int) -> float:
        """Returns the ε of so many steps, a number that was fixed in advance."""
        self._check_steps(rounds)
        if rounds == self.steps:
            return self.epsilon
        return self._epsilon(self._private_multiplier, rounds)

    def epsilon_so_far(self, rounds: int) -> float:
        """Returns an ε of so many steps that is quick to compute, and not below.

        It is that of Rényi accounting, as long as the whole plan's is not smaller.
        """
        self._check_steps(rounds)
        quick = self._epsilon(self._private_multiplier, rounds, "rdp")
        return min(quick, self.epsilon)

    def check_sampler(self, sampler: Any) -> None:
        """Refuses a sampler that does not keep what this plan counts on.

        Args:
          sampler: Has `participation` (a `PoissonSampling`), `population_size`,
            `rounds` and `users(round)`, the examples of a step's batch.

        Raises:
          ValueError: The sampler is not Poisson sampling with the plan's probability
            and population, serves fewer steps, cannot list its batches, or its batches
            are not what it says.
        """
        check_can_be_seen(
            sampler, "participation", "population_size", "rounds", "users"
        )
        kept = sampler.participation
        some = range(min(self.steps, _LOOKED_AT))
        if self.shift is not None:
            if kept != self.shift:
                raise ValueError(
                    f"the sampler keeps {kept.describe()}; the plan counts on other "
                    f"probabilities: {self.shift.describe()}"
                )
            groups = [group.users for group in sampler.groups]
            self.shift.check_batches((sampler.users(t) for t in some), groups)
            return
        if not isinstance(kept, PoissonSampling):
            raise ValueError(
                f"the sampler keeps {kept}, but the figures of DP-SGD hold for "
                f"{self.participation} only"
            )
        if not math.isclose(kept.probability, self.sampling_probability, rel_tol=1e-9):
            raise ValueError(
                f"the sampler takes examples with probability {kept.probability:.6g}, "
                f"the plan counts on {self.sampling_probability:.6g} (batch_size="
                f"{self.batch_size} of population_size={self.population_size})"
            )
        if sampler.population_size != self.population_size:
            raise ValueError(
                f"the sampler draws from {sampler.population_size} examples, the plan "
                f"counts on {self.population_size}"
            )
        if sampler.rounds < self.steps:
            raise ValueError(
                f"the sampler serves {sampler.rounds} steps, the plan {self.steps}"
            )
        kept.check_batches((sampler.users(t) for t in some), self.population_size)

    @property
    def report_words(self) -> ReportWords:
        """What the privacy report says about this plan."""
        return dp_sgd_words.report_words(self)

    def to_json(self) -> JsonObject:
        """Returns the plan and its guarantee as JSON values; infinity is None."""
        by_renyi = self._epsilon(self._private_multiplier, self.steps, "rdp")
        return {
            "rho": checks.finite(self.rho),
            "rho_note": RHO_NOTE,
            "epsilon": checks.finite(self.epsilon),
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier,
            "sensitivity": 1.0,
            "sensitivity_is_exact": True,
            "sensitivity_method": "one clipped gradient in one step",
            "epsilon_by_conversion": {
                "rdp": checks.finite(by_renyi),
                "pld": checks.finite(self.epsilon),
            },
            "renyi_divergence_by_order": {
                f"{order:g}": checks.finite(value)
                for order, value in self.renyi.items()
            },
            "noise_stddev": self.noise_stddev,
            "clip_norm": self.clip_norm,
            "cohort_size": self.batch_size,
            "population_size": self.population_size,
            "sampling_probability": self.sampling_probability,
            "rounds": self.steps,
            "mechanism": "dp_sgd",
            "mechanism_parameters": {},
            "participation": self.participation.to_json(),
            "adjacency": self.adjacency,
        }


# Enough to tell a fixed batch size or shuffled epochs from Poisson sampling.
_LOOKED_AT = 500
