"""Whether the cohorts of a run keep a participation schema."""

import collections
from collections.abc import Hashable, Iterable

import numpy as np

from tff_agg.privacy.participation import Participation, check_schema


class ParticipationError(ValueError):
    """A sampler breaks a participation schema."""


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
