"""Who took part when, and who may therefore take part now: what enforces a schema.

Nothing here is shared with what checks it (`tff_agg/privacy/cohorts.py`).
"""

import dataclasses

import numpy as np

from tff_agg.privacy.participation import (
    MinSeparation,
    Participation,
    check_schema,
)

# So long before every round that no separation reaches back to it.
NEVER = -(1 << 40)


@dataclasses.dataclass(frozen=True)
class History:
    """What some users did before a round, one entry per user.

    Attributes:
      first: The first round of each; `NEVER` where there was none.
      last: The last round of each; `NEVER` where there was none.
      times: How often each took part.
    """

    first: np.ndarray
    last: np.ndarray
    times: np.ndarray

    @classmethod
    def empty(cls, users: int) -> "History":
        """Returns the history of users who have not taken part yet."""
        never = np.full(users, NEVER, np.int64)
        return cls(never, never.copy(), np.zeros(users, np.int64))

    def of(self, users: np.ndarray) -> "History":
        """Returns the entries of some users."""
        return History(self.first[users], self.last[users], self.times[users])

    def note(self, users: np.ndarray, t: int) -> None:
        """Notes, in place, that users take part in round `t`."""
        self.first[users] = np.where(self.times[users] == 0, t, self.first[users])
        self.last[users] = t
        self.times[users] += 1


def may_join(schema: Participation, t: int, history: History) -> np.ndarray:
    """Returns which users may take part in round `t`, given their past rounds.

    Example:
      >>> may_join(MinSeparation(3), 2, History.empty(2)).tolist()
      [True, True]
    """
    if isinstance(schema, MinSeparation):
        most, fits = schema.max_participations, t - history.last >= schema.separation
    else:
        most = schema.epochs
        same_place = (t - history.first) % schema.epoch_length == 0
        fits = (history.times == 0) | (t > history.last) & same_place
    return fits if most is None else fits & (history.times < most)


class Register:
    """Draws from the users whom the schema allows, in no particular order."""

    def __init__(
        self, schema: Participation, members: list[np.ndarray], population: int
    ):
        self._schema = schema
        self._members = members
        self._history = History.empty(population)

    def _allowed(self, users: np.ndarray, t: int) -> np.ndarray:
        """Returns which users may take part in round `t`."""
        return may_join(self._schema, t, self._history.of(users))

    def take(
        self, group: int, number: int, t: int, generator: np.random.Generator
    ) -> np.ndarray:
        """Takes `number` users of a group, or as many as there are, at random."""
        members = self._members[group]
        chosen = np.empty(0, np.int64)
        # Guessing is fast while most users are allowed; the full list is the fallback.
        for _ in range(4):
            need = number - len(chosen)
            if need == 0:
                break
            guess = (generator.random(2 * need + 8) * len(members)).astype(np.int64)
            found = members[guess]
            found = found[self._allowed(found, t)]
            _, first = np.unique(found, return_index=True)
            found = found[np.sort(first)][:need]
            self._history.note(found, t)
            chosen = np.concatenate([chosen, found])
        need = number - len(chosen)
        if need:
            left = members[self._allowed(members, t)]
            order = np.argsort(generator.random(len(left)), kind="stable")[:need]
            self._history.note(left[order], t)
            chosen = np.concatenate([chosen, left[order]])
        return chosen


class _CyclicRegister(Register):
    """Every user keeps the round of the cycle that it first took part in."""

    def __init__(
        self, schema: Participation, members: list[np.ndarray], population: int
    ):
        super().__init__(schema, members, population)
        assert schema.cycle is not None
        self._inside = [np.isin(np.arange(population), group) for group in members]
        self._slots: list[np.ndarray] = [
            np.empty(0, np.int64) for _ in range(schema.cycle)
        ]

    def _allowed(self, users: np.ndarray, t: int) -> np.ndarray:
        """Returns which users are new; those of the cycle's round are taken first."""
        return self._history.times[users] == 0

    def take(
        self, group: int, number: int, t: int, generator: np.random.Generator
    ) -> np.ndarray:
        """Takes the group's users of this round of the cycle, then new ones."""
        slot = t % len(self._slots)
        mine = self._slots[slot]
        free = may_join(self._schema, t, self._history.of(mine))
        mine = mine[self._inside[group][mine] & free][:number]
        self._history.note(mine, t)
        new = super().take(group, number - len(mine), t, generator)
        self._slots[slot] = np.concatenate([self._slots[slot], new])
        return np.concatenate([mine, new])


def make_register(
    schema: Participation, members: list[np.ndarray], population: int
) -> Register:
    """Returns the book-keeping that lets the schema decide who may be drawn.

    Args:
      schema: The participation schema.
      members: The users of each group, as numbers below `population`.
      population: The number of users.

    Returns:
      A register without any participation yet.

    Example:
      >>> register = make_register(MinSeparation(2), [np.arange(10)], 10)
      >>> len(register.take(0, 3, t=0, generator=np.random.default_rng(1)))
      3
    """
    kind = Register if check_schema(schema).cycle is None else _CyclicRegister
    return kind(schema, members, population)
