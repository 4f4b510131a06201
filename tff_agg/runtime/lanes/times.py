"""How evenly the work was shared out over lanes."""

import threading
from typing import NamedTuple

from tff_agg.runtime.lanes.pool import ClientRun


class LaneTime(NamedTuple):
    """The work of one lane.

    Attributes:
      lane: Its number.
      clients: How many clients it has worked on.
      seconds: How long they took, all together.
      share: Of the seconds of the busiest lane.
    """

    lane: int
    clients: int
    seconds: float
    share: float


class LaneTimes:
    """Adds up seconds by lane; give it to a runtime as `on_client`.

    Example:
      times = LaneTimes()
      with tff_agg.runtime.running_on('ray', lanes=8, on_client=times):
        process.next(state, datasets)
      times.table()
    """

    def __init__(self) -> None:
        """Starts at zero."""
        self._lock = threading.Lock()
        self._seconds: dict[int, list[float]] = {}

    def __call__(self, run: ClientRun) -> None:
        """Notes a client."""
        with self._lock:
            self._seconds.setdefault(run.lane.number, []).append(run.seconds)

    def restart(self) -> None:
        """Forgets what was noted: a first round, say, which compiles."""
        with self._lock:
            self._seconds.clear()

    def table(self) -> list[LaneTime]:
        """Returns the lanes in order."""
        totals = {lane: sum(times) for lane, times in sorted(self._seconds.items())}
        most = max(totals.values(), default=0.0)
        return [
            LaneTime(lane, len(self._seconds[lane]), total, total / most if most else 1)
            for lane, total in totals.items()
        ]

    def imbalance(self) -> float:
        """Returns the busiest lane's seconds over the lanes' mean; 1 is even."""
        totals = [row.seconds for row in self.table()]
        return max(totals) * len(totals) / sum(totals) if sum(totals) else 1.0
