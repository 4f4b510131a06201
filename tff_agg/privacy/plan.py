"""One plan: everything a guarantee rests on, in one object that cannot disagree.

The noisy mean takes its clip norm and noise from the plan, the accountant its figures,
the sampler's schema is compared with the plan's, and contradictions are refused before
anything runs.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

from tff_agg import checks
from tff_agg.aliases import JsonObject
from tff_agg.noise.mechanism import Mechanism
from tff_agg.privacy import losses
from tff_agg.privacy.accounting import Accounting, accounting_of
from tff_agg.privacy.losses import Loss
from tff_agg.privacy.participation import AtMostOnce, Participation, Sampling
from tff_agg.privacy.releases import Release, delta_left
from tff_agg.privacy.sensitivity import Sensitivity

NO_NOISE = "none: no noise is added"
KNOWN_SEED = "none: the noise seed is known"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """A private run as planned: by DP-FTRL over users, or by DP-SGD over examples.

    Attributes:
      clip_norm: The largest L2 norm of one user's update in one round, or of one
        example's gradient in one step.
      cohort_size: The fixed divisor of the clipped sum: the planned users per round, or
        the expected size of a sampled batch.
      rounds: The length of the run.
      mechanism: The noise; it must serve all rounds.
      noise_multiplier: Standard deviation of the noise over the WHOLE sensitivity of
        the mechanism under `participation`. Not TF-Privacy's per-node multiplier: for
        that see `from_per_node_multiplier`. Where batches are sampled, over the clip
        norm.
      participation: In which rounds one user may take part; once by default. With
        `PoissonSampling` or `ShiftingPoissonSampling` the plan is one of DP-SGD: every
        step draws its examples anew, and one example is what is protected.
      delta: δ of the (ε, δ) figures.
      releases: What else was released about the same users, such as a vocabulary with
        noise. Its ρ and δ are counted in all figures of the plan.
      noise_seed_is_known: Whether anybody but the server can know the noise seed, or
        that of the sampling, as in tests and demos. Such a run has no guarantee: ρ and
        ε are infinite, whatever the noise. What the noise would be worth is
        `nominal_rho` and `nominal_epsilon`.
      claimed_epsilon: If given, the plan is refused when its (nominal) ε is above it.
      claimed_sensitivity: If given, the plan is refused when the mechanism's
        sensitivity to updates of norm 1 is above it.

    Example:
      >>> plan = Plan(clip_norm=1.0, cohort_size=100, rounds=2000,
      ...             mechanism=tree(), noise_multiplier=0.341)
      >>> round(plan.rho, 2), round(plan.noise_stddev, 3)
      (4.3, 1.131)
      >>> plan = Plan(clip_norm=1.0, cohort_size=4096, rounds=3068, delta=1e-5,
      ...             mechanism=identity(), noise_multiplier=3.0,
      ...             participation=tff_agg.privacy.PoissonSampling.of(4096, 50_000))
      >>> round(plan.epsilon, 2)
      7.42
    """

    clip_norm: float
    cohort_size: int
    rounds: int
    mechanism: Mechanism
    noise_multiplier: float
    participation: Participation | Sampling = dataclasses.field(
        default_factory=AtMostOnce
    )
    delta: float = 1e-6
    releases: Sequence[Release] = ()
    noise_seed_is_known: bool = False
    claimed_epsilon: float | None = None
    claimed_sensitivity: float | None = None

    def __post_init__(self) -> None:
        checks.number("clip_norm", self.clip_norm, "(0, inf)")
        checks.make_whole(self, "cohort_size", "rounds")
        checks.noise_multiplier(self.noise_multiplier)
        checks.delta(self.delta)
        if not isinstance(self.mechanism, Mechanism):
            raise TypeError(f"mechanism must be a Mechanism, got {self.mechanism!r}")
        delta_left(self.delta, self.releases)
        self.accounting.check(self)
        self.mechanism.check_rounds(self.rounds)
        self._check_claims()

    def _check_claims(self) -> None:
        """Refuses claims that the rest of the plan does not keep."""
        if (claim := self.claimed_sensitivity) is not None:
            checks.number("claimed_sensitivity", claim, "(0, inf)")
            if self.sensitivity.value > claim * (1 + 1e-9):
                raise ValueError(
                    f"the sensitivity of {self.mechanism.name} is "
                    f"{self.sensitivity.value:.6g} ({self.sensitivity.method}), above "
                    f"claimed_sensitivity={claim:.6g}"
                )
        if (claim := self.claimed_epsilon) is None:
            return
        checks.epsilon(claim)
        if self.noise_multiplier == 0:
            raise ValueError(
                f"claimed_epsilon={claim} needs noise, but noise_multiplier is 0; "
                "use Plan.for_epsilon to find the multiplier"
            )
        # A little slack: the claim may be a figure that was itself computed here.
        if self.nominal_epsilon > claim * (1 + 1e-9):
            raise ValueError(
                f"noise_multiplier={self.noise_multiplier} over {self.rounds} rounds "
                f"gives epsilon={self.nominal_epsilon:.6g} at delta={self.delta}, "
                f"above claimed_epsilon={claim:.6g}; use Plan.for_epsilon to find the "
                "multiplier, or Plan.rounds_for_epsilon the steps of DP-SGD"
            )

    @classmethod
    def for_epsilon(cls, epsilon: float, **rest: Any) -> "Plan":
        """Makes the plan with the least noise that reaches ε at δ, releases included.

        Args:
          epsilon: The ε to reach.
          **rest: All that a plan needs, but for the noise multiplier.

        Example:
          >>> plan = Plan.for_epsilon(8.0, clip_norm=1.0, cohort_size=100,
          ...                         rounds=2000, mechanism=tree())
          >>> plan.epsilon <= 8.0
          True
        """
        return cls._found("noise_multiplier", 1.0, epsilon, rest)

    @classmethod
    def rounds_for_epsilon(cls, epsilon: float, **rest: Any) -> "Plan":
        """Makes the plan of DP-SGD with the most steps that keep ε with so much noise.

        Raises:
          ValueError: Not even one step keeps it.
        """
        return cls._found("rounds", 1, epsilon, rest)

    @classmethod
    def _found(cls, sought: str, at_first: float, epsilon: float, rest: Any) -> "Plan":
        """Makes a plan that keeps ε, but for one number, and finds that."""
        name = "for_epsilon" if sought == "noise_multiplier" else "rounds_for_epsilon"
        if sought in rest:
            raise ValueError(f"{name} finds {sought}; do not give it")
        # Refuses bad numbers by their names, before any search.
        plan = cls(**(rest | {sought: at_first}))
        checks.epsilon(epsilon)
        kind, left, spent = plan.accounting, plan._delta_left, plan._spent_before
        search = kind.noise_for if sought == "noise_multiplier" else kind.rounds_for
        if spent.epsilon(left) >= epsilon:
            names = ", ".join(release.name for release in plan.releases)
            raise ValueError(
                f"epsilon={epsilon:g} at delta={plan.delta:g}: of its rho, "
                f"{names} spent {spent.rho:.4g}: nothing is left for "
                "training; ask for a larger epsilon"
            )
        found = search(plan, epsilon, left, spent)
        result: dict[str, Any] = {sought: found, "claimed_epsilon": epsilon}
        return dataclasses.replace(plan, **result)

    @classmethod
    def from_per_node_multiplier(
        cls, per_node_multiplier: float, *, mechanism: Mechanism, **rest: Any
    ) -> "Plan":
        """Makes the plan whose tree has TF-Privacy's per-node noise multiplier.

        The noise of each node is `per_node_multiplier` times the clip norm.
        """
        if mechanism.forest is None:
            raise ValueError(
                f"per_node_multiplier needs a tree mechanism, got {mechanism.name}"
            )
        unit = cls(noise_multiplier=1.0, mechanism=mechanism, **rest)
        per_node = checks.noise_multiplier(per_node_multiplier)
        sigma = per_node / unit.sensitivity.value
        return dataclasses.replace(unit, noise_multiplier=sigma)

    @functools.cached_property
    def accounting(self) -> Accounting:
        """How noise becomes a loss; follows from the participation."""
        return accounting_of(self.participation)

    @functools.cached_property
    def sensitivity(self) -> Sensitivity:
        """What one unit of the noise multiplier covers, for a clip norm of 1."""
        return self.accounting.sensitivity(self)

    @property
    def noise_stddev(self) -> float:
        """What unit noise is multiplied with before it is added to the clipped sum."""
        return self.noise_multiplier * self.clip_norm * self.sensitivity.value

    @property
    def most_users(self) -> int | None:
        """The most users in a round; None where batches are drawn by chance."""
        return self.accounting.most_users(self)

    @property
    def per_node_multiplier(self) -> float:
        """TF-Privacy's noise multiplier of the same noise, for tree mechanisms."""
        if self.mechanism.forest is None:
            raise ValueError(
                f"only trees have a per-node multiplier, not {self.mechanism.name}"
            )
        return self.noise_multiplier * self.sensitivity.value

    @property
    def adjacency(self) -> str:
        """What makes two data sets neighbours, in words."""
        return self.accounting.adjacency

    @property
    def no_guarantee(self) -> str | None:
        """Why there is no guarantee, in words; None where there is one."""
        if self.noise_seed_is_known:
            return KNOWN_SEED
        return NO_NOISE if self.noise_multiplier == 0 else None

    @functools.cached_property
    def training_loss(self) -> Loss:
        """The loss of training alone, if the noise seed is secret."""
        return self.accounting.loss(self, self.noise_multiplier, self.rounds)

    @property
    def _spent_before(self) -> Loss:
        """The loss of all releases."""
        return sum((release.loss for release in self.releases), Loss())

    @property
    def _delta_left(self) -> float:
        """The part of δ that the releases leave to the noise."""
        return delta_left(self.delta, self.releases)

    @property
    def loss(self) -> Loss:
        """The loss of the run and all releases."""
        if self.no_guarantee:
            return losses.UNBOUNDED
        return self.training_loss + self._spent_before

    def _loss_after(self, rounds: int, quick: bool = False) -> Loss:
        """Returns the loss of the first rounds and all releases."""
        checks.whole("rounds", rounds)
        if rounds > self.rounds:
            raise ValueError(f"the plan has {self.rounds} rounds, asked after {rounds}")
        if self.no_guarantee or rounds == self.rounds:
            return self.loss
        found = self.accounting.loss(self, self.noise_multiplier, rounds, quick)
        return found + self._spent_before

    @property
    def rho(self) -> float:
        """The ρ of zero-concentrated differential privacy: the run and all releases."""
        return self.loss.rho

    @property
    def training_rho(self) -> float:
        """The ρ of the run alone, without the releases before it."""
        return math.inf if self.no_guarantee else self.training_loss.rho

    @functools.cached_property
    def epsilons(self) -> dict[str, float]:
        """ε at `delta` for the run and all releases, by several conversions."""
        return self.loss.epsilons(self._delta_left)

    @functools.cached_property
    def epsilon(self) -> float:
        """ε at `delta` for the run and all releases, by the tight conversion."""
        return self.loss.epsilon(self._delta_left)

    @property
    def nominal_rho(self) -> float:
        """What ρ is if the noise seed is secret."""
        return (self.training_loss + self._spent_before).rho

    @functools.cached_property
    def nominal_epsilon(self) -> float:
        """What ε is if the noise seed is secret."""
        return (self.training_loss + self._spent_before).epsilon(self._delta_left)

    def rho_after(self, rounds: int) -> float:
        """Returns the ρ spent if the run stops after so many rounds.

        The number has to be fixed in advance. If the run is stopped because of what it
        showed, its last round depends on the data, and `rho` holds.
        """
        return self._loss_after(rounds).rho

    def epsilon_after(self, rounds: int) -> float:
        """Returns the ε spent if the run stops after so many rounds, fixed in advance.

        As for `rho_after`: otherwise `epsilon` holds.
        """
        return self._loss_after(rounds).epsilon(self._delta_left)

    def epsilon_so_far(self, rounds: int) -> float:
        """Returns an ε of so many rounds that is quick to compute, and not below.

        Sampled steps are composed by Rényi accounting, as long as the whole plan's ε is
        not smaller.
        """
        loss = self._loss_after(rounds, quick=True)
        method = "rdp" if loss.kinds else "tight"
        return min(loss.epsilon(self._delta_left, method), self.epsilon)

    def check_sampler(self, sampler: Any) -> None:
        """Refuses a sampler that does not keep what this plan counts on.

        Args:
          sampler: Has `participation` (its schema), `rounds` and `users(round)`, the
            users of a round's cohort; also `cohort_size`, or `population_size` where
            batches are sampled.

        Raises:
          ValueError: The sampler cannot list its users, its schema allows more than
            the plan's, its run is shorter, its cohort size is not the plan's, or a
            cohort breaks the schema. Of sampled batches: their probability or
            population is not the plan's, or they are not drawn as they should be.
          TypeError: Its schema is none of user-level privacy, but the plan's is.
        """
        self.accounting.check_sampler(self, sampler)

    def to_json(self) -> JsonObject:
        """Returns the plan and its guarantee as JSON values; infinity is None.

        Without a guarantee, because no noise is added or because its seed is known, all
        ρ and ε are None.
        """
        return {
            "rho": checks.finite(self.rho),
            "training_rho": checks.finite(self.training_rho),
            "epsilon": checks.finite(self.epsilon),
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier,
            "noise_seed_is_known": self.noise_seed_is_known,
            "releases": [release.to_json() for release in self.releases],
            "sensitivity": self.sensitivity.value,
            "sensitivity_is_exact": self.sensitivity.exact,
            "sensitivity_method": self.sensitivity.method,
            "epsilon_by_conversion": {
                name: checks.finite(value) for name, value in self.epsilons.items()
            },
            "noise_stddev": self.noise_stddev,
            "clip_norm": self.clip_norm,
            "cohort_size": self.cohort_size,
            "rounds": self.rounds,
            "mechanism": self.mechanism.name,
            "mechanism_parameters": dict(self.mechanism.parameters),
            "participation": self.participation.to_json(),
            "adjacency": self.adjacency,
            **self.accounting.facts(self),
        }
