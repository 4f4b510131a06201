"""Who took part when, and who may therefore take part now."""

import numpy as np

from tff_agg.privacy.participation import (
    AtMostOnce,
    FixedEpochOrder,
    MinSeparation,
    Participation,
)

_NEVER = -(1 << 40)


class Register:
    """Who took part when, for schemas that look at distance and number only."""

    def __init__(
        self, members: list[np.ndarray], population: int, separation: int, most: int
    ):
        self._members = members
        self._last = np.full(population, _NEVER, np.int64)
        self._times = np.zeros(population, np.int64)
        self._separation = max(1, separation)
        self._most = most

    def _allowed(self, users: np.ndarray, t: int) -> np.ndarray:
        """Tells which users may take part in round `t`."""
        return (t - self._last[users] >= self._separation) & (
            self._times[users] < self._most
        )

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
            self._note(found, t)
            chosen = np.concatenate([chosen, found])
        need = number - len(chosen)
        if need:
            left = members[self._allowed(members, t)]
            order = np.argsort(generator.random(len(left)), kind="stable")[:need]
            self._note(left[order], t)
            chosen = np.concatenate([chosen, left[order]])
        return chosen

    def _note(self, users: np.ndarray, t: int) -> None:
        """Notes that users take part in round `t`."""
        self._last[users] = t
        self._times[users] += 1


class _EpochRegister(Register):
    """Every user keeps the round of the epoch that it first took part in."""

    def __init__(
        self, members: list[np.ndarray], population: int, length: int, most: int
    ):
        super().__init__(members, population, separation=1, most=most)
        self._inside = [np.isin(np.arange(population), group) for group in members]
        self._slots: list[np.ndarray] = [np.empty(0, np.int64) for _ in range(length)]

    def _allowed(self, users: np.ndarray, t: int) -> np.ndarray:
        """Tells which users are new; those of the epoch's round are taken first."""
        return self._times[users] == 0

    def take(
        self, group: int, number: int, t: int, generator: np.random.Generator
    ) -> np.ndarray:
        """Takes the group's users of this round of the epoch, then new ones."""
        slot = t % len(self._slots)
        mine = self._slots[slot]
        free = (self._last[mine] < t) & (self._times[mine] < self._most)
        mine = mine[self._inside[group][mine] & free][:number]
        self._note(mine, t)
        new = super().take(group, number - len(mine), t, generator)
        self._slots[slot] = np.concatenate([self._slots[slot], new])
        return np.concatenate([mine, new])


def make_register(
    schema: Participation, members: list[np.ndarray], population: int, rounds: int
) -> Register:
    """Returns the book-keeping that enforces a schema.

    Args:
      schema: The participation schema.
      members: The users of each group, as numbers below `population`.
      population: The number of users.
      rounds: Rounds of the run.

    Returns:
      A register without any participation yet.

    Example:
      >>> register = make_register(AtMostOnce(), [np.arange(10)], 10, rounds=5)
      >>> len(register.take(0, 3, t=0, generator=np.random.default_rng(1)))
      3
    """
    if isinstance(schema, AtMostOnce):
        return Register(members, population, separation=1, most=1)
    if isinstance(schema, MinSeparation):
        most = schema.max_participations or rounds
        return Register(members, population, schema.separation, most)
    if isinstance(schema, FixedEpochOrder):
        return _EpochRegister(members, population, schema.epoch_length, rounds)
    raise TypeError(
        f"participation={schema!r}: must be AtMostOnce, MinSeparation or "
        "FixedEpochOrder"
    )
