"""Processes of this machine that work on independent jobs.

They are spawned, so that nothing of this process is copied but what is sent, and they
never outlive the thread that started them (`tff_agg.processes`).
"""

import atexit
import collections
import contextlib
import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from multiprocessing import connection
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from tff_agg import processes

_T = TypeVar("_T")
# Before a process that is done with its work is killed.
_END_SECONDS = 10.0


class Ended(NamedTuple):
    """A job that has ended.

    Attributes:
      position: Where its item stands among the items.
      value: What the function returned; None if it failed.
      error: What it raised; None if it did not. One of another process has a note with
        where that was.
    """

    position: int
    value: Any
    error: Exception | None

    def result(self) -> Any:
        """Returns the value, or raises the error."""
        if self.error is not None:
            raise self.error
        return self.value


#: Called with the position of an item and with what its job gave to `tell`.
OnReport = Callable[[int, Any], None]


class _Report(NamedTuple):
    """What a job has given to `tell`."""

    message: Any


# Sends something to the process that spread the job; None where no job is running.
_send: Callable[[object], None] | None = None


def tell(message: object) -> None:
    """Sends a message to the process that has spread this job, for its `on_report`.

    It goes nowhere where there is no other process: with one process, and on a cluster.

    Args:
      message: Picklable.
    """
    if _send is not None:
        _send(_Report(message))


class Processes:
    """Processes of this machine that stay for several calls of `spread`.

    To be used in a `with` block and from one thread. Where the block ends with an
    exception, they are ended in the middle of their work.

    Args:
      count: How many at most; with 1 jobs run in the calling thread.
      set_up: As for `spread`.

    Example:
      >>> with Processes(1) as crew:
      ...     total = sum(ended.result() for ended in crew.spread(abs, range(-3, 3)))
    """

    def __init__(self, count: int, set_up: Callable[[], object] | None = None):
        if count < 1:
            raise ValueError(f"processes={count!r} must be at least 1")
        self._count = count
        self._set_up = set_up
        self._idle: list[_Process] = []
        self._busy: list[_Process] = []

    def spread(
        self,
        function: Callable[[_T], object],
        items: Iterable[_T],
        near: Callable[[_T], Hashable] | None = None,
        on_report: OnReport | None = None,
    ) -> Generator[Ended, None, None]:
        """Calls a function with each item; all as in the function `spread`."""
        waiting = _Waiting(items, near)
        if self._count == 1:
            alike: Hashable = None
            while (taken := waiting.take(alike, ())) is not None:
                position, item, alike = taken
                yield _called(function, position, item)
            return
        sent = _pickled(function, "function")
        self._fill(sent, waiting)
        while self._busy:
            answered = connection.wait([process.line for process in self._busy])
            for process in [p for p in self._busy if p.line in answered]:
                ended = process.read_answer()
                if isinstance(ended, _Report):
                    if on_report is not None:
                        on_report(process.position, ended.message)
                elif ended is not None:
                    self._busy.remove(process)
                    if process.is_alive():
                        self._idle.append(process)
                    self._fill(sent, waiting)
                    yield ended

    def _fill(self, function: bytes, waiting: "_Waiting[Any]") -> None:
        while len(self._busy) < self._count and self._give(function, waiting):
            pass

    def _give(self, function: bytes, waiting: "_Waiting[Any]") -> bool:
        """Starts a job if there is one left, in a process that had one like it."""
        elsewhere = [process.alike for process in self._busy]
        useful = [p for p in self._idle if waiting.has(p.alike)] or self._idle
        process = useful[0] if useful else None
        taken = waiting.take(process.alike if process else None, elsewhere)
        if taken is None:
            return False
        position, item, alike = taken
        sent = _pickled(item, f"items[{position}]")
        if process is None:
            process = _Process(self._set_up)
        else:
            self._idle.remove(process)
        self._busy.append(process)
        process.begin(function, position, sent, alike)
        return True

    def __enter__(self) -> Self:
        # Where a generator is left as it is, the interpreter would wait for them.
        atexit.register(self._kill)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self._busy:
            for process in self._idle:
                process.close()
        else:
            self._kill()
        self._idle, self._busy = [], []
        atexit.unregister(self._kill)

    def _kill(self) -> None:
        for process in (*self._idle, *self._busy):
            process.kill()


