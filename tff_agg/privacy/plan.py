"""One plan: everything a guarantee rests on, in one object that cannot disagree.

The aggregator takes its clip norm and noise from the plan, the accountant its figures,
the sampler's schema is compared with the plan's, and contradictions are refused before
anything runs.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from tff_agg.noise.mechanism import Mechanism
from tff_agg.privacy import guarantees, tf_privacy
from tff_agg.privacy import sensitivity as sensitivities
from tff_agg.privacy.participation import (
    AtMostOnce,
    FixedEpochOrder,
    MinSeparation,
    Participation,
    implies,
)

ADJACENCY = (
    "zero-out: two data sets are neighbours if one comes from the other by replacing "
    "all contributions of one user with zero, everything else (the rounds, the other "
    "users' cohorts and the fixed divisor) staying as it is"
)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """A private run as planned.

    Attributes:
      clip_norm: The largest L2 norm of one user's update in one round.
      cohort_size: The fixed divisor of the clipped sum: the planned users a round.
      rounds: The length of the run.
      mechanism: The noise; it must serve all rounds.
      noise_multiplier: Standard deviation of the noise over the WHOLE sensitivity of
        the mechanism under `participation`. Not TF-Privacy's per-node multiplier: for
        that see `from_per_node_multiplier`.
      participation: In which rounds one user may take part; once by default.
      delta: δ of the (ε, δ) figures.
      claimed_epsilon: If given, the plan is refused when its ε is above it.
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
    claimed_epsilon: float | None = None
    claimed_sensitivity: float | None = None

    def __post_init__(self) -> None:
        _check_positive("clip_norm", self.clip_norm)
        _check_count("cohort_size", self.cohort_size)
        _check_count("rounds", self.rounds)
        guarantees.check_noise_multiplier(self.noise_multiplier)
        guarantees.check_delta(self.delta)
        if not isinstance(self.mechanism, Mechanism):
            raise TypeError(f"mechanism must be a Mechanism, got {self.mechanism!r}")
        schemas = (AtMostOnce, MinSeparation, FixedEpochOrder)
        if not isinstance(self.participation, schemas):
            raise TypeError(
                "participation must be AtMostOnce, MinSeparation or FixedEpochOrder, "
                f"got {self.participation!r}"
            )
        self.mechanism.check_rounds(self.rounds)
        self.participation.largest(self.rounds)
        self._check_claims()

    def _check_claims(self) -> None:
        """Refuses claims that the rest of the plan does not keep."""
        if (claim := self.claimed_sensitivity) is not None:
            _check_positive("claimed_sensitivity", claim)
            if self.sensitivity.value > claim * (1 + 1e-9):
                raise ValueError(
                    f"the sensitivity of {self.mechanism.name} is "
                    f"{self.sensitivity.value:.6g} ({self.sensitivity.method}), above "
                    f"claimed_sensitivity={claim:.6g}"
                )
        if (claim := self.claimed_epsilon) is None:
            return
        guarantees.check_epsilon(claim)
        if self.noise_multiplier == 0:
            raise ValueError(
                f"claimed_epsilon={claim} needs noise, but noise_multiplier is 0; "
                "use Plan.for_epsilon to find the multiplier"
            )
        # A little slack: the claim may be a figure that was itself computed here.
        if self.epsilon > claim + 1e-5:
            raise ValueError(
                f"noise_multiplier={self.noise_multiplier} gives epsilon="
                f"{self.epsilon:.6g} at delta={self.delta}, above claimed_epsilon="
                f"{claim:.6g}; use Plan.for_epsilon to find the multiplier"
            )

    @classmethod
    def for_epsilon(cls, epsilon: float, *, delta: float = 1e-6, **rest: Any) -> "Plan":
        """Makes the plan with the least noise that reaches ε at δ.

        Example:
          >>> plan = Plan.for_epsilon(8.0, clip_norm=1.0, cohort_size=100,
          ...                         rounds=2000, mechanism=tree())
          >>> plan.epsilon <= 8.0
          True
        """
        if "noise_multiplier" in rest:
            raise ValueError("for_epsilon finds noise_multiplier; do not give it")
        sigma = guarantees.calibrate(epsilon, delta)
        return cls(noise_multiplier=sigma, delta=delta, claimed_epsilon=epsilon, **rest)

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
        per_node = guarantees.check_noise_multiplier(per_node_multiplier)
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
    def adjacency(self) -> str:
        """What makes two data sets neighbours, in words."""
        return ADJACENCY

    @property
    def rho(self) -> float:
        """The ρ of zero-concentrated differential privacy, for the whole run."""
        return guarantees.rho(self.noise_multiplier)

    @functools.cached_property
    def epsilons(self) -> guarantees.Epsilons:
        """ε at `delta` for the whole run, by several conversions."""
        return guarantees.gaussian_epsilons(self.noise_multiplier, self.delta)

    @functools.cached_property
    def epsilon(self) -> float:
        """ε at `delta` for the whole run, by the tight conversion (PLD)."""
        return guarantees.gaussian_epsilon(self.noise_multiplier, self.delta)

    @property
    def rho_if_read_as_per_node(self) -> float:
        """ρ if `noise_multiplier` were meant per node of an unrestarted tree.

        Printed next to `rho` so that the two readings are never confused.
        """
        return tf_privacy.rho_of_per_node(
            self.noise_multiplier, self.rounds, self.participation
        )

    def _multiplier_after(self, rounds: int) -> float:
        """Returns the noise multiplier relative to what so many rounds reveal."""
        _check_count("rounds", rounds)
        if rounds > self.rounds:
            raise ValueError(f"the plan has {self.rounds} rounds, asked after {rounds}")
        so_far = sensitivities.sensitivity(
            self.mechanism, self.participation.cut(rounds), rounds
        )
        # An upper bound may be looser for fewer rounds; the whole run bounds it too.
        value = min(so_far.value, self.sensitivity.value)
        return self.noise_multiplier * self.sensitivity.value / value

    def rho_after(self, rounds: int) -> float:
        """Returns the ρ spent when the run stops after so many rounds."""
        return guarantees.rho(self._multiplier_after(rounds))

    def epsilon_after(self, rounds: int) -> float:
        """Returns the ε spent when the run stops after so many rounds."""
        return guarantees.gaussian_epsilon(self._multiplier_after(rounds), self.delta)

    def check_sampler(self, sampler: Any) -> None:
        """Refuses a sampler that does not keep what this plan counts on.

        Args:
          sampler: Has `participation` (its schema), `rounds`, `cohort_size` and, if
            its cohorts are to be looked at as well, `users(round)`.

        Raises:
          ValueError: The sampler's schema allows more than the plan's, its run is
            shorter, its cohort size is not the plan's, or a cohort breaks the schema.
        """
        if not implies(sampler.participation, self.participation, self.rounds):
            raise ValueError(
                f"the sampler keeps {sampler.participation}, which allows more than "
                f"the plan's {self.participation} over {self.rounds} rounds"
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
        if hasattr(sampler, "users"):
            self.check_cohorts(sampler.users(t) for t in range(self.rounds))

    def check_cohorts(self, cohorts: Iterable[Any]) -> None:
        """Refuses cohorts, given round by round, that break the schema.

        Raises:
          ValueError: Names the user and its rounds.
        """
        rounds_of: dict[Any, list[int]] = collections.defaultdict(list)
        for t, users in enumerate(cohorts):
            for user in np.asarray(users).tolist():
                rounds_of[user].append(t)
        for user, rounds in rounds_of.items():
            twice = len(set(rounds)) < len(rounds)
            if twice or not self.participation.allows(rounds):
                raise ValueError(
                    f"user {user!r} takes part in rounds {rounds[:20]}, but the plan "
                    f"counts on this: {self.participation.describe()}"
                )

    def to_json(self) -> dict[str, Any]:
        """Returns the plan and its guarantee as JSON values; infinity is None."""
        epsilons = {key: _finite(x) for key, x in self.epsilons._asdict().items()}
        return {
            "rho": _finite(self.rho),
            "epsilon": _finite(self.epsilon),
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier,
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
            "rho_if_read_as_per_node_multiplier": _finite(self.rho_if_read_as_per_node),
        }


def _finite(value: float) -> float | None:
    """Returns None for infinity, which JSON does not know."""
    return value if math.isfinite(value) else None


def _check_positive(name: str, value: Any) -> None:
    """Refuses what is not a positive finite number."""
    number = isinstance(value, int | float | np.integer | np.floating)
    if not number or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive finite number, got {value!r}")


def _check_count(name: str, value: Any) -> None:
    """Refuses what is not an integer of at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
