"""One plan: everything a guarantee rests on, in one object that cannot disagree."""

import dataclasses
import functools
import math

from tff_agg.noise.mechanism import Mechanism
from tff_agg.privacy import sensitivity as sensitivities
from tff_agg.privacy.participation import AtMostOnce, Participation


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """A private run as it was planned."""

    clip_norm: float
    cohort_size: int
    rounds: int
    mechanism: Mechanism
    noise_multiplier: float
    participation: Participation = dataclasses.field(default_factory=AtMostOnce)
    delta: float = 1e-6

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
    def rho(self) -> float:
        """The ρ of zero-concentrated differential privacy."""
        if self.noise_multiplier == 0:
            return math.inf
        return 0.5 / self.noise_multiplier**2

    @property
    def epsilon(self) -> float:
        """The ε at `delta`."""
        return self.rho + 2 * math.sqrt(self.rho * math.log(1 / self.delta))
