"""Independent jobs: here, side by side in other processes, or on a Ray cluster.

A trial of a search, a run of a table, the evaluation of one run folder, a part of a
large file: such jobs know nothing of each other. `spread` runs them and hands back each
result as it comes.
"""

import contextlib
from collections.abc import Callable, Generator, Hashable, Iterable
from typing import TypeVar

from tff_agg.runtime.job_processes import (
    Ended,
    OnReport,
    Processes,
    called_with,
    portable_error,
    tell,
)

__all__ = ["Ended", "OnReport", "Processes", "spread", "tell"]

_T = TypeVar("_T")


def spread(
    function: Callable[[_T], object],
    items: Iterable[_T],
    *,
    processes: int = 1,
    address: str | None = None,
    cpus_per_job: float = 1,
    near: Callable[[_T], Hashable] | None = None,
    set_up: Callable[[], object] | None = None,
    on_report: OnReport | None = None,
) -> Generator[Ended, None, None]:
    """Calls a function with each item and yields results as they come.

    A job whose process or machine dies is an error on one machine, and is begun again
    elsewhere on a cluster. There it has to be one that may: a training run is, which
    resumes from its folder. The folders must be on storage that all machines see.

    A program that starts processes guards its own start by `if __name__ == "__main__"`,
    for they import it again.

    Args:
      function: The job. For other processes it must be picklable (a function of a
        module, or a `functools.partial` of one; Ray takes others, too), and what it
        imports must be installed on all machines.
      items: One for each job, picklable in the same way. They are taken from an
        iterator as they are needed.
      processes: How many run at the same time, each in a process of this machine;
        1: in the calling thread.
      address: A Ray cluster to run on, as for `ray.init`; as many at a time as it has
        room for. None: this machine.
      cpus_per_job: How many CPUs of the cluster a job takes.
      near: Says of an item what it can share with others in a process, such as what is
        compiled for it. A process prefers items like its last, and then such as no
        other is at.
      set_up: Called in each process that is started, before anything of the job is
        loaded: what must be said before TensorFlow is imported. Picklable.
      on_report: Called with the position of an item and whatever its job gives to
        `tell`, in another process of this machine.

    Yields:
      An `Ended` for each item, in the order in which they end. An Exception of a job is
      in it; the others go on. Ending the iteration early drops jobs that have not
      begun, and ends those that have.

    Example:
      >>> sorted(ended.value for ended in spread(abs, [-3, 1]))
      [1, 3]
    """
    if address is not None:
        if processes != 1:
            raise ValueError(
                f"processes={processes!r}, address={address!r}: jobs run in processes "
                "of this machine or on a cluster; give one of them"
            )
        yield from _on_ray(function, items, address, cpus_per_job, set_up)
        return
    with Processes(processes, set_up) as crew:
        yield from crew.spread(function, items, near, on_report)


def _on_ray(
    function: Callable[[_T], object],
    items: Iterable[_T],
    address: str,
    cpus_per_job: float,
    set_up: Callable[[], object] | None,
) -> Generator[Ended, None, None]:
    """Runs jobs on the cluster at an address."""
    from tff_agg.runtime.ray.session import RaySession

    with contextlib.closing(RaySession(address)):
        import ray
        from ray import cloudpickle

        # In bytes, so that nothing of the job is loaded before `set_up` was called.
        job = ray.remote(num_cpus=cpus_per_job)(_on_cluster)
        begin = ray.put(None if set_up is None else cloudpickle.dumps(set_up))
        shared = ray.put(cloudpickle.dumps(function))
        begun = {
            job.remote(begin, shared, position, cloudpickle.dumps(item)): position
            for position, item in enumerate(items)
        }
        try:
            while begun:
                (done,), _ = ray.wait(list(begun))
                position = begun.pop(done)
                try:
                    yield ray.get(done)
                except ray.exceptions.RayError as error:
                    yield Ended(position, None, error)
        finally:
            for unfinished in begun:
                ray.cancel(unfinished, force=True)


_is_set_up = False


def _on_cluster(
    set_up: bytes | None, function: bytes, position: int, item: bytes
) -> Ended:
    """Runs a job in a process of Ray's."""
    from ray import cloudpickle

    global _is_set_up
    try:
        if set_up is not None and not _is_set_up:
            cloudpickle.loads(set_up)()
            _is_set_up = True
    except Exception as error:
        return Ended(position, None, portable_error(error))
    return called_with(cloudpickle.loads, function, position, item)
