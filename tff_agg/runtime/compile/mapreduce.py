"""A TFF context for computations that fit TFF's MapReduce form.

It compiles a computation to that form, runs the server's part in this process and
leaves the clients' part to lanes. What lanes are is for its subclasses to say. A small
computation that does not fit goes to TFF's own executor.
"""

import abc
import threading
import weakref
from collections.abc import Callable

import tensorflow_federated as tff

from tff_agg.runtime import devices, disclosure, errors
from tff_agg.runtime.compile import private_api, rounds, stages, values
from tff_agg.runtime.compile.placements import Arguments, contains_federated
from tff_agg.runtime.compile.tff_executor import TffExecutor
from tff_agg.runtime.compile.values import Value

Call = Callable[[Value], Value]


class MapReduceContext(tff.framework.SyncContext, abc.ABC):
    """Runs TFF computations, each compiled once and forgotten together with it.

    Args:
      show_data_in_errors: As for `LocalContext`.
      worker: As for `LocalContext`.
      server_device: As for `LocalContext`.

    Attributes:
      server_device: The full name of the device on which the server's part runs.
    """

    def __init__(
        self, show_data_in_errors: bool, worker: bool, server_device: str | None = None
    ):
        self._show_data = show_data_in_errors
        self.server_device = devices.server_device(server_device)
        self._executor = TffExecutor(worker, show_data_in_errors)
        self._compiled: dict[int, tuple[weakref.ref[tff.Computation], Call]] = {}
        self._lock = threading.Lock()

    @abc.abstractmethod
    def _lanes_for(self, form: tff.backends.mapreduce.MapReduceForm) -> rounds.Lanes:
        """Returns where the clients of a computation are worked through."""

    def invoke(self, comp: tff.Computation, arg: Value) -> Value:
        """Runs `comp`; TFF calls this when a computation is called."""
        return self._compile(comp)(arg)

    def close(self) -> None:
        """Ends what was started; another call would start it anew."""
        self._executor.close()

    def _compile(self, comp: tff.Computation) -> Call:
        # Keyed by identity: hashing a computation serialises all of it. An entry goes
        # when its computation does, so that throw-away processes cost nothing.
        key = id(comp)
        with self._lock:
            known = self._compiled.get(key)
            if known is not None and known[0]() is comp:
                return known[1]
            with private_api.deep_messages():
                call = self._build(comp)
            forget = self._compiled.pop
            self._compiled[key] = (weakref.ref(comp, lambda _: forget(key, None)), call)
            return call

    def _build(self, comp: tff.Computation) -> Call:
        signature = comp.type_signature
        try:
            if contains_federated(signature.parameter, signature.result):
                return _federated(
                    comp, self._lanes_for, self._show_data, self.server_device
                )
            return _plain(comp, self._show_data)
        except _DoesNotFit as error:
            reason = f"it does not fit TFF's MapReduce form: {error}"
            why_not = self._executor.why_not(signature)
            if why_not is None:
                return self._executor.call_of(comp, reason)
            raise errors.RuntimeUnsupportedError(
                "this runtime runs computations that fit TFF's MapReduce form (one "
                "broadcast, work on the clients, one aggregation, an update); this "
                f"one, of type {signature.compact_representation()}, does not: {error}."
                f" It is not handed to TFF's own executor: {why_not}. Run it with "
                "tff_agg.runtime.use('worker')."
            ) from error.__cause__


def _plain(comp: tff.Computation, show_data: bool) -> Call:
    """Makes a call of a computation without placements."""
    block, _ = tff.tensorflow.replace_intrinsics_with_bodies(comp.to_building_block())
    try:
        block = private_api.compile_local_computation_to_tensorflow(block)
    except Exception as error:
        raise _DoesNotFit(error) from error
    stage = stages.Stage(tff.framework.ConcreteComputation.from_building_block(block))
    signature = comp.type_signature

    def call(arg: Value) -> Value:
        leaves = values.flatten(arg, signature.parameter) if arg is not None else []
        results = stages.run_stage("computation", stage, *leaves, show_data=show_data)
        return values.unflatten([values.to_numpy(t) for t in results], signature.result)

    return call


def _federated(
    comp: tff.Computation,
    lanes_for: Callable[[tff.backends.mapreduce.MapReduceForm], rounds.Lanes],
    show_data: bool,
    device: str,
) -> Call:
    """Makes a call of a computation with server and client values."""
    signature = comp.type_signature
    arguments = Arguments(signature)
    try:
        form = rounds.form_of(arguments.two_by_two(comp))
    except Exception as error:
        raise _DoesNotFit(error) from error
    run = rounds.Round(form, lanes_for(form), show_data, device)
    states = values.leaf_count(run.state_type)
    # A state that goes into the next round stays in TensorFlow; an output that is read
    # becomes numbers.
    makes_state = signature.parameter is None
    given, made = values.Packing(run.state_type), values.Packing(signature.result)

    def call(arg: Value) -> Value:
        at_server, clients = arguments.split(arg)
        results = run(given.flatten(at_server), clients)
        state, output = results[:states], results[states:]
        if not arguments.is_iterative:
            state = []
        if not makes_state:
            output = [values.to_numpy(t) for t in output]
        return made.unflatten([*state, *output])

    return call


class _DoesNotFit(Exception):
    """A computation outside MapReduce form; says why."""

    def __init__(self, error: Exception):
        # About the program: no data has been seen yet.
        reason = disclosure.describe(error, show_data=True)
        super().__init__(" ".join(reason.split()).rstrip("."))
