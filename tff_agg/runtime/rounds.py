"""A federated computation in MapReduce form, as TensorFlow functions in this process.

A round is four kinds of calls:

    prepare(state) -> broadcast                         once
    step(client data, broadcast, sum) -> sum            for each client, in its lane
    merge(sum, sum) -> sum                              between lanes
    finish(state, sum) -> state, output                 once

`step` is TFF's `work` and `accumulate` in one graph, `finish` its `report` and
`update`: a client's update is added where it was computed and never passed around.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.runtime import balancing, disclosure, errors, graphs, values
from tff_agg.runtime.lanes import ClientRun, Lane, LanePool, StepError

# The function runtime optimises every graph when it is first called: once is enough.
_NO_GRAPPLER = tf.compat.v1.ConfigProto()
_NO_GRAPPLER.graph_options.rewrite_options.disable_meta_optimizer = True

Observer = Callable[[ClientRun], None]


def form_of(computation: Any) -> Any:
    """Compiles a computation of two arguments and two results to MapReduce form.

    Raises whatever TFF raises for one that does not fit.
    """
    return tff.backends.mapreduce.get_map_reduce_form_for_computation(
        computation, _NO_GRAPPLER
    )


class Round:
    """The calls of one computation of type (state@SERVER, data@CLIENTS) -> two values.

    Args:
      form: What `form_of` gives.
      pool: The lanes.
      observer: Told about each client, from the lane's thread.
      show_data: Whether errors may quote data.
    """

    def __init__(
        self,
        form: Any,
        pool: LanePool,
        observer: Observer | None = None,
        show_data: bool = False,
    ):
        self._pool = pool
        self._observer = observer
        self._show_data = show_data
        self._one_at_a_time = threading.Lock()
        self.state_type, self.data_type = (
            t.member for t in form.type_signature.parameter
        )
        self._prepare = Stage(form.prepare)
        self._zero = Stage(form.zero)
        sums = _SecureSums(form)
        self._step = _StepFunction(form, sums)
        self._merge = _MergeFunction(form, sums)
        self._finish = _FinishFunction(form, sums)
        self._secure_zero = sums.zero
        self._resources: dict[int, graphs.Resources] = {}

    def __call__(self, state: Sequence[Any], clients: Sequence[Any]) -> list[Any]:
        """Runs a round on flat state and the clients' data; returns flat results."""
        errors.check_names(len(clients))
        variants = [self._ingest(i, client) for i, client in enumerate(clients)]
        with self._one_at_a_time:
            broadcast = self._run_stage("prepare", self._prepare, *state)
            partial = self._work(variants, broadcast)
            total = partial.pop(0)
            for other in partial:
                total = self._run_stage("merge", self._merge, *total, *other)
            return self._run_stage("update", self._finish, *state, *total)

    def _run_stage(self, name: str, call: "Call", *tensors: Any) -> list[Any]:
        return run_stage(name, call, *tensors, show_data=self._show_data)

    def _ingest(self, position: int, client: Any) -> list[Any]:
        try:
            return values.flatten(client, self.data_type)
        except (TypeError, ValueError) as error:
            cause = error
        reason = disclosure.describe(cause, show_data=self._show_data)
        raise errors.client_error(
            position, "data", reason, errors.ClientDataError
        ) from (cause if self._show_data else None)

    def _work(self, variants: list[Any], broadcast: list[Any]) -> list[Any]:
        """Returns the lanes' partial sums."""
        here: dict[int, list[Any]] = {}
        costs = balancing.costs_of(len(variants))
        # This round's own until all lanes have ended as they should. A lane that an
        # interruption set loose could not touch the variables of the next round.
        resources, self._resources = self._resources, {}

        def start(lane: Lane) -> list[Any]:
            with tf.device(lane.device):
                here[lane.number] = [_on_device(t, lane.device) for t in broadcast]
                if lane.number not in resources:
                    resources[lane.number] = graphs.Resources(self._step.program)
                return list(self._zero()) + self._secure_zero()

        def step(lane: Lane, total: list[Any], position: int) -> list[Any]:
            began = time.perf_counter()
            with tf.device(lane.device):
                total = self._step(
                    *variants[position],
                    *here[lane.number],
                    *total,
                    *resources[lane.number].handles,
                )
            if self._observer is not None:
                seconds = time.perf_counter() - began
                self._observer(ClientRun(position, lane, seconds))
            return total

        try:
            partial = self._pool.run(len(variants), start, step, costs)
        except StepError as error:
            failed = error
        else:
            self._resources = resources
            return partial
        # Raised out here, so that nothing of the cause comes along as its context.
        cause = failed.__cause__ or failed
        reason = disclosure.describe(cause, self._step.graphs, self._show_data)
        member = errors.failed_member(cause)
        raise errors.client_error(failed.position, "work", reason, member=member) from (
            cause if self._show_data else None
        )


class Call(Protocol):
    """A function of flat tensors that was made from graphs."""

    graphs: list[Any]

    def __call__(self, *tensors: Any) -> list[Any]:
        """Runs it."""


