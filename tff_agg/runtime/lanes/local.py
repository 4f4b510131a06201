"""The runtime that needs nothing but this process.

TFF's own runtime starts another program and sends it every value. This one compiles a
computation to TFF's MapReduce form, turns the form's graphs into TensorFlow functions
of this process and calls them: clients side by side in lanes, the server's part once.
Values stay where TensorFlow put them.
"""

import weakref
from collections.abc import Sequence

import tensorflow_federated as tff

from tff_agg.runtime import gpus
from tff_agg.runtime.compile.client_work import ClientForm
from tff_agg.runtime.compile.mapreduce import MapReduceContext
from tff_agg.runtime.lanes.pool import Lane, LanePool, choose_lanes
from tff_agg.runtime.lanes.work import LocalLanes, Observer


class LocalContext(MapReduceContext):
    """Runs TFF computations in this process.

    Args:
      lanes: How many clients are worked on at the same time; the number of GPUs, else
        of cores, where None.
      devices: TensorFlow devices to share out over the lanes; all GPUs where None, else
        the CPU.
      gpus_per_lane: The part of a GPU that a lane has: 1/2 makes two lanes for each.
      gpu_memory_mb: How much memory of a GPU a lane may take, in MB; it must be said
        where lanes share one. Where None, memory grows as needed.
      server_device: The TensorFlow device on which the server's part runs, with noise
        and step; the first GPU where None, else the CPU.
      on_client: Called with a `ClientRun` after each client, from the lane's thread.
      show_data_in_errors: Whether errors quote what TensorFlow says, which may be
        values of a client's data, in the message and as the error's cause. For finding
        a fault with data that need no protection.
      worker: Whether a small computation that does not fit MapReduce form goes to TFF's
        own executor, a process that is then started; if not, it is refused. Steps of a
        process and what takes data sets are refused in any case.

    Example:
      with tff_agg.runtime.running_on('local', lanes=2):
        state = process.initialize()
        state, metrics = process.next(state, datasets)
    """

    def __init__(
        self,
        *,
        lanes: int | None = None,
        devices: Sequence[str] | None = None,
        gpus_per_lane: float = 1,
        gpu_memory_mb: float | None = None,
        server_device: str | None = None,
        on_client: Observer | None = None,
        show_data_in_errors: bool = False,
        worker: bool = True,
    ):
        gpus.share(gpus_per_lane, gpu_memory_mb)
        super().__init__(show_data_in_errors, worker, server_device)
        self._pool = LanePool(choose_lanes(lanes, devices))
        weakref.finalize(self, self._pool.close)
        self._on_client = on_client

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes in use."""
        return self._pool.lanes

    def close(self) -> None:
        """Ends the lanes' threads; another call would start new ones."""
        self._pool.close()
        super().close()

    def _lanes_for(self, form: tff.backends.mapreduce.MapReduceForm) -> LocalLanes:
        client_form = ClientForm.of(form)
        return LocalLanes(client_form, self._pool, self._on_client, self._show_data)
