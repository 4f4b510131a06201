"""Learning rates that change from round to round."""

import dataclasses
import math

import numpy as np

from tff_agg import checks
from tff_agg.aliases import Array, JsonObject, Scalar
from tff_agg.backends import Backend

KINDS = ("constant", "linear", "cosine")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A learning rate that rises at first, and falls to zero at the end.

    Attributes:
      rate: The largest rate.
      rounds: After how many rounds it has fallen to zero.
      kind: How: 'linear', 'cosine', or 'constant', which does not fall.
      warm_up: In how many first rounds it rises.

    Example:
      >>> from tff_agg import backends
      >>> schedule = Schedule(2.0, rounds=4, kind='linear', warm_up=2)
      >>> [float(schedule(backends.NUMPY, t)) for t in range(4)]
      [1.0, 1.5, 1.0, 0.5]
    """

    rate: float
    rounds: int
    kind: str = "constant"
    warm_up: int = 0

    def __post_init__(self) -> None:
        checks.number("the server's learning_rate", self.rate, "(0, inf)")
        checks.choice("kind", self.kind, KINDS)
        checks.whole("rounds", self.rounds)
        checks.whole("warm_up", self.warm_up, 0, self.rounds)

    def __call__(self, backend: Backend, round: Scalar) -> Array:
        """Returns the rate of a round, counted from 0, in the round's library."""
        rounds = backend.cast(round, np.float32)
        done = backend.minimum(rounds / self.rounds, 1.0)
        rate = 0 * rounds + self.rate
        if self.kind == "linear":
            rate = rate * (1 - done)
        elif self.kind == "cosine":
            rate = rate * (0.5 + 0.5 * backend.cos(math.pi * done))
        if self.warm_up:
            rate = rate * backend.minimum((rounds + 1) / self.warm_up, 1.0)
        return rate

    def scaled(self, factor: float) -> "Schedule":
        """Returns the schedule of rates that are so many times as large."""
        return dataclasses.replace(self, rate=factor * self.rate)

    def to_json(self) -> JsonObject:
        """Returns what identifies it, as JSON values."""
        return dataclasses.asdict(self)
