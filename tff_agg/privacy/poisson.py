"""Poisson sampling: what amplification by sampling rests on, and how to look at it."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tff_agg.aliases import Ids, JsonObject
from tff_agg.privacy import checks

# How many standard deviations a sampler may be off. By chance alone fewer than one in
# a billion is farther off.
_SURELY = 6.5


@dataclasses.dataclass(frozen=True)
class PoissonSampling:
    """Each step takes each example with one probability, independently of all else.

    Attributes:
      probability: The chance of each example to be in a step's batch.
      population_size: How many examples there are.

    Example:
      >>> PoissonSampling(0.25, 1000).describe()
      'each step takes each example with probability 0.25, independently of all others'
    """

    probability: float
    population_size: int

    def __post_init__(self) -> None:
        if not isinstance(self.probability, float | int) or not (
            0 < self.probability <= 1
        ):
            raise ValueError(f"probability must be in (0, 1], got {self.probability!r}")
        checks.check_count("population_size", self.population_size)

    @classmethod
    def of(cls, batch_size: int, population_size: int) -> "PoissonSampling":
        """Returns the sampling of batches of an expected size.

        Example:
          >>> PoissonSampling.of(50, 1000).probability
          0.05
        """
        checks.check_count("batch_size", batch_size)
        checks.check_count("population_size", population_size)
        if batch_size > population_size:
            raise ValueError(
                f"batch_size={batch_size} is above population_size={population_size}"
            )
        return cls(batch_size / population_size, population_size)

    @property
    def expected_size(self) -> float:
        """How many examples a batch has on average."""
        return self.probability * self.population_size

    def describe(self) -> str:
        """Returns the promise in words."""
        return (
            f"each step takes each example with probability {self.probability:.6g}, "
            "independently of all others"
        )

    def to_json(self) -> JsonObject:
        """Returns the schema as JSON values."""
        return {"schema": "poisson_sampling", "probability": self.probability}

    def check_batches(self, batches: Iterable[Ids], population_size: int) -> None:
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
        everyone = np.arange(population_size)
        _check_batches(batches, [everyone], lambda step: [self.probability])


@dataclasses.dataclass(frozen=True)
class ShiftingPoissonSampling:
    """Poisson sampling whose probabilities move, by a public rule of step and group.

    Every example is in one group. A step takes each example of a group with one
    probability, independently of all else.

    Attributes:
      probabilities: For each group, the probability of every step.
      population_size: How many examples there are in all groups.

    Example:
      >>> ShiftingPoissonSampling(((0.5, 0.0), (0.0, 0.5)), 100).probability
      0.5
    """

    probabilities: tuple[tuple[float, ...], ...]
    population_size: int

    def __post_init__(self) -> None:
        checks.check_count("population_size", self.population_size)
        lengths = {len(steps) for steps in self.probabilities}
        every = [p for steps in self.probabilities for p in steps]
        if len(lengths) != 1 or not every or not (0 <= min(every) <= max(every) <= 1):
            raise ValueError(
                "probabilities must give each group a number in [0, 1] for each of the "
                f"same steps; got {len(self.probabilities)} groups with "
                f"{sorted(lengths)} steps"
            )

    @property
    def expected_size(self) -> None:
        """Not known: how many examples a group has is not said here."""
        return None

    @property
    def probability(self) -> float:
        """The largest chance of any example in any step."""
        return max(max(steps) for steps in self.probabilities)

    def describe(self) -> str:
        """Returns the promise in words."""
        return (
            "each step takes each example independently of all others, with a "
            "probability that follows from the step and the example's group and is at "
            f"most {self.probability:.6g}"
        )

    def to_json(self) -> JsonObject:
        """Returns the schema as JSON values."""
        means = [float(np.mean(steps)) for steps in self.probabilities]
        return {
            "schema": "shifting_poisson_sampling",
            "largest_probability": self.probability,
            "mean_probability_by_group": means,
        }

    def check_batches(
        self,
        batches: Iterable[Ids],
        groups: Sequence[np.ndarray],
    ) -> None:
        """Refuses batches that such sampling does not draw: see `PoissonSampling`.

        Args:
          batches: The examples of each batch.
          groups: The examples of each group.

        Raises:
          ValueError: Says what is wrong with the batches.
        """
        members = [np.asarray(group, np.int64) for group in groups]
        if len(members) != len(self.probabilities):
            raise ValueError(
                f"the sampler has {len(members)} groups, the plan "
                f"{len(self.probabilities)}"
            )
        _check_batches(
            batches, members, lambda step: [of[step] for of in self.probabilities]
        )


def _check_batches(
    batches: Iterable[Ids],
    groups: list[np.ndarray],
    probabilities: Callable[[int], Sequence[float]],
) -> None:
    """Refuses batches that vary less than independent draws, or have another mean."""
    population_size = sum(map(len, groups))
    times = np.zeros(population_size, np.int64)
    sizes: list[list[int]] = []
    chances: list[Sequence[float]] = []
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
        taken = np.zeros(population_size, bool)
        taken[members] = True
        times += taken
        sizes.append([int(taken[group].sum()) for group in groups])
        chances.append(probabilities(step))
    if not sizes:
        return
    p = np.array(chances)
    _check_mean(sum(map(sum, sizes)), p, [len(group) for group in groups])
    for number, group in enumerate(groups):
        drawn = (p[:, number] > 0) & (p[:, number] < 1)
        if not drawn.any():
            continue
        # One binomial a step; and for each example, a sum over the steps.
        varying = p[drawn, number]
        _check_spread(
            "sizes of the batches",
            np.array(sizes)[drawn, number],
            len(group) * varying,
            len(group) * varying * (1 - varying),
            len(group) * _fourth(varying),
        )
        _check_spread(
            "counts of the examples",
            times[group] - (p[:, number] == 1).sum(),
            varying.sum(),
            (varying * (1 - varying)).sum(),
            _fourth(varying).sum(),
        )


def _fourth(p: np.ndarray) -> np.ndarray:
    """The fourth cumulant of one draw; those of independent draws add up."""
    return p * (1 - p) * (1 - 6 * p * (1 - p))


def _check_mean(taken: int, p: np.ndarray, sizes: Sequence[int]) -> None:
    """Refuses a number of examples taken that is far from what is expected."""
    mean = float((p * sizes).sum())
    stddev = math.sqrt((p * (1 - p) * sizes).sum())
    # The last term is for rare events, which have a heavier tail (Bernstein).
    if abs(taken - mean) > _SURELY * stddev + (_SURELY**2 / 3 if stddev else 0):
        chances = len(p) * sum(sizes)
        raise ValueError(
            f"the sampler takes {taken / chances:.6g} of all examples, but the plan "
            f"counts on a probability of {mean / chances:.6g}"
        )


def _check_spread(
    what: str,
    counts: np.ndarray,
    mean: float | np.ndarray,
    variance: float | np.ndarray,
    fourth: float | np.ndarray,
) -> None:
    """Refuses counts that vary less than sums of independent draws."""
    # The normalised squared distances have mean 1 and this variance.
    spread = np.square(counts - mean) / variance
    of_one = np.mean(2 + fourth / np.square(variance))
    missing = (1 - spread.mean()) / math.sqrt(of_one / len(counts))
    if missing > _SURELY:
        raise ValueError(
            f"the {what} vary too little for Poisson sampling (variance "
            f"{spread.mean():.3g} times the expected one): a fixed batch size or "
            "shuffled epochs have another guarantee, which this plan does not know"
        )
