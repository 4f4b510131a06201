"""Ctrl-C and SIGTERM, answered with one line instead of a traceback.

A command calls `install` first. From then on both signals raise `Interrupted` wherever
the main thread is, so that everything on the way out is left in order: lanes stop,
worker processes end, files that are not whole are removed. `plain_ending` says so to
the user, and ends the program with the exit status that shells expect.
"""

import contextlib
import signal
import sys
import types
from collections.abc import Callable, Iterator
from typing import NoReturn

_IMPATIENT = 3


class Interrupted(KeyboardInterrupt):
    """Somebody wants the program to end.

    Attributes:
      number: The signal's number.
    """

    def __init__(self, number: int = signal.SIGINT):
        super().__init__(signal.Signals(number).name)
        self.number = number


def install() -> None:
    """Makes SIGINT and SIGTERM raise `Interrupted` in the main thread, for good.

    The third Ctrl-C ends the program at once: what is saved is whole at any time.
    """
    times = 0

    def handle(number: int, frame: types.FrameType | None) -> NoReturn:
        nonlocal times
        times += number == signal.SIGINT
        if times >= _IMPATIENT:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        raise Interrupted(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


@contextlib.contextmanager
def plain_ending(how_to_go_on: Callable[[], str]) -> Iterator[None]:
    """Ends the program with a line, and the status 130 or 143, where it is interrupted.

    Args:
      how_to_go_on: Returns what is done and what to do next, in a line.

    Raises:
      SystemExit: In the place of an interruption.

    Example:
      with plain_ending(lambda: 'Run the same command again to go on.'):
          train()
    """
    try:
        yield
    except KeyboardInterrupt as error:
        # `timeout` sends its signal twice: the second must not disturb the ending.
        for other in (signal.SIGINT, signal.SIGTERM):
            signal.signal(other, signal.SIG_IGN)
        number = error.number if isinstance(error, Interrupted) else signal.SIGINT
    else:
        return
    line = f"Stopped by {signal.Signals(number).name}. {how_to_go_on()}"
    print(f"\n{line}", file=sys.stderr, flush=True)
    sys.exit(128 + number)
