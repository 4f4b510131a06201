"""Reads the next round's clients while this one is computed."""

import concurrent.futures
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from tff_agg.aliases import Structure

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """Gives the clients of one round after the other, each read a round before.

    Only one is read at a time. The clients of a round are the same as if they were
    read in it: they follow from its number and from a secret that all states share.
    What goes wrong is raised when the round's clients are asked for, so that the round
    before is saved and reported. At the end a read that is under way is waited for.

    Args:
      read: Returns a round's clients, by its number and the state before it.
      rounds: How many rounds there are.

    Example:
      >>> with ReadAhead(lambda number, state: [number], rounds=3) as clients_of:
      ...   [clients_of(number, None) for number in range(3)]
      [[0], [1], [2]]
    """

    def __init__(self, read: Callable[[int, Structure], T], rounds: int):
        """Reads nothing yet."""
        self._read, self._rounds = read, rounds
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        self._next: tuple[int, concurrent.futures.Future[T]] | None = None

    def __call__(self, number: int, state: Structure) -> T:
        """Returns the clients of a round, and begins to read those of the next one."""
        if self._next is not None and self._next[0] == number:
            clients = self._next[1].result()
        else:
            # The first round's: a task may build what it needs once.
            clients = self._read(number, state)
        self._next = None
        if self._thread is not None and number + 1 < self._rounds:
            waiting = self._thread.submit(self._read, number + 1, state)
            self._next = number + 1, waiting
        return clients

    def __enter__(self) -> Self:
        """Starts the thread."""
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "read-ahead")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the thread."""
        assert self._thread is not None
        self._thread.shutdown(wait=True, cancel_futures=True)
