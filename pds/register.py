"""Who took part when, and who may therefore take part now."""

import numpy as np

from tff_agg.privacy.participation import Participation, check_schema
from tff_agg.privacy.user_rounds import History


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
        return self._schema.may_join(t, self._history.of(users))

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
        free = self._schema.may_join(t, self._history.of(mine))
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
      >>> register = make_register(AtMostOnce(), [np.arange(10)], 10)
      >>> len(register.take(0, 3, t=0, generator=np.random.default_rng(1)))
      3
    """
    kind = Register if check_schema(schema).cycle is None else _CyclicRegister
    return kind(schema, members, population)