class Stage:
    """A TFF computation with a TensorFlow body, as a function of flat tensors."""

    def __init__(self, computation: Any):
        self.program = graphs.program_of(computation)
        self.graphs = [self.program.graph_def]
        # A process's `prepare` gets the whole state and reads only the model in it.
        self._used = graphs.used_feeds(self.program)
        self._resources = graphs.Resources(self.program)
        specs = graphs.specs_of(self.program.parameter)
        self._call = graphs.function(
            self._body,
            [specs[i] for i in self._used] + graphs.resource_specs(self.program),
        )

    def _body(self, *tensors: Any) -> list[Any]:
        arguments: list[Any] = [None] * len(self.program.feeds)
        for i, tensor in zip(self._used, tensors, strict=False):
            arguments[i] = tensor
        return graphs.embed(self.program, arguments, tensors[len(self._used) :])

    def __call__(self, *tensors: Any) -> list[Any]:
        """Runs it on flat arguments."""
        used = [tensors[i] for i in self._used]
        return list(self._call(*used, *self._resources.handles))


class _SecureSums:
    """What stands next to the plain aggregate: TFF's three kinds of secure sums.

    In one process nobody is kept from seeing anything; they are sums of integers, the
    third kind modulo a number. The leaves follow those of the plain accumulator.
    """

    def __init__(self, form: Any):
        _, *secure = (
            t for _, t in tff.structure.to_elements(form.work.type_signature.result)
        )
        self.specs = [spec for t in secure for spec in graphs.specs_of(t)]
        self.count = len(self.specs)
        modular = values.leaf_count(secure[-1])
        self._moduli: list[Any] = [None] * (self.count - modular)
        if modular:
            moduli = Stage(form.secure_modular_sum_modulus)()
            one_for_all = len(moduli) == 1
            self._moduli += [
                tf.get_static_value(moduli[0 if one_for_all else i])
                for i in range(modular)
            ]

    def zero(self) -> list[Any]:
        return [tf.zeros(spec.shape, spec.dtype) for spec in self.specs]

    def add(self, left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
        return [
            a + b if modulus is None else tf.math.floormod(a + b, modulus)
            for a, b, modulus in zip(left, right, self._moduli, strict=True)
        ]


class _StepFunction:
    """`work` and `accumulate` as one function."""

    def __init__(self, form: Any, sums: _SecureSums):
        self.program = graphs.program_of(form.work)
        accumulate = graphs.program_of(form.accumulate)
        _need_no_resources(accumulate, "accumulate")
        self.graphs = [self.program.graph_def, accumulate.graph_def]
        accumulator, update = (
            t for _, t in tff.structure.to_elements(accumulate.parameter)
        )
        inputs = len(self.program.feeds)
        plain = values.leaf_count(accumulator)
        updates = values.leaf_count(update)

        def body(*tensors: Any) -> list[Any]:
            given, rest = tensors[:inputs], tensors[inputs:]
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
            + graphs.resource_specs(self.program),
        )

    def __call__(self, *tensors: Any) -> list[Any]:
        return list(self._call(*tensors))


class _FinishFunction:
    """`report` and `update` as one function."""

    def __init__(self, form: Any, sums: _SecureSums):
        report = graphs.program_of(form.report)
        _need_no_resources(report, "report")
        update = graphs.program_of(form.update)
        self.graphs = [report.graph_def, update.graph_def]
        states = values.leaf_count(update.parameter[0])
        plain = len(report.feeds)
        self._resources = graphs.Resources(update)

        def body(*tensors: Any) -> list[Any]:
            state, rest = tensors[:states], tensors[states:]
            total, rest = rest[:plain], rest[plain:]
            secure, handles = rest[: sums.count], rest[sums.count :]
            reported = graphs.embed(report, total)
            return graphs.embed(update, [*state, *reported, *secure], handles)

        self._call = graphs.function(
            body,
            graphs.specs_of(update.parameter[0])
            + graphs.specs_of(report.parameter)
            + sums.specs
            + graphs.resource_specs(update),
        )

    def __call__(self, *tensors: Any) -> list[Any]:
        return list(self._call(*tensors, *self._resources.handles))


class _MergeFunction:
    """`merge`, next to the secure sums."""

    def __init__(self, form: Any, sums: _SecureSums):
        merge = graphs.program_of(form.merge)
        _need_no_resources(merge, "merge")
        self.graphs = [merge.graph_def]
        plain = len(merge.feeds) // 2
        width = plain + sums.count

        def body(*tensors: Any) -> list[Any]:
            left, right = tensors[:width], tensors[width:]
            merged = graphs.embed(merge, [*left[:plain], *right[:plain]])
            return merged + sums.add(left[plain:], right[plain:])

        one, other = (t for _, t in tff.structure.to_elements(merge.parameter))
        self._call = graphs.function(
            body,
            graphs.specs_of(one) + sums.specs + graphs.specs_of(other) + sums.specs,
        )

    def __call__(self, *tensors: Any) -> list[Any]:
        return list(self._call(*tensors))


def _need_no_resources(program: graphs.Program, stage: str) -> None:
    if program.resources:
        names = ", ".join(node.name for node in program.resources)
        raise errors.RuntimeUnsupportedError(
            f"the stage '{stage}' of this computation has variables or tables of its "
            f"own ({names}), which the runtime 'local' does not run; use "
            "tff_agg.runtime.use('worker')"
        )


def _on_device(tensor: Any, device: str) -> Any:
    """Copies a tensor to a device once, rather than once for each client."""
    if tensor.device == device or not tensor.dtype.is_floating:
        return tensor
    return tf.identity(tensor)


def run_stage(
    name: str, call: Call, *tensors: Any, show_data: bool = False
) -> list[Any]:
    """Calls a server stage; an error of TensorFlow's says which one it was."""
    try:
        return call(*tensors)
    except tf.errors.OpError as error:
        cause = error
    reason = disclosure.describe(cause, call.graphs, show_data)
    raise errors.server_error(name, reason) from (cause if show_data else None)
