"""Whether the cohorts of a run keep a participation schema."""

import collections
from collections.abc import Iterable

import numpy as np

from tff_agg.aliases import Ids
from tff_agg.privacy.participation import Participation, check_schema


class ParticipationError(ValueError):
    """A sampler breaks a participation schema."""


def check_cohorts(
    schema: Participation, cohorts: Iterable[Ids]
) -> dict[int, list[int]]:
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
    rounds_of: dict[int, list[int]] = collections.defaultdict(list)
    for t, users in enumerate(cohorts):
        for user in np.asarray(users).tolist():
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
