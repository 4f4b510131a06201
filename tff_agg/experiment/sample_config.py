"""The configuration of a run of DP-SGD, whose unit of privacy is an example."""

import dataclasses
from typing import ClassVar, Self

from tff_agg import noise, privacy
from tff_agg.experiment.config import RunConfig
from tff_agg.fields import described
from tff_agg.server import Schedule, schedules

#: How many steps a run has where ε alone says how much noise it gets.
ROUNDS = 1000


@dataclasses.dataclass(frozen=True)
class SampleConfig(RunConfig):
    """A run of DP-SGD: what every run has, and steps, batches and noise.

    Of `rounds`, `noise_multiplier` and `epsilon` two give the third; ε alone is enough
    for `ROUNDS` steps. With all three, a run whose ε would be above the one given is
    refused.

    Example:
      >>> config = SampleConfig(noise_multiplier=8.0, epsilon=1.0)
      >>> config.for_population(50_000).rounds
      669
    """

    privacy_level: ClassVar[str] = "Example-level"

    rounds: int = described(
        0,
        "training steps; 0: as many as keep epsilon with noise_multiplier, and "
        f"{ROUNDS} where that is not given",
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
        if self.noise_multiplier is None:
            if self.epsilon is None:
                raise ValueError(
                    "epsilon or noise_multiplier (0 is no privacy) is needed; neither "
                    "is given"
                )
        elif not self.rounds:
            if self.epsilon is None:
                raise ValueError(
                    "rounds or epsilon is needed beside noise_multiplier="
                    f"{self.noise_multiplier:g}; neither is given"
                )
            if self.pds or not self.noise_multiplier:
                reason = "pds moves the batches" if self.pds else "there is no noise"
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
        if self.noise_multiplier is None:
            return dataclasses.replace(self, rounds=ROUNDS)
        plan = privacy.Plan.rounds_for_epsilon(
            self.epsilon or 0.0,
            noise_multiplier=self.noise_multiplier,
            cohort_size=self.batch_size,
            mechanism=noise.identity(),
            participation=privacy.PoissonSampling.of(self.batch_size, population_size),
            delta=self.delta,
            clip_norm=self.clip_norm,
        )
        return dataclasses.replace(self, rounds=plan.rounds)
