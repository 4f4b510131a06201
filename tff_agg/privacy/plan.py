"""One plan: everything a guarantee rests on, in one object that cannot disagree.

The aggregator takes its clip norm and noise from the plan, the accountant its figures,
the sampler's schema is compared with the plan's, and contradictions are refused before
anything runs.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from tff_agg.aliases import Ids, JsonObject
from tff_agg.noise.mechanism import Mechanism
from tff_agg.privacy import checks, cohorts, dp_ftrl_words, guarantees, tf_privacy
from tff_agg.privacy import sensitivity as sensitivities
from tff_agg.privacy.participation import (
    AtMostOnce,
    Participation,
    check_schema,
    implies,
)
from tff_agg.privacy.plan_protocol import ReportWords, Sampler, check_can_be_seen
from tff_agg.privacy.releases import Release, delta_left, names_of

ADJACENCY = (
    "zero-out: two data sets are neighbours if one comes from the other by replacing "
    "all contributions of one user with zero, everything else (the rounds, the other "
    "users' cohorts and the fixed divisor) staying as it is"
)

NO_NOISE = "none: no noise is added"
KNOWN_SEED = "none: the noise seed is known"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """A private run as planned.

    Attributes:
      clip_norm: The largest L2 norm of one user's update in one round.
      cohort_size: The fixed divisor of the clipped sum: the planned users per round.
      rounds: The length of the run.
      mechanism: The noise; it must serve all rounds.
      noise_multiplier: Standard deviation of the noise over the WHOLE sensitivity of
        the mechanism under `participation`. Not TF-Privacy's per-node multiplier: for
        that see `from_per_node_multiplier`.
      participation: In which rounds one user may take part; once by default.
      delta: δ of the (ε, δ) figures.
      releases: What else was released about the same users, such as a vocabulary with
        noise. Its ρ and δ are counted in all figures of the plan.
      noise_seed_is_known: Whether anybody but the server can know the noise seed, as in
        tests and demos. Such a run has no guarantee: ρ and ε are infinite, whatever the
        noise. What the noise would be worth is `nominal_rho` and `nominal_epsilon`.
      claimed_epsilon: If given, the plan is refused when its (nominal) ε is above it.
      claimed_sensitivity: If given, the plan is refused when the mechanism's
        sensitivity to updates of norm 1 is above it.

    Example:
      >>> plan = Plan(clip_norm=1.0, cohort_size=100, rounds=2000,
      ...             mechanism=tree(), noise_multiplier=0.341)
      >>> round(plan.rho, 2), round(plan.noise_stddev, 3)
      (4.3, 1.131)
    """

    clip_norm: float
    cohort_size: int
    rounds: int
    mechanism: Mechanism
    noise_multiplier: float
    participation: Participation = dataclasses.field(default_factory=AtMostOnce)
    delta: float = 1e-6
    releases: Sequence[Release] = ()
    noise_seed_is_known: bool = False
    claimed_epsilon: float | None = None
    claimed_sensitivity: float | None = None

    def __post_init__(self) -> None:
        checks.check_positive("clip_norm", self.clip_norm)
        checks.check_count("cohort_size", self.cohort_size)
        checks.check_count("rounds", self.rounds)
        checks.check_noise_multiplier(self.noise_multiplier)
        checks.check_delta(self.delta)
        if not isinstance(self.mechanism, Mechanism):
            raise TypeError(f"mechanism must be a Mechanism, got {self.mechanism!r}")
        check_schema(self.participation)
        delta_left(self.delta, self.releases)
        self.mechanism.check_rounds(self.rounds)
        self.participation.largest(self.rounds)
        self._check_claims()

    def _check_claims(self) -> None:
        """Refuses claims that the rest of the plan does not keep."""
        if (claim := self.claimed_sensitivity) is not None:
            checks.check_positive("claimed_sensitivity", claim)
            if self.sensitivity.value > claim * (1 + 1e-9):
                raise ValueError(
                    f"the sensitivity of {self.mechanism.name} is "
                    f"{self.sensitivity.value:.6g} ({self.sensitivity.method}), above "
                    f"claimed_sensitivity={claim:.6g}"
                )
        if (claim := self.claimed_epsilon) is None:
            return
        checks.check_epsilon(claim)
        if self.noise_multiplier == 0:
            raise ValueError(
                f"claimed_epsilon={claim} needs noise, but noise_multiplier is 0; "
                "use Plan.for_epsilon to find the multiplier"
            )
        # A little slack: the claim may be a figure that was itself computed here.
        if self.nominal_epsilon > claim * (1 + 1e-9):
            raise ValueError(
                f"noise_multiplier={self.noise_multiplier} gives epsilon="
                f"{self.nominal_epsilon:.6g} at delta={self.delta}, above "
                f"claimed_epsilon={claim:.6g}; use Plan.for_epsilon to find the "
                "multiplier"
            )

    @classmethod
    def for_epsilon(
        cls,
        epsilon: float,
        *,
        delta: float = 1e-6,
        releases: Sequence[Release] = (),
        **rest: Any,
    ) -> "Plan":
        """Makes the plan with the least noise that reaches ε at δ, releases included.

        Example:
          >>> plan = Plan.for_epsilon(8.0, clip_norm=1.0, cohort_size=100,
          ...                         rounds=2000, mechanism=tree())
          >>> plan.epsilon <= 8.0
          True
        """
        if "noise_multiplier" in rest:
            raise ValueError("for_epsilon finds noise_multiplier; do not give it")
        checks.check_delta(delta)
        sigma = guarantees.calibrate(epsilon, delta_left(delta, releases))
        if (spent := sum(release.rho for release in releases)) > 0:
            whole = guarantees.rho(sigma)
            if (left := whole - spent) <= 0:
                raise ValueError(
                    f"epsilon={epsilon:g} at delta={delta:g} allows a rho of "
                    f"{whole:.4g}, and {names_of(releases)} spent {spent:.4g}: nothing "
                    "is left for training; ask for a larger epsilon"
                )
            # Rounded up, so that the sum does not exceed ε by the last digit.
            sigma = math.sqrt(0.5 / left) * (1 + 1e-12)
        return cls(
            noise_multiplier=sigma,
            delta=delta,
            releases=releases,
            claimed_epsilon=epsilon,
            **rest,
        )

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
        per_node = checks.check_noise_multiplier(per_node_multiplier)
        sigma = per_node / unit.sensitivity.value
        return dataclasses.replace(unit, noise_multiplier=sigma)

    @functools.cached_property
    def sensitivity(self) -> sensitivities.Sensitivity:
        """The mechanism's sensitivity to one user with updates of norm at most 1."""
        return sensitivities.sensitivity(
            self.mechanism, self.participation, self.rounds
        )

    @property
    def noise_stddev(self) -> float:
        """What unit noise is multiplied with before it is added to the clipped sum."""
        return self.noise_multiplier * self.clip_norm * self.sensitivity.value

    @property
    def per_node_multiplier(self) -> float:
        """TF-Privacy's noise multiplier of the same noise, for tree mechanisms."""
        if self.mechanism.forest is None:
            raise ValueError(
                f"only trees have a per-node multiplier, not {self.mechanism.name}"
            )
        return self.noise_multiplier * self.sensitivity.value

    @property
    def report_words(self) -> ReportWords:
        """What a report says about this kind of plan."""
        return dp_ftrl_words.report_words(self)

    @property
    def adjacency(self) -> str:
        """What makes two data sets neighbours, in words."""
        return ADJACENCY

    @property
    def no_guarantee(self) -> str | None:
        """Why there is no guarantee, in words; None where there is one."""
        if self.noise_seed_is_known:
            return KNOWN_SEED
        return NO_NOISE if self.noise_multiplier == 0 else None

    @property
    def rho(self) -> float:
        """The ρ of zero-concentrated differential privacy: the run and all releases."""
        return math.inf if self.no_guarantee else self.nominal_rho

    @property
    def nominal_rho(self) -> float:
        """What ρ is if the noise seed is secret."""
        return guarantees.rho(self.noise_multiplier) + self._spent_before

    @property
    def _spent_before(self) -> float:
        """The ρ of all releases."""
        return math.fsum(release.rho for release in self.releases)

    @property
    def training_rho(self) -> float:
        """The ρ of the run alone, without the releases before it."""
        return math.inf if self.no_guarantee else guarantees.rho(self.noise_multiplier)

    @functools.cached_property
    def epsilons(self) -> guarantees.Epsilons:
        """ε at `delta` for the run and all releases, by several conversions."""
        sigma = self._whole_multiplier(self.noise_multiplier)
        return guarantees.gaussian_epsilons(
            0.0 if self.no_guarantee else sigma, self._delta_left
        )

    @property
    def epsilon(self) -> float:
        """ε at `delta` for the run and all releases, by the tight conversion."""
        return math.inf if self.no_guarantee else self.nominal_epsilon

    @functools.cached_property
    def nominal_epsilon(self) -> float:
        """What ε is if the noise seed is secret."""
        sigma = self._whole_multiplier(self.noise_multiplier)
        return guarantees.gaussian_epsilon(sigma, self._delta_left)

    def epsilon_of(self, rho: float) -> float:
        """Returns ε at `delta` of a ρ that includes that of the releases."""
        return guarantees.gaussian_epsilon_of(rho, self._delta_left)

    @property
    def _delta_left(self) -> float:
        """The part of δ that the releases leave to the noise."""
        return delta_left(self.delta, self.releases)

    def _whole_multiplier(self, training: float) -> float:
        """Returns the multiplier of the one Gaussian mechanism that has all the ρ."""
        if not self._spent_before or not training:
            return training
        return math.sqrt(0.5 / (guarantees.rho(training) + self._spent_before))

    @property
    def rho_if_read_as_per_node(self) -> float:
        """ρ if `noise_multiplier` were meant per node of an unrestarted tree.

        Printed next to `rho` so that the two readings are never confused.
        """
        return tf_privacy.rho_of_per_node(
            self.noise_multiplier, self.rounds, self.participation
        )

    def _multiplier_after(self, rounds: int, quick: bool = False) -> float:
        """Returns the noise multiplier relative to what so many rounds reveal.

        0 where there is no guarantee; without the releases.
        """
        checks.check_count("rounds", rounds)
        if rounds > self.rounds:
            raise ValueError(f"the plan has {self.rounds} rounds, asked after {rounds}")
        if self.no_guarantee:
            return 0.0
        if quick:
            so_far = sensitivities.so_far(
                self.mechanism, self.participation, rounds, self.rounds
            )
        else:
            so_far = sensitivities.sensitivity(
                self.mechanism, self.participation.cut(rounds), rounds
            )
        # An upper bound may be looser for fewer rounds; the whole run bounds it too.
        value = min(so_far.value, self.sensitivity.value)
        return self.noise_multiplier * self.sensitivity.value / value

    def rho_after(self, rounds: int) -> float:
        """Returns the ρ spent if the run stops after so many rounds.

        The number has to be fixed in advance. If the run is stopped because of what it
        showed, its last round depends on the data, and `rho` holds.
        """
        return guarantees.rho(self._multiplier_after(rounds)) + self._spent_before

    def epsilon_after(self, rounds: int) -> float:
        """Returns the ε spent if the run stops after so many rounds, fixed in advance.

        As for `rho_after`: otherwise `epsilon` holds.
        """
        sigma = self._whole_multiplier(self._multiplier_after(rounds))
        return guarantees.gaussian_epsilon(sigma, self._delta_left)

    def epsilon_so_far(self, rounds: int) -> float:
        """Returns an ε of so many rounds that is quick to compute, and not below."""
        sigma = self._whole_multiplier(self._multiplier_after(rounds, quick=True))
        return guarantees.gaussian_epsilon(sigma, self._delta_left)

    def check_sampler(self, sampler: Sampler) -> None:
        """Refuses a sampler that does not keep what this plan counts on.

        Args:
          sampler: Has `participation` (its schema), `rounds`, `cohort_size` and
            `users(round)`, the users of a round's cohort.

        Raises:
          ValueError: The sampler cannot list its users, its schema allows more than
            the plan's, its run is shorter, its cohort size is not the plan's, or a
            cohort breaks the schema.
          TypeError: Its schema is none of user-level privacy.
        """
        check_can_be_seen(sampler, "participation", "rounds", "cohort_size", "users")
        kept = check_schema(sampler.participation)
        if not implies(kept, self.participation, self.rounds):
            raise ValueError(
                f"the sampler keeps {kept}, which allows more than the plan's "
                f"{self.participation} over {self.rounds} rounds"
            )
        if sampler.rounds < self.rounds:
            raise ValueError(
                f"the sampler serves {sampler.rounds} rounds, the plan {self.rounds}"
            )
        if sampler.cohort_size != self.cohort_size:
            raise ValueError(
                f"the sampler draws cohorts of {sampler.cohort_size}, the plan divides "
                f"by {self.cohort_size}"
            )
        self.check_cohorts(sampler.users(t) for t in range(self.rounds))

    def check_cohorts(self, users: Iterable[Ids]) -> None:
        """Refuses cohorts, given round by round, that break the schema.

        Raises:
          cohorts.ParticipationError: Names the user and its rounds.
        """
        cohorts.check_cohorts(self.participation, users)

    def to_json(self) -> JsonObject:
        """Returns the plan and its guarantee as JSON values; infinity is None.

        Without a guarantee, because no noise is added or because its seed is known, all
        ρ and ε are None.
        """
        epsilons = {key: checks.finite(x) for key, x in self.epsilons._asdict().items()}
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
            "epsilon_by_conversion": epsilons,
            "noise_stddev": self.noise_stddev,
            "clip_norm": self.clip_norm,
            "cohort_size": self.cohort_size,
            "rounds": self.rounds,
            "mechanism": self.mechanism.name,
            "mechanism_parameters": dict(self.mechanism.parameters),
            "participation": self.participation.to_json(),
            "adjacency": self.adjacency,
            "rho_if_read_as_per_node_multiplier": None
            if self.no_guarantee
            else checks.finite(self.rho_if_read_as_per_node),
        }
