"""Work spread over processes that never outlive the one that started them."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa


@contextlib.contextmanager
def mapper(workers: int) -> Iterator[Any]:
    """Yields `run(function, items)`, which yields results as they are done.

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
        workers, multiprocessing.get_context("spawn"), initializer=_end_with_parent
    )

    def run(function: Any, items: Iterable[Any]) -> Iterator[Any]:
        # A few tasks in flight at a time: the list of all results is never held.
        waiting: set[Any] = set()
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
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """Ends this worker when the process that started it has been killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    pa.set_cpu_count(1)  # one core a worker
