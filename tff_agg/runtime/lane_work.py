"""What lanes do in a round: the clients' work, each lane's added up.

The same code runs in the lanes of one process and in those of a cluster, where every
lane is a process of its own with a pool of one.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.runtime import (
    balancing,
    dataset_options,
    disclosure,
    errors,
    graphs,
    values,
)
from tff_agg.runtime.lane_data import LaneData, LaneDataError
from tff_agg.runtime.lanes import ClientRun, Lane, LanePool, StepError
from tff_agg.runtime.stages import Stage, need_no_variables
from tff_agg.runtime.values import Value

Observer = Callable[[ClientRun], None]
#: A client's data as flat tensors, or what its lane is to read.
Ingested = list[tf.Tensor] | LaneData


class ClientForm(NamedTuple):
    """The part of a MapReduce form that lanes run, as TFF computations."""

    zero: tff.Computation
    work: tff.Computation
    accumulate: tff.Computation
    secure_modular_sum_modulus: tff.Computation

    @classmethod
    def of(cls, form: tff.backends.mapreduce.MapReduceForm) -> "ClientForm":
        """Takes it out of a `tff.backends.mapreduce.MapReduceForm`."""
        return cls(*(getattr(form, name) for name in cls._fields))

    def to_protos(self) -> tuple[Any, ...]:
        """Returns it in a form that can be sent."""
        return tuple(map(tff.framework.serialize_computation, self))

    @classmethod
    def from_protos(cls, protos: Sequence[Any]) -> "ClientForm":
        """Makes it again of what was sent."""
        return cls(*map(tff.framework.deserialize_computation, protos))


class LaneFailure(Exception):
    """A client failed; what the error about it needs, without the client's data.

    Attributes:
      position: Where the client stands in the list.
      details: The other arguments of `errors.client_error`.
    """

    def __init__(self, position: int, details: errors.FailureDetails):
        super().__init__(position, details)
        self.position = position
        self.details = details

    def error(self) -> errors.ClientError:
        """Returns the error, with the names that are in force."""
        return errors.client_error(self.position, **self.details)


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
        self._step = _StepFunction(form, self.sums)
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


class SecureSums:
    """What stands next to the plain aggregate: TFF's three kinds of secure sums.

    In one process nobody is kept from seeing anything; they are sums of integers, the
    third kind modulo a number. The leaves follow those of the plain accumulator.
    """

    def __init__(self, form: ClientForm):
        _, *secure = (
            t for _, t in tff.structure.to_elements(form.work.type_signature.result)
        )
        self.specs = [spec for t in secure for spec in graphs.specs_of(t)]
        self.count = len(self.specs)
        modular = values.leaf_count(secure[-1])
        self._moduli: list[np.ndarray | None] = [None] * (self.count - modular)
        if modular:
            moduli = Stage(form.secure_modular_sum_modulus)()
            one_for_all = len(moduli) == 1
            self._moduli += [
                tf.get_static_value(moduli[0 if one_for_all else i])
                for i in range(modular)
            ]

    def zero(self) -> list[tf.Tensor]:
        """Returns sums of nothing."""
        return [tf.zeros(spec.shape, spec.dtype) for spec in self.specs]

    def add(
        self, left: Sequence[tf.Tensor], right: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Adds two of them."""
        return [
            a + b if modulus is None else tf.math.floormod(a + b, modulus)
            for a, b, modulus in zip(left, right, self._moduli, strict=True)
        ]


class _StepFunction:
    """`work` and `accumulate` as one function."""

    def __init__(self, form: ClientForm, sums: SecureSums):
        self.program = graphs.program_of(form.work)
        accumulate = graphs.program_of(form.accumulate)
        need_no_variables(accumulate, "accumulate")
        self.graphs = [self.program.graph_def, accumulate.graph_def]
        accumulator, update = (
            t for _, t in tff.structure.to_elements(accumulate.parameter)
        )
        inputs = len(self.program.feeds)
        plain = values.leaf_count(accumulator)
        updates = values.leaf_count(update)
        input_types = graphs.leaf_types(self.program.parameter)

        def body(*tensors: tf.Tensor) -> list[tf.Tensor]:
            given = dataset_options.without_threads(tensors[:inputs], input_types)
            rest = tensors[inputs:]
            total, rest = rest[:plain], rest[plain:]
            secure, handles = rest[: sums.count], rest[sums.count :]
            out = graphs.embed(self.program, given, handles)
            added = graphs.embed(accumulate, [*total, *out[:updates]])
            return added + sums.add(secure, out[updates:])

        self._call = graphs.function(
            body,
            graphs.specs_of(self.program.parameter)
            + graphs.specs_of(accumulator)
            + sums.specs
            + graphs.variable_specs(self.program),
        )

    def __call__(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        return list(self._call(*tensors))


def _on_device(tensor: tf.Tensor, device: str) -> tf.Tensor:
    """Copies a tensor to a device once, rather than once for each client."""
    if tensor.device == device or not tensor.dtype.is_floating:
        return tensor
    return tf.identity(tensor)
