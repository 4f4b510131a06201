"""Whether a sampler keeps its promise, found by running it."""

import dataclasses
import itertools
from typing import Any

from tff_agg.privacy.cohorts import ParticipationError, check_cohorts
from tff_agg.privacy.participation import Participation

__all__ = ["ParticipationError", "ParticipationReport", "check_participation"]


@dataclasses.dataclass(frozen=True)
class ParticipationReport:
    """What a simulated run did.

    Attributes:
      rounds: Rounds simulated.
      participations: Participations of all users together.
      users: Different users that took part.
      most: The most participations of one user.
      closest: The least distance of two rounds of one user; None if nobody came twice.
    """

    rounds: int
    participations: int
    users: int
    most: int
    closest: int | None


def check_participation(
    sampler: Any, rounds: int | None = None, schema: Participation | None = None
) -> ParticipationReport:
    """Simulates the user ids of a run and has the schema check them.

    Args:
      sampler: Anything with `sample(round)` giving (user, …) pairs; `users(round)` is
        used where there is one.
      rounds: How many rounds; the sampler's own number by default.
      schema: The schema to verify; the sampler's own by default.

    Returns:
      Figures of the simulated run.

    Raises:
      ParticipationError: A user breaks the schema, or is in one cohort twice.

    Example:
      check_participation(sampler, 2000, AtMostOnce()).most  # 1
    """
    rounds = sampler.rounds if rounds is None else rounds
    schema = sampler.participation if schema is None else schema
    cohorts = (_users(sampler, t) for t in range(rounds))
    taken = check_cohorts(schema, cohorts).values()
    gaps = (j - i for own in taken for i, j in itertools.pairwise(own))
    return ParticipationReport(
        rounds=rounds,
        participations=sum(map(len, taken)),
        users=len(taken),
        most=max(map(len, taken), default=0),
        closest=min(gaps, default=None),
    )


def _users(sampler: Any, t: int) -> Any:
    """Returns the users of a round."""
    if hasattr(sampler, "users"):
        return sampler.users(t)
    return [user for user, *_ in sampler.sample(t)]
