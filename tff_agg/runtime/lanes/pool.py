"""Lanes: where clients are worked through, side by side.

A lane is a thread and a device. On CPUs there is one lane for each core; where
TensorFlow sees GPUs there is one for each GPU. Which client goes to which lane never
depends on timing: client i goes to lane i modulo the number of lanes, or, where the
clients' amounts of work are known, to where they even out. Each lane adds up its
clients in order, and the lanes' sums are merged in order. A round therefore gives the
same bits however long each client takes.
"""

import concurrent.futures
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from tff_agg import checks
from tff_agg.processes import usable_cores
from tff_agg.runtime.devices import resolve

_T = TypeVar("_T")

# How long an interruption may go unnoticed while lanes are at work.
_AWAKE_SECONDS = 0.1
# Between two looks at whether lanes have stopped, after an interruption only.
_POLL_SECONDS = 0.002


class Lane(NamedTuple):
    """One thread's place.

    Attributes:
      number: The lane's place among the lanes, from 0.
      device: Name of a TensorFlow device, such as 'CPU:0'.
    """

    number: int
    device: str


class ClientRun(NamedTuple):
    """What an observer receives after each client.

    Attributes:
      position: The client's place in the list given to the computation.
      lane: The lane that ran it.
      seconds: How long the call took.
    """

    position: int
    lane: Lane
    seconds: float


def choose_lanes(
    lanes: int | None = None, devices: Sequence[str] | None = None
) -> tuple[Lane, ...]:
    """Decides on which devices how many lanes run.

    Args:
      lanes: How many; the number of GPUs, else of usable cores, where None.
      devices: Names of TensorFlow devices, shared out in turn; all GPUs where None,
        and where there are none, the first CPU device.

    Returns:
      The lanes.
    """
    import tensorflow as tf

    lanes = None if lanes is None else checks.whole("lanes", lanes)
    if devices is None:
        gpus = tf.config.list_logical_devices("GPU")
        devices = [gpu.name for gpu in gpus] or ["/device:CPU:0"]
        if lanes is None:
            lanes = len(gpus) or usable_cores()
    elif not devices:
        raise ValueError("devices: an empty list; name at least one device, or None")
    resolved = [resolve(device) for device in devices]
    count = lanes or len(resolved)
    return tuple(Lane(i, resolved[i % len(resolved)]) for i in range(count))


def assign(
    clients: int, lanes: int, costs: Sequence[float] | None = None
) -> list[list[int]]:
    """Shares out positions over lanes.

    Args:
      clients: How many clients there are.
      lanes: How many lanes there are.
      costs: How much work each client is, where that is known.

    Returns:
      For each lane its clients' positions, in order.

    Example:
      >>> assign(5, 2)
      [[0, 2, 4], [1, 3]]
      >>> assign(4, 2, costs=[1, 9, 5, 5])
      [[0, 1], [2, 3]]
    """
    if costs is None:
        return [list(range(lane, clients, lanes)) for lane in range(lanes)]
    # Longest first, each to the lane that has least; ties by position and by lane.
    load = [0.0] * lanes
    shares: list[list[int]] = [[] for _ in range(lanes)]
    for position in sorted(range(clients), key=lambda i: (-costs[i], i)):
        lane = min(range(lanes), key=lambda k: (load[k], k))
        load[lane] += costs[position]
        shares[lane].append(position)
    return [sorted(share) for share in shares]


