"""The configuration of a run of DP-SGD, whose unit of privacy is an example."""

import dataclasses
from typing import ClassVar, Self

from tff_agg import noise, privacy
from tff_agg.experiment.config import RunConfig
from tff_agg.fields import described
from tff_agg.server import Schedule, schedules


@dataclasses.dataclass(frozen=True)
class SampleConfig(RunConfig):
    """A run of DP-SGD: what every run has, and steps, batches and noise.

    Two of `rounds`, `noise_multiplier` and `epsilon` are given; the third follows. With
    all three, a run whose ε would be above the one given is refused.

    Example:
      >>> config = SampleConfig(noise_multiplier=8.0, epsilon=1.0)
      >>> config.for_population(50_000).rounds
      669
    """

    privacy_level: ClassVar[str] = "Example-level"

    rounds: int = described(
        0, "training steps; 0: as many as keep epsilon with noise_multiplier"
    )
    batch_size: int = described(
        4096, "expected size of a batch, which Poisson sampling draws", at_least=1
    )
    clip_norm: float = described(
        1.0, "L2 norm that an example's gradient is clipped to"
    )
    noise_multiplier: float | None = described(
        None, "standard deviation of a step's noise over the clip norm"
    )
    epsilon: float | None = described(
        None, "ε to keep: finds the noise, or with noise_multiplier the steps"
    )
    delta: float = described(1e-5, "δ of the guarantee")
    learning_rate: float = described(2.0, "learning rate")
    rate_schedule: str = described(
        "constant", "how the learning rate falls to zero", schedules.KINDS
    )
    momentum: float = described(0.0, "momentum, 0 for none")
    nesterov: bool = described(False, "whether the momentum is Nesterov's")
    memory_budget: int = described(
        256, "MB for what a micro-batch holds for its examples", at_least=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_schedule_free("momentum")
        given = {
            "rounds": self.rounds,
            "noise_multiplier": self.noise_multiplier is not None,
            "epsilon": self.epsilon,
        }
        missing = [name for name, is_given in given.items() if not is_given]
        if len(missing) > 1:
            raise ValueError(
                "two of rounds, noise_multiplier (0 is no privacy) and epsilon are "
                f"needed; {' and '.join(missing)} are not given"
            )
        if not self.rounds and (self.pds or not self.noise_multiplier):
            reason = (
                "noise_multiplier is 0" if not self.pds else "pds moves the batches"
            )
            raise ValueError(f"rounds must be given where {reason}; it is 0")

    @property
    def rate(self) -> float | Schedule:
        """Returns the learning rate, or how it falls."""
        if self.rate_schedule == "constant":
            return self.learning_rate
        return Schedule(self.learning_rate, self.rounds, self.rate_schedule)

    @property
    def cohort_words(self) -> str:
        """Returns in words how many examples a step has."""
        return f"{self.batch_size:,} examples on average"

    def for_population(self, population_size: int) -> Self:
        """Returns the configuration with its number of steps, for so many examples."""
        if self.rounds:
            return self
        plan = privacy.Plan.rounds_for_epsilon(
            self.epsilon or 0.0,
            noise_multiplier=self.noise_multiplier or 0.0,
            cohort_size=self.batch_size,
            mechanism=noise.identity(),
            participation=privacy.PoissonSampling.of(self.batch_size, population_size),
            delta=self.delta,
            clip_norm=self.clip_norm,
        )
        return dataclasses.replace(self, rounds=plan.rounds)
