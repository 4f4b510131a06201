"""Participation: in which rounds one user, or one example, may take part.

A participation is a promise about the sampler, and the unit of the promise is the user.
The sensitivity of a mechanism, and with it the noise, is computed for the worst set of
rounds that a schema allows; sampled batches are accounted for by their probabilities.

Here is only declared what is promised. `pds/register.py` enforces it, which a sampler
asks before it draws; `privacy/cohorts.py` checks it, looking at what a sampler did. The
two share no code, so that a mistake in one is found by the other.
"""

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tff_agg import checks
from tff_agg.aliases import JsonObject


@dataclasses.dataclass(frozen=True)
class MinSeparation:
    """A user's rounds are at least `separation` apart, at most so many of them.

    Two rounds i < j of one user satisfy j − i ≥ `separation`; separation 1 is no
    restriction. (TF-Privacy counts the rounds in between instead: one less.)

    Attributes:
      separation: The least difference of two round numbers of one user.
      max_participations: The most rounds of one user; None for as many as fit.

    Example:
      >>> MinSeparation(342, 6).largest(2000)
      6
    """

    separation: int
    max_participations: int | None = None

    def __post_init__(self) -> None:
        checks.make_whole(self, "separation", "max_participations")

    @property
    def is_once(self) -> bool:
        """Whether a user takes part in at most one round of the whole run."""
        return self.max_participations == 1

    @property
    def cycle(self) -> int | None:
        """After how many rounds the same users come again; None if in no order."""
        return None

    def largest(self, rounds: int) -> int:
        """Returns the most participations; refuses a claim that cannot fit."""
        checks.whole("rounds", rounds)
        fits = 1 + (rounds - 1) // self.separation
        if self.max_participations is None:
            return fits
        if self.max_participations > fits:
            raise ValueError(
                f"max_participations={self.max_participations} at "
                f"separation={self.separation} do not fit into rounds={rounds}: at "
                f"most {fits} do; give that number, or None for as many as fit"
            )
        return self.max_participations

    def cut(self, rounds: int) -> "MinSeparation":
        """Returns the schema of the first `rounds` rounds of a longer run."""
        checks.whole("rounds", rounds)
        fits = 1 + (rounds - 1) // self.separation
        most = self.max_participations
        return MinSeparation(self.separation, None if most is None else min(most, fits))

    def spacing(self, rounds: int) -> int:
        """Returns the least distance between two participations of a user."""
        checks.whole("rounds", rounds)
        # Whoever comes once has no second round.
        return rounds if self.is_once else min(self.separation, rounds)

    def patterns(self, rounds: int) -> Iterator[tuple[int, ...]]:
        """Yields every non-empty allowed set of rounds; there may be very many."""
        limit = self.largest(rounds)

        def extend(chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if chosen:
                yield chosen
            if len(chosen) == limit:
                return
            first = chosen[-1] + self.separation if chosen else 0
            for position in range(first, rounds):
                yield from extend((*chosen, position))

        return extend(())

    def describe(self) -> str:
        """Returns the promise in words."""
        if self.is_once:
            return "each user takes part in at most one round"
        often = (
            "as often as that allows"
            if self.max_participations is None
            else f"at most {self.max_participations} times"
        )
        return (
            f"a user's rounds are at least {self.separation} apart (difference of the "
            f"round numbers), {often}"
        )

    def to_json(self) -> JsonObject:
        """Returns the schema as JSON values."""
        if self.is_once:
            return {"schema": "at_most_once"}
        return {
            "schema": "min_separation",
            "separation": self.separation,
            "max_participations": self.max_participations,
        }


def AtMostOnce() -> MinSeparation:
    """Returns the schema under which a user takes part in one round at most.

    Example:
      >>> AtMostOnce().largest(2000), AtMostOnce().spacing(2000)
      (1, 2000)
    """
    return MinSeparation(separation=1, max_participations=1)


@dataclasses.dataclass(frozen=True)
class FixedEpochOrder:
    """Every epoch visits the users in the same order.

    A user of round i takes part in i, i + E, i + 2E, … only (or in some of these),
    where E is the epoch length.

    Attributes:
      epoch_length: Rounds per epoch.
      epochs: The most participations of one user; None for as many as fit.

    Example:
      >>> FixedEpochOrder(epoch_length=100).largest(250)
      3
    """

    epoch_length: int
    epochs: int | None = None

    def __post_init__(self) -> None:
        checks.make_whole(self, "epoch_length", "epochs")

    @property
    def cycle(self) -> int | None:
        """After how many rounds the same users come again; None if in no order."""
        return self.epoch_length

    def largest(self, rounds: int) -> int:
        """Returns the most participations; refuses a claim that cannot fit."""
        checks.whole("rounds", rounds)
        fits = -(-rounds // self.epoch_length)
        if self.epochs is None:
            return fits
        if self.epochs > fits:
            raise ValueError(
                f"epochs={self.epochs} of epoch_length={self.epoch_length} do not fit "
                f"into rounds={rounds}: at most {fits} do; give that number, or None"
            )
        return self.epochs

    def cut(self, rounds: int) -> "FixedEpochOrder":
        """Returns the schema of the first `rounds` rounds of a longer run."""
        fits = -(-rounds // self.epoch_length)
        epochs = None if self.epochs is None else min(self.epochs, fits)
        return FixedEpochOrder(self.epoch_length, epochs)

    def spacing(self, rounds: int) -> int:
        """Returns the least distance between two participations of a user."""
        checks.whole("rounds", rounds)
        return min(self.epoch_length, rounds)

    def patterns(self, rounds: int) -> Iterator[tuple[int, ...]]:
        """Yields the allowed sets of rounds that cannot be extended."""
        limit = self.largest(rounds)
        for start in range(self.spacing(rounds)):
            own = range(start, rounds, self.epoch_length)
            yield from itertools.combinations(own, min(limit, len(own)))

    def describe(self) -> str:
        """Returns the promise in words."""
        often = "" if self.epochs is None else f", at most {self.epochs} of them"
        return (
            f"every epoch of {self.epoch_length} rounds visits the users in the same "
            f"order, so a user's rounds are whole epochs apart{often}"
        )

    def to_json(self) -> JsonObject:
        """Returns the schema as JSON values."""
        return {
            "schema": "fixed_epoch_order",
            "epoch_length": self.epoch_length,
            "epochs": self.epochs,
        }


Participation = MinSeparation | FixedEpochOrder


def check_schema(schema: object) -> Participation:
    """Returns the schema; refuses what is none."""
    if not isinstance(schema, Participation):
        raise TypeError(
            "participation must be AtMostOnce, MinSeparation or FixedEpochOrder, "
            f"got {schema!r}"
        )
    return schema


def implies(kept: Participation, claimed: Participation, rounds: int) -> bool:
    """Returns whether a sampler that keeps one schema keeps another as well.

    Args:
      kept: What a sampler does.
      claimed: What a plan counts on.
      rounds: The length of the run.

    Example:
      >>> implies(AtMostOnce(), MinSeparation(10, 3), rounds=100)
      True
    """
    most = kept.cut(rounds).largest(rounds)
    if most == 1:
        return True
    if most > claimed.cut(rounds).largest(rounds):
        return False
    if isinstance(claimed, MinSeparation):
        return kept.spacing(rounds) >= claimed.spacing(rounds)
    if not isinstance(kept, FixedEpochOrder):
        return False
    return kept.epoch_length % claimed.epoch_length == 0


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
        checks.number("probability", self.probability, "(0, 1]")
        checks.make_whole(self, "population_size")

    @classmethod
    def of(cls, batch_size: int, population_size: int) -> "PoissonSampling":
        """Returns the sampling of batches of an expected size.

        Example:
          >>> PoissonSampling.of(50, 1000).probability
          0.05
        """
        checks.whole("population_size", population_size)
        if checks.whole("batch_size", batch_size) > population_size:
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
        checks.make_whole(self, "population_size")
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


Sampling = PoissonSampling | ShiftingPoissonSampling


def from_json(values: Mapping[str, Any]) -> Participation:
    """Returns the schema whose `to_json` gave these values.

    Example:
      >>> from_json(MinSeparation(10, 3).to_json())
      MinSeparation(separation=10, max_participations=3)
    """
    given = {name: value for name, value in values.items() if name != "schema"}
    kinds: dict[str, Callable[..., Participation]] = {
        "at_most_once": AtMostOnce,
        "min_separation": MinSeparation,
        "fixed_epoch_order": FixedEpochOrder,
    }
    if (name := values.get("schema")) not in kinds:
        raise ValueError(f"schema must be one of {', '.join(kinds)}, got {name!r}")
    return kinds[name](**given)


def as_ids(users: Iterable[Hashable]) -> list[Hashable]:
    """Returns users as Python values that are equal exactly if the users are.

    A list of large integers must not become an array on the way: where some need 64
    bits without a sign, numpy makes floats of all of them.

    Raises:
      ValueError: An id is a fraction, so that different users may have become one.

    Example:
      >>> as_ids(np.array([2**63 + 5], np.uint64))
      [9223372036854775813]
    """
    if isinstance(users, str | bytes):
        raise ValueError(f"users must be a list or an array of ids, got {users!r}")
    if hasattr(users, "dtype") and not hasattr(users, "tolist"):
        users = np.asarray(users)
    found = users.tolist() if hasattr(users, "tolist") else list(users)
    if not isinstance(found, list):
        raise ValueError(f"users must be a list or an array of ids, got {users!r}")
    for user in found:
        if isinstance(user, float | np.floating):
            raise ValueError(
                f"users must be whole numbers or names, got {user!r}: large ids are "
                "rounded to floats, and two users become one; keep them as integers"
            )
        if isinstance(user, list):
            raise ValueError("users must be one id after the other, got a table")
    return [user.item() if isinstance(user, np.generic) else user for user in found]
