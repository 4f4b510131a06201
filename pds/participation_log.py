"""Who took part in which round, noted round by round: for loops of one's own.

A `Sampler` draws all cohorts in advance. Where clients come as they like, a loop asks
the log who may join and tells it who did; the log is stored with the loop's state.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from pds.register import History, may_join
from tff_agg import checks
from tff_agg.aliases import JsonObject
from tff_agg.privacy import participation
from tff_agg.privacy.participation import Participation, as_ids, check_schema


class ParticipationLog:
    """Lets users take part as a schema allows, whatever their ids are.

    Example:
      >>> log = ParticipationLog(participation.MinSeparation(2))
      >>> log.record(0, ['anna', 'ben'])
      >>> log.may_join(1, ['anna', 'carl']).tolist()
      [False, True]
    """

    def __init__(self, schema: Participation):
        """Starts without any participation."""
        self.schema = check_schema(schema)
        self._places: dict[Hashable, int] = {}
        self._history = History.empty(64)

    def __len__(self) -> int:
        return len(self._places)

    def may_join(self, t: int, ids: Iterable[Hashable]) -> np.ndarray:
        """Returns, for each of some users, whether it may take part in round `t`.

        Args:
          t: The round, from 0.
          ids: The users; whole numbers of any size, names, or anything hashable.
        """
        return self._may_join(checks.whole("t", t, least=0), as_ids(ids))

    def _may_join(self, t: int, users: list[Hashable]) -> np.ndarray:
        """Does the work of `may_join`."""
        places = [self._places.get(user, -1) for user in users]
        known = np.array([place for place in places if place >= 0], np.int64)
        allowed = np.ones(len(users), bool)
        allowed[np.array(places, np.int64) >= 0] = may_join(
            self.schema, t, self._history.of(known)
        )
        return allowed

    def record(self, t: int, ids: Iterable[Hashable]) -> None:
        """Notes that users take part in round `t`: all of them, or none if one may not.

        Raises:
          ValueError: Names a user that may not join, or that is there twice.
        """
        users = as_ids(ids)
        allowed = self._may_join(checks.whole("t", t, least=0), users)
        if not allowed.all():
            user = users[int(np.argmin(allowed))]
            last = int(self._history.last[self._places[user]])
            raise ValueError(
                f"user {user!r} may not take part in round {t}: its last round was "
                f"{last}, and the promise is: {self.schema.describe()}"
            )
        if len(set(users)) < len(users):
            user = next(user for user in users if users.count(user) > 1)
            raise ValueError(f"user {user!r} is in the cohort of round {t} twice")
        for user in users:
            self._places.setdefault(user, len(self._places))
        while len(self._history.times) < len(self._places):
            self._history = _doubled(self._history)
        self._history.note(np.array([self._places[u] for u in users], np.int64), t)

    def to_json(self) -> JsonObject:
        """Returns the log as JSON values, to be stored with a run's state.

        Raises:
          ValueError: An id is neither a whole number nor text, so that JSON would not
            give it back.
        """
        for user in self._places:
            if not isinstance(user, int | str):
                raise ValueError(
                    f"ids must be whole numbers or text to be stored, got {user!r}"
                )
        count = len(self._places)
        return {
            "schema": self.schema.to_json(),
            "ids": [user for user in self._places if isinstance(user, int | str)],
            "first": self._history.first[:count].tolist(),
            "last": self._history.last[:count].tolist(),
            "times": self._history.times[:count].tolist(),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ParticipationLog":
        """Returns the log that `to_json` gave back.

        Raises:
          ValueError: The values are not those of a log.
        """
        log = cls(participation.from_json(values["schema"]))
        log._places = {user: place for place, user in enumerate(values["ids"])}
        columns = [np.array(values[k], np.int64) for k in ("first", "last", "times")]
        if {len(column) for column in columns} != {len(values["ids"])} or len(
            log._places
        ) < len(values["ids"]):
            raise ValueError(
                "a participation log must have one first, last and times for each of "
                f"its different ids; got {len(log._places)} ids and "
                f"{[len(column) for column in columns]}"
            )
        log._history = History(*columns)
        return log


def _doubled(history: History) -> History:
    """Returns a history with room for twice as many users, and one."""
    more = History.empty(len(history.times) + 1)
    return History(
        np.concatenate([history.first, more.first]),
        np.concatenate([history.last, more.last]),
        np.concatenate([history.times, more.times]),
    )