class _Waiting(Generic[_T]):
    """Items that no process has been given, by what they are near to."""

    def __init__(self, items: Iterable[_T], near: Callable[[_T], Hashable] | None):
        self._near = near
        self._rest = enumerate(items)
        self._groups: dict[Hashable, collections.deque[tuple[int, _T]]] = {}
        if near is not None:
            for position, item in self._rest:
                group = self._groups.setdefault(near(item), collections.deque())
                group.append((position, item))

    def has(self, alike: Hashable) -> bool:
        """Returns whether an item of this kind is left."""
        return alike in self._groups

    def take(
        self, alike: Hashable, elsewhere: Sequence[Hashable]
    ) -> tuple[int, _T, Hashable] | None:
        """Takes an item with its position and kind; None if there is none.

        Args:
          alike: The kind that is best.
          elsewhere: The kinds that other processes are at.
        """
        if self._near is None:
            first = next(self._rest, None)
            return None if first is None else (*first, None)
        if not self._groups:
            return None
        if alike not in self._groups:
            fresh = [kind for kind in self._groups if kind not in elsewhere]
            most = max(self._groups, key=lambda kind: len(self._groups[kind]))
            alike = fresh[0] if fresh else most
        group = self._groups[alike]
        position, item = group.popleft()
        if not group:
            del self._groups[alike]
        return position, item, alike


class _Process:
    """A process that works on one job at a time.

    Attributes:
      line: This end of the line to it.
      alike: The kind of its latest item.
      position: Where that stands among the items.
    """

    def __init__(self, set_up: Callable[[], object] | None):
        spawn = multiprocessing.get_context("spawn")
        self.line, theirs = spawn.Pipe()
        self.alike: Hashable = None
        self._function: bytes | None = None
        self.position = 0
        self._is_ready = False
        self._process = spawn.Process(
            target=_serve, args=(theirs, os.getpid(), set_up), name="tff_agg-job"
        )
        self._process.start()
        theirs.close()

    def begin(
        self, function: bytes, position: int, item: bytes, alike: Hashable
    ) -> None:
        """Gives it a job."""
        self.position, self.alike = position, alike
        known = self._function == function
        self._function = function
        # It may have died: `read_answer` says so.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.line.send((None if known else function, position, item))

    def read_answer(self) -> Ended | _Report | None:
        """Reads the line, which has something to read.

        Returns:
          How the job has ended, or what it tells; None where the process is only
          ready to begin.

        Raises:
          Exception: What `set_up` has raised.
          RuntimeError: The process has never begun to work.
        """
        try:
            answer = self.line.recv_bytes()
        except (EOFError, ConnectionResetError):
            self._process.join()
            return self._died()
        if not self._is_ready:
            failed = pickle.loads(answer)
            if failed is not None:
                raise failed
            self._is_ready = True
            return None
        try:
            return pickle.loads(answer)
        except Exception as error:
            return Ended(self.position, None, error)

    def _died(self) -> Ended:
        code = self._process.exitcode or 0
        if not self._is_ready:
            raise RuntimeError(
                f"a process ended with exit code {code} before it had its first job. A "
                'program that spreads jobs must start under if __name__ == "__main__":,'
                " for its processes import it again."
            )
        cause = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        error = RuntimeError(f"the process that worked on it was ended {cause}")
        return Ended(self.position, None, error)

    def is_alive(self) -> bool:
        """Returns whether it can be given another job."""
        return self._process.is_alive()

    def close(self) -> None:
        """Ends it between two jobs."""
        self.line.close()
        self._process.join(_END_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Ends it in the middle of its work."""
        self._process.kill()
        self._process.join()
        self.line.close()


def _serve(
    line: connection.Connection, parent: int, set_up: Callable[[], object] | None
) -> None:
    """Works on jobs, in a process of its own, until the line is closed."""
    processes.end_with_parent(parent)
    # Ctrl-C is for the process that gave the work; it ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        if set_up is not None:
            set_up()
    except Exception as error:
        line.send(portable_error(error))
        return
    line.send(None)
    global _send
    _send = line.send
    function = b""
    while True:
        try:
            new, position, item = line.recv()
        except EOFError:
            return
        function = function if new is None else new
        ended = called_with(pickle.loads, function, position, item)
        try:
            answer = pickle.dumps(ended)
        except Exception as error:
            answer = pickle.dumps(Ended(position, None, portable_error(error)))
        line.send_bytes(answer)


def _called(function: Callable[[_T], object], position: int, item: _T) -> Ended:
    try:
        return Ended(position, function(item), None)
    except Exception as error:
        return Ended(position, None, error)


def called_with(
    loads: Callable[[bytes], Any], function: bytes, position: int, item: bytes
) -> Ended:
    """Runs a job that was sent as bytes; its error can be sent back."""
    try:
        return Ended(position, loads(function)(loads(item)), None)
    except Exception as error:
        error.add_note("In another process:\n" + traceback.format_exc().rstrip())
        return Ended(position, None, portable_error(error))


def portable_error(error: Exception) -> Exception:
    """Returns an error; one that cannot be pickled as its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            plain.add_note(note)
        return plain
    return error


def _pickled(value: object, name: str) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"{name}: cannot be sent to another process ({error}). What jobs need must "
            "be picklable: a function of a module, not one inside another"
        ) from error
