"""Who takes part in which round: a pure function of (seed, round).

The cohorts of all rounds are drawn when a sampler is made, each round from its own
random stream and from the users whom the participation schema still allows. So a
sampler has no state that could be lost: the same arguments give the same cohorts, in
any order of asking, in any process, and a longer run begins like a shorter one.
"""

import dataclasses
import functools
import hashlib
import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pds.groups import Group, sizes_in_words
from pds.register import make_register
from pds.schedule import Schedule
from tff_agg import checks
from tff_agg.privacy.participation import Participation

_log = logging.getLogger(__name__)

SPLIT_MODES = ("binomial", "fixed")
EXHAUSTED_MODES = ("error", "fill_from_other", "smaller_cohort")
_STREAM_ROUND = 1


class Participant(NamedTuple):
    """One user of a cohort and the group whose data the user brings."""

    user: int
    group: str


class Shortage(NamedTuple):
    """A round in which a group had fewer users left than the round asked for."""

    round: int
    group: str
    wanted: int
    found: int


class ExhaustedError(ValueError):
    """A group, or all of them, ran out of users whom the schema still allows.

    Attributes:
      shortage: Where.
    """

    def __init__(self, message: str, shortage: Shortage):
        super().__init__(message)
        self.shortage = shortage


@dataclasses.dataclass(frozen=True, eq=False)
class Sampler:
    """Draws a cohort for every round under a participation schema.

    With one group, cohorts come from it. With two, `schedule` gives the share of the
    first. A user is taken at most once per round, whichever group it comes from, and
    participations in either group count together.

    Attributes:
      groups: One or two groups.
      cohort_size: Users per round.
      rounds: Rounds of the run.
      participation: The schema; the same object the privacy plan gets.
      seed: Any integer.
      schedule: The share of the first group; needed with two groups.
      split: `'binomial'`: each client's group is drawn on its own; `'fixed'`: the
        share is rounded to a number of clients.
      when_exhausted: What happens when a group has not enough users left: `'error'`
        (now, when the sampler is made), `'fill_from_other'` (users of the other group
        take the places; an error if there are none either) or `'smaller_cohort'`. The
        last two are logged and listed in `shortages`.

    Example:
      sampler = Sampler(
          groups=by_type(store), cohort_size=100, rounds=2000,
          participation=AtMostOnce(), seed=1, schedule=linear(200))
      sampler.sample(0)[0]  # Participant(user=1182, group='question')
    """

    groups: Sequence[Group]
    cohort_size: int
    rounds: int
    participation: Participation
    seed: int
    schedule: Schedule | None = None
    split: str = "binomial"
    when_exhausted: str = "error"

    def __post_init__(self):
        _check(self)
        self._table  # noqa: B018  Draws now, so that a shortage is an error now.
        for shortage in self._first_shortages():
            _log.warning(
                "%s; when_exhausted=%s; %d rounds fall short in all",
                _in_words(shortage),
                self.when_exhausted,
                len({s.round for s in self.shortages}),
            )

    @functools.cached_property
    def _table(self) -> "_Table":
        """The cohorts of all rounds."""
        return _draw_all(self)

    @property
    def shortages(self) -> tuple[Shortage, ...]:
        """All rounds in which a group could not give what the round asked for."""
        return self._table.shortages

    @functools.cached_property
    def fingerprint(self) -> str:
        """A checksum over the cohorts of all rounds."""
        digest = hashlib.sha256()
        for array in (self._table.users, self._table.groups, self._table.bounds):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def sample(self, round: int) -> list[Participant]:
        """Returns the cohort of a round, different users with their groups.

        Args:
          round: From 0 to `rounds` − 1.

        Returns:
          The participants; fewer than `cohort_size` only with `'smaller_cohort'`.
        """
        users = self.users(round)
        groups = self.group_indices(round)
        for shortage in self.shortages:
            if shortage.round == round:
                _log.warning("%s; %s", _in_words(shortage), self.when_exhausted)
        names = [group.name for group in self.groups]
        return [
            Participant(int(user), names[group])
            for user, group in zip(users, groups, strict=True)
        ]

    def users(self, round: int) -> np.ndarray:
        """Returns the users of a round's cohort."""
        return self._table.users[self._slice(round)]

    def group_indices(self, round: int) -> np.ndarray:
        """Returns, for each of `users(round)`, the position of the user's group."""
        return self._table.groups[self._slice(round)]

    def _slice(self, round: int) -> slice:
        """Returns where a round is in the table."""
        checks.whole("round", round, least=0, most=self.rounds - 1)
        return slice(*self._table.bounds[round : round + 2])

    def _first_shortages(self) -> list[Shortage]:
        """Returns each group's first shortage."""
        first: dict[str, Shortage] = {}
        for shortage in self.shortages:
            first.setdefault(shortage.group, shortage)
        return list(first.values())

    def describe(self) -> str:
        """Returns in words who takes part when."""
        population = np.unique(np.concatenate([g.users for g in self.groups]))
        parts = [
            f"cohorts of {self.cohort_size} in {self.rounds:,} rounds, drawn from "
            f"{len(population):,} users ({sizes_in_words(self.groups)})",
            self.participation.describe(),
        ]
        if self.schedule is not None:
            parts.append(
                f"{self.schedule.describe()}, {self.split} split, starting with "
                f"{self.groups[0].name}"
            )
        if self.shortages:
            short = len({s.round for s in self.shortages})
            parts.append(
                f"{short:,} rounds fall short, first: {_in_words(self.shortages[0])} "
                f"({self.when_exhausted})"
            )
        return "; ".join(parts)


