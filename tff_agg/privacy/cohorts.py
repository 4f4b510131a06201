"""Whether the cohorts of a run keep a participation schema."""

import collections
from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol

import numpy as np

from tff_agg.aliases import JsonObject
from tff_agg.privacy.participation import Participation, check_schema


class ParticipationError(ValueError):
    """A sampler breaks a participation schema."""


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
    return found


def check_cohorts(
    schema: Participation, cohorts: Iterable[Iterable[Hashable]]
) -> dict[Hashable, list[int]]:
    """Refuses cohorts, given round by round, that break a schema.

    Args:
      schema: The participation schema.
      cohorts: The users of each round.

    Returns:
      The rounds of each user, ascending.

    Raises:
      ParticipationError: Names the first user who breaks the schema, and how.

    Example:
      >>> check_cohorts(AtMostOnce(), [[1, 2], [3]])
      {1: [0], 2: [0], 3: [1]}
    """
    check_schema(schema)
    rounds_of: dict[Hashable, list[int]] = collections.defaultdict(list)
    for t, users in enumerate(cohorts):
        for user in as_ids(users):
            rounds_of[user].append(t)
    broken = {
        user: how
        for user, rounds in rounds_of.items()
        if len(rounds) > 1 and (how := schema.violation(rounds)) is not None
    }
    if broken:
        user, how = next(iter(broken.items()))
        raise ParticipationError(
            f"user {user!r} {how} (its rounds: {rounds_of[user][:20]}; users who break "
            f"the schema: {len(broken)}); the promise was: {schema.describe()}"
        )
    return dict(rounds_of)
