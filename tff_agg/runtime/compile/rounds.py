"""A federated computation in MapReduce form, as TensorFlow functions.

A round is four kinds of calls:

    prepare(state) -> broadcast                         once
    step(client data, broadcast, sum) -> sum            for each client, in its lane
    merge(sum, sum) -> sum                              between lanes
    finish(state, sum) -> state, output                 once

`step` is TFF's `work` and `accumulate` in one graph, `finish` its `report` and
`update`: a client's update is added where it was computed and never passed around.
`step` is in `client_work`; all else is here, in the process that called.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.runtime import errors
from tff_agg.runtime.compile import graphs, values
from tff_agg.runtime.compile.client_work import SecureSums
from tff_agg.runtime.compile.stages import Call, Stage, need_no_variables, run_stage
from tff_agg.runtime.compile.values import Value
from tff_agg.runtime.errors import LaneFailure

# The function runtime optimises every graph when it is first called: once is enough.
_NO_GRAPPLER = tf.compat.v1.ConfigProto()
_NO_GRAPPLER.graph_options.rewrite_options.disable_meta_optimizer = True


def form_of(computation: tff.Computation) -> tff.backends.mapreduce.MapReduceForm:
    """Compiles a computation of two arguments and two results to MapReduce form.

    Raises whatever TFF raises for one that does not fit.
    """
    return tff.backends.mapreduce.get_map_reduce_form_for_computation(
        computation, _NO_GRAPPLER
    )


#: A client's data as `Lanes.ingest` returns them and `Lanes.work` takes them.
Ingested = TypeVar("Ingested")


class Lanes(Protocol[Ingested]):
    """Where the clients of one computation are worked through."""

    sums: SecureSums
    data_type: tff.Type

    def ingest(self, clients: Sequence[Value]) -> list[Ingested]:
        """Turns clients' data into what `work` takes."""

    def work(
        self, clients: Sequence[Ingested], broadcast: Sequence[tf.Tensor]
    ) -> Iterable[list[tf.Tensor]]:
        """Returns lanes' sums in the order of lanes; at least one."""


class Round:
    """The calls of one computation of type (state@SERVER, data@CLIENTS) -> two values.

    Args:
      form: What `form_of` gives.
      lanes: Where clients are worked through.
      show_data: Whether errors may quote data.
      device: Where the server's part runs, noise and step among it.
    """

    def __init__(
        self,
        form: tff.backends.mapreduce.MapReduceForm,
        lanes: Lanes,
        show_data: bool = False,
        device: str | None = None,
    ):
        self._lanes = lanes
        self._show_data = show_data
        self._device = device
        self._one_at_a_time = threading.Lock()
        self.state_type = form.type_signature.parameter[0].member
        self._prepare = Stage(form.prepare)
        self._merge = _MergeFunction(form, lanes.sums)
        self._finish = _FinishFunction(form, lanes.sums)

    def __call__(
        self, state: Sequence[tf.Tensor], clients: Sequence[Value]
    ) -> list[tf.Tensor]:
        """Runs a round on flat state and the clients' data; returns flat results."""
        errors.check_names(len(clients))
        try:
            ingested = self._lanes.ingest(clients)
            with self._one_at_a_time:
                broadcast = self._run_stage("prepare", self._prepare, *state)
                total = self._total(ingested, broadcast)
                return self._run_stage("update", self._finish, *state, *total)
        except LaneFailure as failure:
            failed = failure
        # Raised out here, so that nothing of the cause comes along as its context.
        raise failed.error() from (failed.__cause__ if self._show_data else None)

    def _total(
        self, clients: Sequence[Ingested], broadcast: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        total: list[tf.Tensor] | None = None
        for partial in self._lanes.work(clients, broadcast):
            if total is None:
                total = partial
            else:
                total = self._run_stage("merge", self._merge, *total, *partial)
        assert total is not None
        return total

    def _run_stage(self, name: str, call: Call, *tensors: tf.Tensor) -> list[tf.Tensor]:
        return run_stage(
            name, call, *tensors, show_data=self._show_data, device=self._device
        )


class _FinishFunction:
    """`report` and `update` as one function."""

    def __init__(self, form: tff.backends.mapreduce.MapReduceForm, sums: SecureSums):
        report = graphs.program_of(form.report)
        need_no_variables(report, "report")
        update = graphs.program_of(form.update)
        self.graphs = [report.graph_def, update.graph_def]
        parameter: tff.StructType = update.parameter
        state_type = parameter[0]
        states = values.leaf_count(state_type)
        plain = len(report.feeds)
        self._variables = graphs.Variables(update)

        def body(*tensors: tf.Tensor) -> list[tf.Tensor]:
            state, rest = tensors[:states], tensors[states:]
            total, rest = rest[:plain], rest[plain:]
            secure, handles = rest[: sums.count], rest[sums.count :]
            reported = graphs.embed(report, total)
            return graphs.embed(update, [*state, *reported, *secure], handles)

        self._call = graphs.function(
            body,
            graphs.specs_of(state_type)
            + graphs.specs_of(report.parameter)
            + sums.specs
            + graphs.variable_specs(update),
        )

    def __call__(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        return list(self._call(*tensors, *self._variables.handles))


class _MergeFunction:
    """`merge`, next to the secure sums."""

    def __init__(self, form: tff.backends.mapreduce.MapReduceForm, sums: SecureSums):
        merge = graphs.program_of(form.merge)
        need_no_variables(merge, "merge")
        self.graphs = [merge.graph_def]
        plain = len(merge.feeds) // 2
        width = plain + sums.count

        def body(*tensors: tf.Tensor) -> list[tf.Tensor]:
            left, right = tensors[:width], tensors[width:]
            merged = graphs.embed(merge, [*left[:plain], *right[:plain]])
            return merged + sums.add(left[plain:], right[plain:])

        left_type, right_type = (
            t for _, t in tff.structure.to_elements(merge.parameter)
        )
        self._call = graphs.function(
            body,
            graphs.specs_of(left_type)
            + sums.specs
            + graphs.specs_of(right_type)
            + sums.specs,
        )

    def __call__(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        return list(self._call(*tensors))