@dataclasses.dataclass(frozen=True)
class _Table:
    """Cohorts one after the other; round t is at bounds[t] to bounds[t + 1]."""

    users: np.ndarray
    groups: np.ndarray
    bounds: np.ndarray
    shortages: tuple[Shortage, ...]


def _in_words(shortage: Shortage) -> str:
    """Returns a shortage in words."""
    return (
        f"round {shortage.round}: group {shortage.group!r} has {shortage.found} users "
        f"left of the {shortage.wanted} wanted"
    )


def _check(sampler: Sampler) -> None:
    """Raises a ValueError that names the wrong argument."""
    if len(sampler.groups) not in (1, 2):
        raise ValueError(f"groups: must be one or two, got {len(sampler.groups)}")
    for group in sampler.groups:
        users = np.asarray(group.users)
        if users.ndim != 1 or not np.issubdtype(users.dtype, np.integer):
            raise ValueError(f"groups: users of {group.name!r} must be integers")
        if len(users) == 0:
            raise ValueError(f"groups: {group.name!r} has no users")
        if len(np.unique(users)) != len(users):
            raise ValueError(f"groups: {group.name!r} holds a user twice")
    if len({group.name for group in sampler.groups}) != len(sampler.groups):
        raise ValueError("groups: the two groups must have different names")
    if (sampler.schedule is None) != (len(sampler.groups) == 1):
        raise ValueError(
            f"schedule={sampler.schedule}: two groups need a schedule, one has none"
        )
    checks.make_whole(sampler, "cohort_size", "rounds")
    if not checks.is_whole(sampler.seed):
        raise ValueError(f"seed must be a whole number, got {sampler.seed!r}")
    object.__setattr__(sampler, "seed", int(sampler.seed))
    checks.choice("split", sampler.split, SPLIT_MODES)
    checks.choice("when_exhausted", sampler.when_exhausted, EXHAUSTED_MODES)


def _generator(seed: int, stream: int, round: int) -> np.random.Generator:
    """Returns the random stream of a round."""
    return np.random.Generator(
        np.random.Philox(
            key=np.array([seed & (2**64 - 1), stream], np.uint64),
            counter=np.array([0, 0, 0, round], np.uint64),
        )
    )


def _draw_all(sampler: Sampler) -> _Table:
    """Draws the cohorts of all rounds, one after the other."""
    population = np.unique(np.concatenate([g.users for g in sampler.groups]))
    members = [np.searchsorted(population, g.users) for g in sampler.groups]
    register = make_register(sampler.participation, members, len(population))
    sizes: list[int] = []
    users: list[np.ndarray] = []
    groups: list[np.ndarray] = []
    shortages: list[Shortage] = []
    for t in range(sampler.rounds):
        generator = _generator(sampler.seed, _STREAM_ROUND, t)
        wanted = _wanted(sampler, t, generator)
        taken: list[np.ndarray] = []
        missing = 0
        for index, number in enumerate(wanted):
            chosen = register.take(index, number, t, generator)
            taken.append(chosen)
            if len(chosen) < number:
                name = sampler.groups[index].name
                shortages.append(Shortage(t, name, number, len(chosen)))
                missing += number - len(chosen)
                if sampler.when_exhausted == "error":
                    raise _exhausted(sampler, shortages[-1])
        owners = list(range(len(wanted)))
        if missing and sampler.when_exhausted == "fill_from_other":
            for index in range(len(wanted)):
                chosen = register.take(index, missing, t, generator)
                taken.append(chosen)
                owners.append(index)
                missing -= len(chosen)
            if missing:
                raise _exhausted(sampler, shortages[-1])
        users.extend(population[chosen] for chosen in taken)
        groups.extend(
            np.full(len(chosen), owner, np.int8)
            for chosen, owner in zip(taken, owners, strict=True)
        )
        sizes.append(sum(len(chosen) for chosen in taken))
    return _Table(
        users=np.concatenate(users),
        groups=np.concatenate(groups),
        bounds=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        shortages=tuple(shortages),
    )


def _exhausted(sampler: Sampler, shortage: Shortage) -> ExhaustedError:
    """Returns the error for a shortage that is not allowed."""
    return ExhaustedError(
        f"{_in_words(shortage)} under {sampler.participation!r} (cohort_size="
        f"{sampler.cohort_size}, rounds={sampler.rounds}). Fewer rounds, a smaller "
        "cohort or another participation schema would fit; when_exhausted="
        f"{sampler.when_exhausted!r} allows no way around it",
        shortage,
    )


def _wanted(sampler: Sampler, t: int, generator: np.random.Generator) -> list[int]:
    """Returns how many users round `t` asks of each group."""
    if sampler.schedule is None:
        return [sampler.cohort_size]
    share = sampler.schedule.share(t)
    if sampler.split == "fixed":
        first = int(np.floor(sampler.cohort_size * share + 0.5))
    else:
        first = int((generator.random(sampler.cohort_size) < share).sum())
    return [first, sampler.cohort_size - first]
