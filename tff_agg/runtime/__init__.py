"""Where TFF computations run: in this process, on a cluster, or in TFF's own worker.

Example:
  tff_agg.runtime.set_up_tensorflow()
  tff_agg.runtime.use('local')
  output = process.next(state, datasets)
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tff_agg.runtime.errors import (
    ClientDataError,
    ClientError,
    ComputationError,
    RuntimeUnsupportedError,
    naming,
)
from tff_agg.runtime.lanes.balancing import balancing_lanes
from tff_agg.runtime.lanes.data import LaneData
from tff_agg.runtime.tensorflow_setup import (
    configure_threads,
    keep_memory,
    set_up_tensorflow,
)

if TYPE_CHECKING:
    import tensorflow_federated as tff

__all__ = [
    "RUNTIMES",
    "ClientDataError",
    "ClientError",
    "ComputationError",
    "LaneData",
    "RuntimeUnsupportedError",
    "balancing_lanes",
    "configure_threads",
    "create",
    "keep_memory",
    "naming",
    "running_on",
    "set_up_tensorflow",
    "use",
]


def _local(**options: Any) -> "tff.framework.SyncContext":
    from tff_agg.runtime.lanes.local import LocalContext

    return LocalContext(**options)


def _worker(**options: Any) -> "tff.framework.SyncContext":
    from tff_agg.runtime.worker import create_worker_context

    return create_worker_context(**options)


def _ray(**options: Any) -> "tff.framework.SyncContext":
    from tff_agg.runtime.ray.cluster import RayContext

    return RayContext(**options)


#: What makes a TFF context, by the name given to `use` and `running_on`.
RUNTIMES: dict[str, Callable[..., "tff.framework.SyncContext"]] = {
    "local": _local,
    "ray": _ray,
    "worker": _worker,
}


def create(name: str, **options: Any) -> "tff.framework.SyncContext":
    """Makes the TFF context of the runtime `name` without setting it.

    Args:
      name: As in `use`.
      **options: As in `use`.

    Returns:
      A `tff.framework.SyncContext` with a method `close`.

    Example:
      context = tff_agg.runtime.create('local', lanes=2)
      with tff.framework.get_context_stack().install(context):
        state = process.initialize()
    """
    if name not in RUNTIMES:
        known = ", ".join(repr(known) for known in RUNTIMES)
        raise ValueError(f"name: no runtime is called {name!r}; there are {known}")
    try:
        return RUNTIMES[name](**options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise TypeError(
            f"options: the runtime {name!r} got {options}: {error}"
        ) from None


def use(name: str, **options: Any) -> "tff.framework.SyncContext":
    """Runs all TFF computations of this thread on the runtime `name` from now on.

    Args:
      name: 'local', in this process; 'ray', with lanes on a Ray cluster; or 'worker',
        TFF's own worker process.
      **options: What the runtime takes; see `LocalContext`, `RayContext` and
        `create_worker_context`.

    Returns:
      The context, a `tff.framework.SyncContext`.

    Example:
      tff_agg.runtime.use('local', lanes=2)
    """
    import tensorflow_federated as tff

    context = create(name, **options)
    tff.framework.set_default_context(context)
    return context


@contextlib.contextmanager
def running_on(name: str, **options: Any) -> Iterator["tff.framework.SyncContext"]:
    """Runs TFF computations inside the block on the runtime `name`.

    Args:
      name: As in `use`.
      **options: As in `use`.

    Yields:
      The context.

    Example:
      with tff_agg.runtime.running_on('worker'):
        expected = process.next(state, datasets)
    """
    import tensorflow_federated as tff

    context = create(name, **options)
    try:
        with tff.framework.get_context_stack().install(context):
            yield context
    finally:
        close = getattr(context, "close", None)
        if close is not None:
            close()
