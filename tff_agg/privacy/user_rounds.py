"""What users did before a round: all that a participation schema asks for."""

import dataclasses

import numpy as np

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
