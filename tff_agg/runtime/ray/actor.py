"""A lane in a process of its own: what runs in a Ray actor.

Importing this module does not load TensorFlow: an actor sets it up first.
"""

import collections
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import ray

    from tff_agg.runtime.errors import LaneFailure
    from tff_agg.runtime.lanes.data import LaneData, Source
    from tff_agg.runtime.lanes.pool import ClientRun
    from tff_agg.runtime.lanes.work import LocalLanes
    from tff_agg.runtime.ray.transport import Packed

# Sources that a lane keeps open: data of training and of an evaluation, say.
_SOURCES = 4


class LaneSettings(NamedTuple):
    """How a lane sets up TensorFlow.

    Attributes:
      facts: The server's `lane_facts`; a lane that differs refuses to work.
      inter_op: Operations at the same time.
      show_data: Whether errors may quote data.
      gpu_memory_mb: How much memory of its GPU it may take; None: as it needs.
    """

    facts: dict[str, Any]
    inter_op: int
    show_data: bool
    gpu_memory_mb: float | None = None


class SharedData(NamedTuple):
    """A `LaneData` on its way.

    Attributes:
      source: A reference to the source, in a list, so that Ray leaves it alone.
      key: The client.
    """

    source: list["ray.ObjectRef"]
    key: object


class LaneSum(NamedTuple):
    """What a lane returns.

    Attributes:
      total: The sum, as flat arrays.
      seconds: Of each client, in order.
    """

    total: list["np.ndarray"]
    seconds: list[float]


class _Stopped(Exception):
    """The round was broken off."""


class LaneActor:
    """One lane: compiles computations and folds clients into a sum.

    Args:
      settings: How to set up.
    """

    def __init__(self, settings: LaneSettings):
        facts = settings.facts
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1" if facts["onednn"] else "0"
        from tff_agg.runtime import tensorflow_setup

        threads = facts["threads_inside_operation"]
        tensorflow_setup.set_up_tensorflow(intra_op=threads, inter_op=settings.inter_op)
        from tff_agg.runtime import gpus
        from tff_agg.runtime.lanes import pool
        from tff_agg.runtime.lanes.facts import lane_facts

        # Ray shows a lane its own GPU only, or the one that it shares.
        gpus.share(1, settings.gpu_memory_mb)
        here = lane_facts()
        if here != facts:
            other = [
                f"{k}: {here[k]} here, {facts[k]} there"
                for k in facts
                if here[k] != facts[k]
            ]
            raise RuntimeError(
                "this lane is not what the process is that asked for it, and would "
                f"compute other bits ({'; '.join(other)}); install the same versions"
            )
        self._show_data = settings.show_data
        self._pool = pool.LanePool(pool.choose_lanes(1))
        self._programs: dict[str, LocalLanes] = {}
        self._sources: collections.OrderedDict[str, Source] = collections.OrderedDict()
        self._one_at_a_time = threading.Lock()
        self._ticket = self._stopped = -1
        self._seconds: list[float] = []

    def place(self) -> tuple[str, str, int]:
        """Returns the lane's device, processor and process id."""
        from tff_agg.runtime.lanes.facts import processor

        return self._pool.lanes[0].device, processor(), os.getpid()

    def fold(
        self,
        ticket: int,
        program: list["ray.ObjectRef"],
        broadcast: Sequence["np.ndarray"],
        clients: Sequence["list[Packed] | SharedData"],
    ) -> "LaneSum | LaneFailure | None":
        """Adds up clients in order.

        Args:
          ticket: The number of the round among all rounds of the caller.
          program: A reference to the protos of a `ClientForm`, in a list, so that it
            is fetched only where it is not known.
          broadcast: Flat arrays.
          clients: What `transport.pack` has made, or `SharedData`.

        Returns:
          A `LaneSum`; or the `LaneFailure` of a client, with its place among those
          given; or None if the round was stopped.
        """
        import tensorflow as tf

        from tff_agg.runtime.errors import LaneFailure
        from tff_agg.runtime.ray import transport

        with self._one_at_a_time:
            self._ticket, self._seconds = ticket, []
            if self._stopped >= ticket:
                return None
            lanes = self._lanes_of(program[0])
            data = [
                self._lane_data(client)
                if isinstance(client, SharedData)
                else transport.unpack(client, lanes.data_type)
                for client in clients
            ]
            try:
                tensors = [tf.convert_to_tensor(array) for array in broadcast]
                (total,) = lanes.work(data, tensors)
            except LaneFailure as failure:
                if self._stopped >= ticket:
                    return None
                return LaneFailure(failure.position, failure.details)
            return LaneSum([tensor.numpy() for tensor in total], self._seconds)

    def stop(self, ticket: int) -> None:
        """Ends the round of a number, and all before it, at its next client."""
        self._stopped = max(self._stopped, ticket)

    def forget(self, program: str) -> None:
        """Drops a computation."""
        self._programs.pop(program, None)

    def _lanes_of(self, program: "ray.ObjectRef") -> "LocalLanes":
        key = program.hex()
        if key not in self._programs:
            import ray

            from tff_agg.runtime.compile.client_work import ClientForm
            from tff_agg.runtime.lanes.work import LocalLanes

            form = ClientForm.from_protos(ray.get(program))
            self._programs[key] = LocalLanes(
                form, self._pool, self._note, self._show_data
            )
        return self._programs[key]

    def _lane_data(self, client: SharedData) -> "LaneData":
        import ray

        from tff_agg.runtime.lanes.data import LaneData

        (reference,) = client.source
        key = reference.hex()
        if key not in self._sources:
            self._sources[key] = ray.get(reference)
            if len(self._sources) > _SOURCES:
                self._sources.popitem(last=False)
        return LaneData(self._sources[key], client.key)

    def _note(self, run: "ClientRun") -> None:
        self._seconds.append(run.seconds)
        if self._stopped >= self._ticket:
            raise _Stopped
