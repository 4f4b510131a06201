"""What all privacy plans have in common, whatever the algorithm."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tff_agg.aliases import JsonObject
from tff_agg.privacy.releases import Release


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


class Describable(Protocol):
    """A promise about who takes part when."""

    def describe(self) -> str:
        """Returns the promise in words."""

    def to_json(self) -> JsonObject:
        """Returns the promise as JSON values."""


class Shortage(Protocol):
    """A round with too few users."""

    @property
    def round(self) -> int:
        """Which round it is."""


class Sampler(Protocol):
    """Who takes part in which round: a function of the round alone."""

    @property
    def rounds(self) -> int:
        """How many rounds there are."""

    @property
    def cohort_size(self) -> int:
        """How many take part in a round; on average, where each is drawn alone."""

    @property
    def participation(self) -> Describable:
        """The schema that all cohorts together keep."""

    @property
    def fingerprint(self) -> str:
        """A checksum over how cohorts are drawn."""

    @property
    def shortages(self) -> Sequence[Shortage]:
        """The rounds with too few users."""

    def users(self, round: int, /) -> np.ndarray:
        """Returns who takes part in the given round."""

    def describe(self) -> str:
        """Returns in words who takes part when."""


def check_can_be_seen(sampler: object, *names: str) -> None:
    """Refuses a sampler that has not what a plan must look at before it accepts it."""
    if missing := [name for name in names if not hasattr(sampler, name)]:
        raise ValueError(
            f"the sampler {type(sampler).__name__} has no {', '.join(missing)}: a plan "
            "accepts a sampler only after looking at who takes part, for which it "
            f"needs {', '.join(names)}"
        )


class PrivacyPlan(Protocol):
    """A private run as planned: by DP-FTRL (`Plan`) or DP-SGD (`DPSGDPlan`)."""

    @property
    def rounds(self) -> int:
        """The length of the run: rounds of DP-FTRL, steps of DP-SGD."""

    @property
    def clip_norm(self) -> float:
        """The largest L2 norm of what one user or example adds to one sum."""

    @property
    def cohort_size(self) -> int:
        """The fixed divisor of the clipped sum."""

    @property
    def noise_multiplier(self) -> float:
        """The noise's standard deviation over the sensitivity that it covers."""

    @property
    def noise_stddev(self) -> float:
        """What unit noise is multiplied with before it is added to the clipped sum."""

    @property
    def delta(self) -> float:
        """δ of the (ε, δ) figures."""

    @property
    def participation(self) -> Describable:
        """Who takes part when."""

    @property
    def releases(self) -> Sequence[Release]:
        """What was released about the users before training."""

    @property
    def noise_seed_is_known(self) -> bool:
        """Whether anybody could subtract the noise."""

    @property
    def no_guarantee(self) -> str | None:
        """Why there is no guarantee; None where there is one."""

    @property
    def adjacency(self) -> str:
        """What makes two data sets neighbours, in words."""

    @property
    def rho(self) -> float:
        """A ρ for which the whole run is ρ-zCDP."""

    @property
    def epsilon(self) -> float:
        """ε at `delta` for the whole run, by the tight conversion."""

    @property
    def report_words(self) -> ReportWords:
        """What a report says about this kind of plan."""

    def rho_after(self, rounds: int) -> float:
        """Returns the ρ of a run of so many rounds."""

    def epsilon_after(self, rounds: int) -> float:
        """Returns the ε of a run of so many rounds."""

    def epsilon_so_far(self, rounds: int) -> float:
        """Returns an ε of so many rounds that is quick to compute, and not below."""

    def check_sampler(self, sampler: Sampler) -> None:
        """Refuses a sampler that does not keep what the plan counts on."""

    def to_json(self) -> JsonObject:
        """Returns the plan and its guarantee as JSON values; infinity is None."""
