"""Participation schemas: in which rounds one user may take part.

A schema is a promise about the sampler, and the unit of the promise is the user. The
sensitivity of a mechanism, and with it the noise, is computed for the worst set of
rounds that the schema allows.

Each schema enforces itself (`may_join`, which a sampler asks before it draws) and
checks itself (`violation`, which looks at what a sampler did). The two share no code,
so that a mistake in one is found by the other.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from tff_agg.aliases import JsonObject
from tff_agg.privacy import checks
from tff_agg.privacy.user_rounds import History


def _check_rounds(rounds: int) -> None:
    checks.check_count("rounds", rounds)


def _twice(rounds: Sequence[int]) -> str | None:
    """Returns in words which round occurs twice, if one does; `rounds` ascend."""
    for i, j in itertools.pairwise(rounds):
        if i == j:
            return f"is in the cohort of round {i} twice"
    return None


def _too_often(rounds: Sequence[int], most: int | None) -> str | None:
    """Returns in words that there are more rounds than `most`, if there are."""
    if most is None or len(rounds) <= most:
        return None
    return f"takes part {len(rounds)} times, allowed are {most}"


def _or_unlimited(most: int | None) -> int:
    return np.iinfo(np.int64).max if most is None else most


@dataclasses.dataclass(frozen=True)
class AtMostOnce:
    """A user takes part in at most one round of the whole run.

    Example:
      >>> AtMostOnce().largest(2000)
      1
    """

    @property
    def cycle(self) -> int | None:
        """After how many rounds the same users come again; None if in no order."""
        return None

    def largest(self, rounds: int) -> int:
        """Returns the most participations one user can have in `rounds`."""
        _check_rounds(rounds)
        return 1

    def cut(self, rounds: int) -> "AtMostOnce":
        """Returns the schema of the first `rounds` rounds of a longer run."""
        _check_rounds(rounds)
        return self

    def spacing(self, rounds: int) -> int:
        """Returns the least distance between two participations of a user."""
        _check_rounds(rounds)
        return rounds

    def patterns(self, rounds: int) -> Iterator[tuple[int, ...]]:
        """Yields the sets of rounds that are allowed and cannot be extended."""
        _check_rounds(rounds)
        return ((i,) for i in range(rounds))

    def may_join(self, t: int, history: History) -> np.ndarray:
        """Returns which users may take part in round `t`, given their past rounds."""
        return history.times == 0

    def violation(self, rounds: Sequence[int]) -> str | None:
        """Returns how one user's rounds break the schema; None if they keep it.

        Args:
          rounds: The user's rounds in ascending order.
        """
        if len(rounds) > 1:
            return _twice(rounds) or (
                f"of round {rounds[0]} takes part again, in round {rounds[1]}"
            )
        return None

    def describe(self) -> str:
        """Returns the promise in words."""
        return "each user takes part in at most one round"

    def to_json(self) -> JsonObject:
        """Returns the schema as JSON values."""
        return {"schema": "at_most_once"}


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
        checks.check_count("separation", self.separation)
        if self.max_participations is not None:
            checks.check_count("max_participations", self.max_participations)

    @property
    def cycle(self) -> int | None:
        """After how many rounds the same users come again; None if in no order."""
        return None

    def largest(self, rounds: int) -> int:
        """Returns the most participations; refuses a claim that cannot fit."""
        _check_rounds(rounds)
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
        _check_rounds(rounds)
        fits = 1 + (rounds - 1) // self.separation
        most = self.max_participations
        return MinSeparation(self.separation, None if most is None else min(most, fits))

    def spacing(self, rounds: int) -> int:
        """Returns the least distance between two participations of a user."""
        _check_rounds(rounds)
        return min(self.separation, rounds)

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

    def may_join(self, t: int, history: History) -> np.ndarray:
        """Returns which users may take part in round `t`, given their past rounds."""
        return (t - history.last >= self.separation) & (
            history.times < _or_unlimited(self.max_participations)
        )

    def violation(self, rounds: Sequence[int]) -> str | None:
        """Returns how one user's rounds break the schema; None if they keep it.

        Args:
          rounds: The user's rounds in ascending order.
        """
        if (found := _twice(rounds)) is not None:
            return found
        for i, j in itertools.pairwise(rounds):
            if j - i < self.separation:
                return (
                    f"of round {i} is back before {self.separation} rounds, in round "
                    f"{j}"
                )
        return _too_often(rounds, self.max_participations)

    def describe(self) -> str:
        """Returns the promise in words."""
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
        return {
            "schema": "min_separation",
            "separation": self.separation,
            "max_participations": self.max_participations,
        }


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
        checks.check_count("epoch_length", self.epoch_length)
        if self.epochs is not None:
            checks.check_count("epochs", self.epochs)

    @property
    def cycle(self) -> int | None:
        """After how many rounds the same users come again; None if in no order."""
        return self.epoch_length

    def largest(self, rounds: int) -> int:
        """Returns the most participations; refuses a claim that cannot fit."""
        _check_rounds(rounds)
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
        _check_rounds(rounds)
        return min(self.epoch_length, rounds)

    def patterns(self, rounds: int) -> Iterator[tuple[int, ...]]:
        """Yields the allowed sets of rounds that cannot be extended."""
        limit = self.largest(rounds)
        for start in range(self.spacing(rounds)):
            own = range(start, rounds, self.epoch_length)
            yield from itertools.combinations(own, min(limit, len(own)))

    def may_join(self, t: int, history: History) -> np.ndarray:
        """Returns which users may take part in round `t`, given their past rounds."""
        return (history.times == 0) | (
            (t > history.last)
            & ((t - history.first) % self.epoch_length == 0)
            & (history.times < _or_unlimited(self.epochs))
        )

    def violation(self, rounds: Sequence[int]) -> str | None:
        """Returns how one user's rounds break the schema; None if they keep it.

        Args:
          rounds: The user's rounds in ascending order.
        """
        if (found := _twice(rounds)) is not None:
            return found
        for i in rounds[1:]:
            if i % self.epoch_length != rounds[0] % self.epoch_length:
                return (
                    f"of round {rounds[0]} changes its round of the epoch, in round {i}"
                )
        return _too_often(rounds, self.epochs)

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


Participation = AtMostOnce | MinSeparation | FixedEpochOrder


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
    if isinstance(claimed, AtMostOnce):
        return False
    if most > claimed.cut(rounds).largest(rounds):
        return False
    if isinstance(claimed, MinSeparation):
        return kept.spacing(rounds) >= claimed.spacing(rounds)
    if not isinstance(kept, FixedEpochOrder):
        return False
    return kept.epoch_length % claimed.epoch_length == 0
