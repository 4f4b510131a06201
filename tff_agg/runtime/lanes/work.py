"""What lanes do in a round: the clients' work, each lane's added up.

The same code runs in the lanes of one process and in those of a cluster, where every
lane is a process of its own with a pool of one.
"""

import time
from collections.abc import Callable, Sequence

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.runtime import disclosure, errors
from tff_agg.runtime.compile import graphs, values
from tff_agg.runtime.compile.client_work import ClientForm, SecureSums, StepFunction
from tff_agg.runtime.compile.stages import Stage
from tff_agg.runtime.compile.values import Value
from tff_agg.runtime.errors import LaneFailure
from tff_agg.runtime.lanes import balancing
from tff_agg.runtime.lanes.data import LaneData, LaneDataError
from tff_agg.runtime.lanes.pool import ClientRun, Lane, LanePool, StepError

Observer = Callable[[ClientRun], None]
#: A client's data as flat tensors, or what its lane is to read.
Ingested = list[tf.Tensor] | LaneData


class LocalLanes:
    """The client part of one computation, in the lanes of this process.

    Args:
      form: The client part.
      pool: The lanes.
      observer: Called after each client, from the lane's thread.
      show_data: Whether errors may quote data.
    """

    def __init__(
        self,
        form: ClientForm,
        pool: LanePool,
        observer: Observer | None = None,
        show_data: bool = False,
    ):
        self._pool = pool
        self._observer = observer
        self._show_data = show_data
        self._zero = Stage(form.zero)
        self.sums = SecureSums(form)
        self._step = StepFunction(form, self.sums)
        self.data_type = form.work.type_signature.parameter[0]
        self._variables: dict[int, graphs.Variables] = {}

    def ingest(self, clients: Sequence[Value]) -> list[Ingested]:
        """Turns clients' data into what graphs take.

        What is to be read in the lanes is left for them.

        Raises:
          LaneFailure: A client's data are not of the computation's type.
        """
        return [
            ingested(i, c, self.data_type, self._show_data)
            for i, c in enumerate(clients)
        ]

    def work(
        self, clients: Sequence[Ingested], broadcast: Sequence[tf.Tensor]
    ) -> list[list[tf.Tensor]]:
        """Returns the sums of the lanes that had clients, in the order of lanes.

        Args:
          clients: What `ingest` has returned.
          broadcast: Flat tensors.

        Raises:
          LaneFailure: A client failed; the first one in the list.
        """
        here: dict[int, list[tf.Tensor]] = {}
        costs = balancing.costs_of(len(clients))
        # This round's own until all lanes have ended as they should. A lane that an
        # interruption set loose could not touch the variables of the next round.
        variables, self._variables = self._variables, {}

        def start(lane: Lane) -> list[tf.Tensor]:
            with tf.device(lane.device):
                here[lane.number] = [_on_device(t, lane.device) for t in broadcast]
                if lane.number not in variables:
                    variables[lane.number] = graphs.Variables(self._step.program)
                return list(self._zero()) + self.sums.zero()

        def step(lane: Lane, total: list[tf.Tensor], position: int) -> list[tf.Tensor]:
            began = time.perf_counter()
            data = clients[position]
            if isinstance(data, LaneData):
                data = ingested(position, data.read(), self.data_type, self._show_data)
            with tf.device(lane.device):
                total = self._step(
                    *data,
                    *here[lane.number],
                    *total,
                    *variables[lane.number].handles,
                )
            if self._observer is not None:
                seconds = time.perf_counter() - began
                self._observer(ClientRun(position, lane, seconds))
            return total

        try:
            partial = self._pool.run(len(clients), start, step, costs)
        except StepError as error:
            failed = error
        else:
            self._variables = variables
            return partial
        # Raised out here, so that nothing of the cause comes along as its context.
        raise self._failure(failed) from (failed.__cause__ if self._show_data else None)

    def _failure(self, failed: StepError) -> LaneFailure:
        cause = failed.__cause__ or failed
        if isinstance(cause, LaneFailure):
            return cause
        stage = "work"
        if isinstance(cause, LaneDataError):
            stage, cause = "data", cause.__cause__ or cause
        reason = disclosure.describe(cause, self._step.graphs, self._show_data)
        member = errors.failed_member(cause)
        details: errors.FailureDetails = {
            "stage": stage,
            "reason": reason,
            "member": member,
        }
        return LaneFailure(failed.position, details)


def ingested(
    position: int, client: Value, data_type: tff.Type, show_data: bool
) -> Ingested:
    """Flattens a client's data; leaves data that a lane is to read as they are.

    Raises:
      LaneFailure: They are not of the type.
    """
    if isinstance(client, LaneData):
        return client
    try:
        return values.flatten(client, data_type)
    except (TypeError, ValueError) as error:
        cause = error
    reason = disclosure.describe(cause, show_data=show_data)
    details: errors.FailureDetails = {
        "stage": "data",
        "reason": reason,
        "kind": errors.ClientDataError,
    }
    raise LaneFailure(position, details) from (cause if show_data else None)


def _on_device(tensor: tf.Tensor, device: str) -> tf.Tensor:
    """Copies a tensor to a device once, rather than once for each client."""
    if tensor.device == device or not tensor.dtype.is_floating:
        return tensor
    return tf.identity(tensor)
