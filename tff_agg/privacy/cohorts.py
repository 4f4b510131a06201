"""Whether the cohorts of a run are what was promised: looking at what a sampler did.

Nothing here is shared with what enforces a promise (`pds/register.py`).
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from tff_agg.aliases import Ids, JsonObject
from tff_agg.privacy.participation import (
    MinSeparation,
    Participation,
    PoissonSampling,
    Sampling,
    as_ids,
    check_schema,
)

# How many standard deviations a sampler may be off. By chance alone fewer than one in
# a billion is farther off.
_SURELY = 6.5


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


def violation(schema: Participation, rounds: Sequence[int]) -> str | None:
    """Returns how one user's rounds break a schema; None if they keep it.

    Args:
      schema: The participation schema.
      rounds: The user's rounds in ascending order.

    Example:
      >>> violation(MinSeparation(3), [0, 2])
      'of round 0 is back before 3 rounds, in round 2'
    """
    for i, j in itertools.pairwise(rounds):
        if i == j:
            return f"is in the cohort of round {i} twice"
    if isinstance(schema, MinSeparation):
        if schema.max_participations == 1 and len(rounds) > 1:
            return f"of round {rounds[0]} takes part again, in round {rounds[1]}"
        for i, j in itertools.pairwise(rounds):
            if j - i < schema.separation:
                back = f"is back before {schema.separation} rounds, in round {j}"
                return f"of round {i} {back}"
        most = schema.max_participations
    else:
        for i in rounds[1:]:
            if i % schema.epoch_length != rounds[0] % schema.epoch_length:
                changed = f"changes its round of the epoch, in round {i}"
                return f"of round {rounds[0]} {changed}"
        most = schema.epochs
    if most is not None and len(rounds) > most:
        return f"takes part {len(rounds)} times, allowed are {most}"
    return None


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
      >>> check_cohorts(MinSeparation(2), [[1, 2], [3]])
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
        if len(rounds) > 1 and (how := violation(schema, rounds)) is not None
    }
    if broken:
        user, how = next(iter(broken.items()))
        raise ParticipationError(
            f"user {user!r} {how} (its rounds: {rounds_of[user][:20]}; users who break "
            f"the schema: {len(broken)}); the promise was: {schema.describe()}"
        )
    return dict(rounds_of)


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
    taken = check_cohorts(schema, (_users(sampler, t) for t in range(rounds))).values()
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


def check_batches(
    sampling: Sampling,
    batches: Iterable[Ids],
    groups: Sequence[Ids] | None = None,
) -> None:
    """Refuses batches, given step by step, that Poisson sampling does not draw.

    Looks at how much the sizes of the batches vary and how often each example is taken:
    a fixed batch size varies too little, and so does going through the shuffled
    examples epoch by epoch. It needs some 100 batches to be sure. What varies as it
    should is accepted; it is no proof that the sampler is random.

    Args:
      sampling: What was promised.
      batches: The examples of each batch, numbered from 0.
      groups: The examples of each group, where chances move; else all are one.

    Raises:
      ValueError: Says what is wrong with the batches.
    """
    if isinstance(sampling, PoissonSampling):
        members = [np.arange(sampling.population_size)]
        moving: tuple[tuple[float, ...], ...] = ()
    else:
        members = [np.asarray(group, np.int64) for group in groups or ()]
        moving = sampling.probabilities
        if len(members) != len(moving):
            raise ValueError(
                f"the sampler has {len(members)} groups, the plan {len(moving)}"
            )

    def probabilities(step: int) -> Sequence[float]:
        return [of[step] for of in moving] or [sampling.probability]

    _check_draws(batches, members, probabilities)


def _check_draws(
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
