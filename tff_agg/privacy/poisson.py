"""Poisson sampling: what amplification by sampling rests on, and how to look at it."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

# How many standard deviations a sampler may be off. By chance alone fewer than one in
# a billion is farther off.
_SURELY = 6.5


@dataclasses.dataclass(frozen=True)
class PoissonSampling:
    """Each step takes each example with one probability, independently of all else.

    Attributes:
      probability: The chance of each example to be in a step's batch.

    Example:
      >>> PoissonSampling(0.25).describe()
      'each step takes each example with probability 0.25, independently of all others'
    """

    probability: float

    def __post_init__(self) -> None:
        if not isinstance(self.probability, float | int) or not (
            0 < self.probability <= 1
        ):
            raise ValueError(f"probability must be in (0, 1], got {self.probability!r}")

    def describe(self) -> str:
        """Says the promise in words."""
        return (
            f"each step takes each example with probability {self.probability:.6g}, "
            "independently of all others"
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the schema as JSON values."""
        return {"schema": "poisson_sampling", "probability": self.probability}

    def check_batches(self, batches: Iterable[Any], population_size: int) -> None:
        """Refuses batches, given step by step, that Poisson sampling does not draw.

        Looks at how much the sizes of the batches vary and how often each example is
        taken: a fixed batch size varies too little, and so does going through the
        shuffled examples epoch by epoch. It needs some 100 batches to be sure. What
        varies as it should is accepted; it is no proof that the sampler is random.

        Args:
          batches: The examples of each batch, numbered from 0.
          population_size: How many examples there are.

        Raises:
          ValueError: Says what is wrong with the batches.
        """
        times = np.zeros(population_size, np.int64)
        sizes = []
        for step, batch in enumerate(batches):
            members = np.asarray(batch, np.int64)
            if len(members) and not (
                members.min() >= 0 and members.max() < population_size
            ):
                raise ValueError(
                    f"the batch of step {step} has examples that are not among the "
                    f"{population_size} of the plan"
                )
            if len(np.unique(members)) < len(members):
                raise ValueError(f"the batch of step {step} has an example twice")
            times[members] += 1
            sizes.append(len(members))
        if self.probability == 1 or not sizes:
            return
        self._check_mean(sum(sizes), len(sizes) * population_size)
        self._check_spread("sizes of the batches", np.array(sizes), population_size)
        self._check_spread("counts of the examples", times, len(sizes))

    def _check_mean(self, taken: int, chances: int) -> None:
        """Refuses a number of examples taken that is far from what is expected."""
        mean = chances * self.probability
        stddev = math.sqrt(mean * (1 - self.probability))
        # The last term is for rare events, which have a heavier tail (Bernstein).
        if abs(taken - mean) > _SURELY * stddev + _SURELY**2 / 3:
            raise ValueError(
                f"the sampler takes {taken / chances:.6g} of all examples, but the "
                f"plan counts on a probability of {self.probability:.6g}"
            )

    def _check_spread(self, what: str, counts: np.ndarray, chances: int) -> None:
        """Refuses counts that vary less than those of a binomial distribution."""
        variance = chances * self.probability * (1 - self.probability)
        # The normalised squared distances have mean 1 and this variance.
        spread = np.square(counts - chances * self.probability) / variance
        of_one = 2 + (1 - 6 * self.probability * (1 - self.probability)) / variance
        missing = (1 - spread.mean()) / math.sqrt(of_one / len(counts))
        if missing > _SURELY:
            raise ValueError(
                f"the {what} vary too little for Poisson sampling (variance "
                f"{spread.mean():.3g} times the expected one): a fixed batch size or "
                "shuffled epochs have another guarantee, which this plan does not know"
            )