class LanePool:
    """Threads that work through the clients of a round.

    Args:
      lanes: The lanes, one thread each.
    """

    def __init__(self, lanes: Sequence[Lane]):
        self.lanes = tuple(lanes)
        self._threads: concurrent.futures.ThreadPoolExecutor | None = None

    def run(
        self,
        clients: int,
        start: Callable[[Lane], _T],
        step: Callable[[Lane, _T, int], _T],
        costs: Sequence[float] | None = None,
    ) -> list[_T]:
        """Folds each lane's clients into a value and returns the lanes' values.

        Whatever ends it early (an error in a lane, Ctrl-C, any other exception that a
        signal handler raises here), lanes stop at their next client, and the call ends
        when the last of them has. Further interruptions are passed over until then.

        Args:
          clients: How many there are.
          start: Makes a lane's value before its first client.
          step: Adds the client at a position to a lane's value.
          costs: How much work each client is, where that is known.

        Returns:
          The values of the lanes that had clients, in the order of lanes.

        Raises:
          StepError: A step failed; the one of the first client that did.
        """
        shares = assign(clients, len(self.lanes), costs)
        busy = [lane for lane in self.lanes if shares[lane.number]] or self.lanes[:1]
        fold = _Fold(start, step, shares)
        if len(busy) == 1:
            return [fold(busy[0])]
        threads = self._threads
        if threads is None:
            threads = self._threads = concurrent.futures.ThreadPoolExecutor(
                len(self.lanes), thread_name_prefix="tff_agg-lane"
            )
        try:
            for lane in busy:
                threads.submit(fold.in_lane, lane)
            fold.wait(len(busy))
        except BaseException:
            fold.break_off()
            # It may have struck while threads were started: the next run has new ones.
            self._threads = None
            raise
        return fold.values(busy)

    def close(self) -> None:
        """Ends the threads once they are idle; another round would start new ones."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)


class _Fold(Generic[_T]):
    """The work of one run, in all of its lanes.

    A signal handler may raise in the waiting thread between any two instructions, also
    inside the standard library's conditions and futures, which then keep locks that a
    lane needs. So lanes and the waiting thread share only what the interpreter does as
    a whole: plain attributes, a plain lock and a queue written in C.
    """

    def __init__(
        self,
        start: Callable[[Lane], _T],
        step: Callable[[Lane, _T, int], _T],
        shares: Sequence[Sequence[int]],
    ):
        self._start, self._step, self._shares = start, step, shares
        self._stopped = False
        self._at_work = 0
        self._lock = threading.Lock()
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._values: dict[int, _T] = {}
        self._errors: list[BaseException] = []

    def __call__(self, lane: Lane) -> _T:
        """Works through one lane's clients in this thread."""
        value = self._start(lane)
        for position in self._shares[lane.number]:
            if self._stopped:
                break
            try:
                value = self._step(lane, value, position)
            except Exception as error:
                raise StepError(position) from error
        return value

    def in_lane(self, lane: Lane) -> None:
        """Works through one lane's clients; the others stop where it fails."""
        try:
            if self._enter():
                try:
                    self._values[lane.number] = self(lane)
                except BaseException as error:
                    self._stopped = True
                    self._errors.append(error)
                finally:
                    self._leave()
        finally:
            self._ended.put(None)

    def wait(self, lanes: int) -> None:
        """Waits until so many lanes have ended."""
        while lanes:
            # A signal that comes just before the thread falls asleep does not wake it.
            with contextlib.suppress(queue.Empty):
                self._ended.get(timeout=_AWAKE_SECONDS)
                lanes -= 1

    def break_off(self) -> None:
        """Stops all lanes; returns when none is at work and none can begin."""
        while True:
            try:
                self._stopped = True
                with self._lock:
                    if not self._at_work:
                        return
                time.sleep(_POLL_SECONDS)
            except BaseException:
                # A second Ctrl-C, say: that must not let go of lanes.
                continue

    def values(self, lanes: Sequence[Lane]) -> list[_T]:
        """Returns the lanes' values, or raises the first client's error."""
        if self._errors:
            raise min(self._errors, key=_position)
        return [self._values[lane.number] for lane in lanes]

    def _enter(self) -> bool:
        with self._lock:
            if self._stopped:
                return False
            self._at_work += 1
            return True

    def _leave(self) -> None:
        with self._lock:
            self._at_work -= 1


class StepError(Exception):
    """A client's step failed; the reason is its cause."""

    def __init__(self, position: int):
        super().__init__(f"client at position {position}")
        self.position = position


def _position(error: BaseException) -> float:
    return error.position if isinstance(error, StepError) else -1.0
