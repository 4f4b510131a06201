"""Does one thing after the other in a thread, while the caller goes on."""

import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

# How long an interruption may go unnoticed while the thread is waited for.
_AWAKE_SECONDS = 0.1


class Background:
    """A thread that does what it is given in order; at most one thing is under way.

    What goes wrong in it is raised by `wait`, and where the next thing is given, which
    is not done then. At the end of the block what is under way is waited for,
    whatever ends it: an error, or an interruption, which is raised then. Of two errors
    that of the thread is raised, because what it does was begun earlier.

    The caller and the thread share queues that are written in C: an interruption leaves
    no lock behind.

    Example:
      >>> found = []
      >>> with Background() as background:
      ...   background.do(found.append, 1)
      ...   background.do(found.append, 2)  # once the first is done
      ...   background.wait()
      >>> found
      [1, 2]
    """

    def __init__(self) -> None:
        """Does nothing yet."""
        self._given: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._busy = False
        self._thread = threading.Thread(
            target=self._work, name="background", daemon=True
        )

    def do(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Calls a function in the thread, as soon as what was given before is done.

        It sees the caller's context variables, such as who listens to progress.
        """
        self.wait()
        self._busy = True
        context = contextvars.copy_context()
        self._given.put(lambda: context.run(function, *arguments))

    def wait(self) -> None:
        """Returns when nothing is under way; raises what went wrong in it."""
        while self._busy:
            # A signal that comes just before the thread falls asleep does not wake it.
            with contextlib.suppress(queue.Empty):
                error = self._ended.get(timeout=_AWAKE_SECONDS)
                self._busy = False
                if error is not None:
                    raise error

    def _work(self) -> None:
        while (function := self._given.get()) is not None:
            error: BaseException | None = None
            try:
                function()
            except BaseException as raised:
                error = raised
            self._ended.put(error)
            # It holds a state, and an error its frames.
            del function, error

    def __enter__(self) -> Self:
        """Starts the thread."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the thread, once what is under way is done."""
        interruption: BaseException | None = None
        while self._thread.is_alive():
            try:
                self._given.put(None)
                self._thread.join(_AWAKE_SECONDS)
            except BaseException as raised:
                # A second Ctrl-C, say: that must not let go of the thread.
                interruption = raised
        if interruption is not None:
            raise interruption
        if not isinstance(error, KeyboardInterrupt) and not self._ended.empty():
            self.wait()
