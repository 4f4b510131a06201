"""Whether a sampler keeps its promise, found by running it."""

import dataclasses
from typing import Any

import numpy as np

from tff_agg.privacy.participation import (
    AtMostOnce,
    FixedEpochOrder,
    MinSeparation,
    Participation,
)


class ParticipationError(ValueError):
    """A sampler breaks a participation schema."""


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
    """Simulates the user ids of a run and verifies them against a schema.

    Args:
      sampler: Anything with `sample(round)` giving (user, …) pairs; `users(round)` is
        used where there is one.
      rounds: How many rounds; the sampler's own number by default.
      schema: The schema to verify; the sampler's own by default.

    Returns:
      Figures of the simulated run.

    Raises:
      ParticipationError: At the first user who breaks the schema, or who is in one
        cohort twice.

    Example:
      >>> check_participation(sampler, 2000, AtMostOnce()).most
      1
    """
    rounds = sampler.rounds if rounds is None else rounds
    schema = sampler.participation if schema is None else schema
    cohorts = [_users(sampler, t) for t in range(rounds)]
    times = np.repeat(np.arange(rounds), [len(cohort) for cohort in cohorts])
    users = np.concatenate([np.empty(0, np.int64), *cohorts]).astype(np.int64)
    order = np.lexsort((times, users))
    users, times = users[order], times[order]
    same = users[1:] == users[:-1]
    gaps = np.diff(times)
    _refuse(same & (gaps == 0), users, times, "is in one cohort twice")
    starts = np.flatnonzero(np.concatenate([np.ones(min(1, len(users)), bool), ~same]))
    counts = np.diff(np.append(starts, len(users)))
    if isinstance(schema, AtMostOnce):
        _refuse(same, users, times, "takes part again")
    elif isinstance(schema, MinSeparation):
        near = same & (gaps < schema.separation)
        _refuse(near, users, times, f"is back before {schema.separation} rounds")
        _refuse_often(counts, schema.max_participations, users[starts])
    elif isinstance(schema, FixedEpochOrder):
        moved = same & (gaps % schema.epoch_length != 0)
        _refuse(moved, users, times, "changes its round of the epoch")
    else:
        raise TypeError(f"schema={schema!r}: not a known participation schema")
    return ParticipationReport(
        rounds=rounds,
        participations=len(users),
        users=len(starts),
        most=int(counts.max(initial=0)),
        closest=int(gaps[same].min()) if same.any() else None,
    )


def _users(sampler: Any, t: int) -> np.ndarray:
    """Returns the users of a round."""
    if hasattr(sampler, "users"):
        return np.asarray(sampler.users(t))
    return np.array([user for user, *_ in sampler.sample(t)], np.int64)


def _refuse(
    broken: np.ndarray, users: np.ndarray, times: np.ndarray, what: str
) -> None:
    """Raises at the first neighbouring pair that is marked as broken."""
    if broken.any():
        first = int(np.flatnonzero(broken)[0])
        raise ParticipationError(
            f"user {users[first]} of round {times[first]} {what}, in round "
            f"{times[first + 1]} ({int(broken.sum())} such cases)"
        )


def _refuse_often(counts: np.ndarray, most: int | None, users: np.ndarray) -> None:
    """Raises if somebody takes part more than `most` times."""
    if most is not None and counts.max(initial=0) > most:
        user = users[int(np.argmax(counts))]
        raise ParticipationError(
            f"user {user} takes part {counts.max()} times, allowed are {most}"
        )
