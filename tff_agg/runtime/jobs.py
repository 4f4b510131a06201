"""Independent jobs, side by side: here, in other processes, or on a Ray cluster.

A trial of a search, a run of a table, the evaluation of one run folder: such jobs know
nothing of each other. `spread` runs them and hands back each result as it comes.
"""

import concurrent.futures
import contextlib
import itertools
import pickle
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

_T = TypeVar("_T")
# What jobs on one machine exchange is small: a function, an item, a result.
_OBJECT_STORE = 2**27


class Ended(NamedTuple):
    """A job that has ended.

    Attributes:
      position: Where its item stands among the items.
      value: What the function returned; None if it failed.
      error: What it raised; None if it did not.
    """

    position: int
    value: Any
    error: Exception | None

    def result(self) -> Any:
        """Returns the value, or raises the error."""
        if self.error is not None:
            raise self.error
        return self.value


def spread(
    function: Callable[[_T], object],
    items: Sequence[_T],
    *,
    at_once: int = 1,
    processes: int = 1,
    address: str | None = None,
    cpus_per_job: float = 1,
) -> Generator[Ended, None, None]:
    """Calls a function with each item and yields results as they come.

    On a cluster a job whose machine dies is begun again elsewhere, so it has to be one
    that may: a training run is, which resumes from its folder. The folders must
    be on storage that all machines see.

    Args:
      function: The job. For other processes it must be picklable, as Ray pickles,
        and what it imports must be installed on all machines.
      items: One for each job.
      at_once: How many run at the same time in this process, in threads; with 1, in
        the calling thread and in order. A job that computes much in Python should
        start a process (`tff_agg.processes.run`), or run in one (`processes`).
      processes: How many run at the same time, each in a process of this machine that
        Ray starts and that ends with this one; 1: here.
      address: A Ray cluster to run on, as for `ray.init`; as many at a time as it has
        room for. None: this machine.
      cpus_per_job: How many CPUs of the cluster a job takes.

    Yields:
      An `Ended` for each item, in the order in which they end. An Exception of a job is
      in it; the others go on. Ending the iteration early drops jobs that have not
      begun; on a cluster it also ends those that have.

    Example:
      >>> sorted(ended.value for ended in spread(abs, [-3, 1], at_once=2))
      [1, 3]
    """
    for name, number in (("at_once", at_once), ("processes", processes)):
        if number < 1:
            raise ValueError(f"{name}={number!r} must be at least 1")
    if processes > 1 and (at_once > 1 or address is not None):
        raise ValueError(
            f"at_once={at_once}, processes={processes}, address={address!r}: jobs run "
            "in threads, in processes or on a cluster; give one of them"
        )
    if address is not None:
        yield from _on_ray(function, items, cpus_per_job, address=address)
    elif processes > 1:
        # No CPUs are asked for: where this process has a Ray already, its lanes may
        # have taken all of them.
        yield from _on_ray(
            function,
            items,
            0,
            at_once=processes,
            cpus=processes,
            object_store_bytes=_OBJECT_STORE,
        )
    elif at_once == 1:
        for position, item in enumerate(items):
            yield _ended(function, position, item)
    else:
        yield from _in_threads(function, items, at_once)


def _ended(function: Callable[[_T], object], position: int, item: _T) -> Ended:
    try:
        return Ended(position, function(item), None)
    except Exception as error:
        return Ended(position, None, error)


def _in_threads(
    function: Callable[[_T], object], items: Sequence[_T], at_once: int
) -> Generator[Ended, None, None]:
    threads = concurrent.futures.ThreadPoolExecutor(
        at_once, thread_name_prefix="tff_agg-job"
    )
    try:
        begun = [
            threads.submit(_ended, function, position, item)
            for position, item in enumerate(items)
        ]
        for done in concurrent.futures.as_completed(begun):
            yield done.result()
    finally:
        threads.shutdown(cancel_futures=True)


def _on_ray(
    function: Callable[[_T], object],
    items: Sequence[_T],
    cpus_per_job: float,
    *,
    at_once: int | None = None,
    **where: Any,
) -> Generator[Ended, None, None]:
    """Runs jobs on the Ray that a `RaySession` of these arguments connects to."""
    from tff_agg.runtime import ray_session

    with contextlib.closing(ray_session.RaySession(**where)):
        import ray

        job = ray.remote(num_cpus=cpus_per_job)(_portable)
        shared = ray.put(function)
        left = iter(enumerate(items))
        begun: dict[Any, int] = {}

        def begin(count: int | None) -> None:
            for position, item in itertools.islice(left, count):
                begun[job.remote(shared, position, item)] = position

        begin(at_once)
        try:
            while begun:
                (done,), _ = ray.wait(list(begun))
                position = begun.pop(done)
                begin(1)
                try:
                    yield ray.get(done)
                except ray.exceptions.RayError as error:
                    yield Ended(position, None, error)
        finally:
            for unfinished in begun:
                ray.cancel(unfinished, force=True)


def _portable(function: Callable[[_T], object], position: int, item: _T) -> Ended:
    """Runs a job; an error that cannot be pickled becomes its text."""
    ended = _ended(function, position, item)
    try:
        pickle.loads(pickle.dumps(ended.error))
    except Exception:
        said = f"{type(ended.error).__name__}: {ended.error}"
        return ended._replace(error=RuntimeError(said))
    return ended
