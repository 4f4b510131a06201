"""Work spread over processes that never outlive the one that started them."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

import pyarrow as pa

from tff_agg import processes

Item = TypeVar("Item")
Result = TypeVar("Result")


class Run(Protocol):
    """Maps a function over items."""

    def __call__(
        self, function: Callable[[Item], Result], items: Iterable[Item], /
    ) -> Iterator[Result]:
        """Yields the results as they are done, in any order."""


@contextlib.contextmanager
def mapper(workers: int) -> Iterator[Run]:
    """Yields `run(function, items)`, which yields results as they are done.

    To be used from one thread: workers end with the thread that started them. Where
    the block ends with an exception, they are ended in the middle of their work.

    Args:
      workers: Processes; with 1 everything runs in this one.

    Example:
      >>> with mapper(2) as run:
      ...     total = sum(run(abs, range(-3, 3)))
    """
    if workers == 1:
        yield lambda function, items: map(function, items)
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(os.getpid(),),
    )

    def run(
        function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[Result]:
        # A few tasks in flight at a time: the list of all results is never held.
        waiting: set[concurrent.futures.Future[Result]] = set()
        for item in items:
            waiting.add(pool.submit(function, item))
            while len(waiting) >= 2 * workers:
                done, waiting = concurrent.futures.wait(
                    waiting, return_when=concurrent.futures.FIRST_COMPLETED
                )
                yield from (future.result() for future in done)
        for future in concurrent.futures.as_completed(waiting):
            yield future.result()

    try:
        yield run
    except BaseException:
        # Nobody waits for what they are at: a part that is not whole is made again.
        for process in list((pool._processes or {}).values()):
            process.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(parent: int) -> None:
    """Readies a worker."""
    processes.end_with_parent(parent)
    # Ctrl-C is for the process that gave the work; it ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pa.set_cpu_count(1)  # one core a worker
