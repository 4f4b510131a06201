"""What does not fit the MapReduce form and is small goes to TFF's own executor."""

import collections
import logging
import signal
import textwrap

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import forked
from tests.runtime import runtime_examples as examples
from tests.runtime.process_ends import assert_all_end
from tff_agg import runtime

AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)
AT_SERVER = tff.FederatedType(np.float32, tff.SERVER)


@tff.tensorflow.computation(np.float32)
def double(x):
    return 2 * x


@tff.tensorflow.computation(np.float32, np.float32)
def add(x, y):
    return x + y


@tff.federated_computation(AT_CLIENTS)
def doubled(x):
    return tff.federated_map(double, x)


@tff.federated_computation(AT_SERVER)
def broadcast(x):
    return tff.federated_broadcast(x)


@tff.federated_computation(np.float32, AT_CLIENTS)
def from_nowhere(x, y):
    total = tff.federated_sum(y)
    return tff.federated_map(add, (tff.federated_value(x, tff.SERVER), total))


@tff.federated_computation(AT_SERVER)
def to_nowhere(x):
    return collections.OrderedDict(same=x, plain=double(np.float32(1.5)))


@tff.federated_computation(tff.FunctionType(np.float32, np.float32), AT_CLIENTS)
def with_function(function, x):
    return tff.federated_sum(tff.federated_map(function, x))


@tff.federated_computation(AT_CLIENTS)
def twice_round(x):
    mean = tff.federated_broadcast(tff.federated_mean(x))
    return tff.federated_max(tff.federated_map(add, (x, mean)))


@pytest.fixture(scope="module")
def local():
    with runtime.running_on("local", lanes=2) as context:
        yield context


def workers() -> list[int]:
    """Returns the ids of TFF's workers that this process has started."""
    return [
        child.pid
        for child in psutil.Process().children(recursive=True)
        if "worker" in child.name()
    ]


@pytest.mark.parametrize(
    ("computation", "arguments", "expected"),
    [
        (doubled, ([1.0, 2.0],), [2.0, 4.0]),
        (broadcast, (3.0,), 3.0),
        (from_nowhere, (1.0, [1.0, 2.0]), 4.0),
        (to_nowhere, (2.0,), {"same": 2.0, "plain": 3.0}),
        (with_function, (double, [1.0, 2.0]), 6.0),
        (twice_round, ([1.0, 3.0],), 5.0),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_small_computations_of_any_form_are_served(
    local, computation, arguments, expected
):
    for _ in range(2):
        assert computation(*arguments) == expected


def test_plain_computations_need_no_worker():
    before = workers()
    with runtime.running_on("local", worker=False):
        assert double(4.0) == 8.0
        assert tff.federated_computation(lambda: (double(1.0), 7))() == (2.0, 7)
    with runtime.running_on("local"):
        assert double(4.0) == 8.0
        assert workers() == before


def test_it_is_said_once_and_ends_with_the_context(caplog):
    before = set(workers())
    with (
        caplog.at_level(logging.WARNING, "tff_agg.runtime"),
        runtime.running_on("local", lanes=1) as context,
    ):
        for _ in range(2):
            doubled([1.0])
            broadcast(1.0)
        (pid,) = set(workers()) - before
        context.close()
        assert set(workers()) == before
        # It is there again when it is needed again.
        assert doubled([4.0]) == [8.0]
    assert set(workers()) == before
    assert not psutil.pid_exists(pid)
    said = [r.getMessage() for r in caplog.records if "own executor" in r.getMessage()]
    assert len(said) == 1
    assert "\n" not in said[0]
    assert "not at the server" in said[0]


def _step(at_server, at_clients):
    """A step that does not fit: its second result stays at the clients."""

    @tff.federated_computation(
        tff.FederatedType(at_server, tff.SERVER),
        tff.FederatedType(at_clients, tff.CLIENTS),
    )
    def step(state, data):
        return state, data

    return step


NUMBERS = tff.SequenceType(np.int64)


@tff.federated_computation(tff.FederatedType(NUMBERS, tff.CLIENTS))
def data_sets(x):
    return x


@tff.federated_computation(np.float32)
def makes_function(x):
    del x
    return double


@pytest.mark.parametrize(
    ("computation", "arguments", "why"),
    [
        (_step(np.float32, np.float32), (1.0, [1.0]), "it is the step of a process"),
        (_step(np.float32, NUMBERS), (1.0, [[1]]), "it takes data sets"),
        (data_sets, ([[1]],), "it takes data sets"),
        (makes_function, (1.0,), "its result is a function"),
    ],
    ids=["step", "step on data sets", "data sets", "function"],
)
def test_data_sets_and_steps_are_never_handed_over(local, computation, arguments, why):
    before = workers()
    with pytest.raises(
        runtime.RuntimeUnsupportedError,
        match=rf"(?s)MapReduce form.*not handed to TFF's own executor: {why}"
        r".*use\('worker'\)",
    ):
        computation(*arguments)
    assert workers() == before


def test_a_process_is_never_handed_over():
    """Not even where it could not be compiled to the form."""
    process = examples.weighted_fed_avg(examples.linear_model_fn)
    state, data = process.initialize.type_signature.result, process.next.type_signature
    from tff_agg.runtime.compile.tff_executor import TffExecutor

    executor = TffExecutor(wanted=True, show_data=False)
    assert "data sets" in executor.why_not(data)
    weights = tff.FunctionType(
        collections.OrderedDict(state=state, update=AT_CLIENTS),
        tff.StructType([("state", state), ("result", AT_SERVER)]),
    )
    assert "step of a process" in executor.why_not(weights)
    assert executor.why_not(process.initialize.type_signature) is None


def test_an_error_says_that_tffs_executor_was_asked_and_quotes_no_data(local):
    @tff.tensorflow.computation(np.float32)
    def broken(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 1.0, [x])]):
            return tf.identity(x)

    @tff.federated_computation(AT_CLIENTS)
    def at_clients(x):
        return tff.federated_map(broken, x)

    with pytest.raises(runtime.ComputationError) as caught:
        at_clients([0.5, 1234.5])
    assert "TFF's executor was asked because it does not fit" in str(caught.value)
    assert "1234" not in str(caught.value)
    assert at_clients([0.5]) == [0.5]


PROGRAM = """
import os, signal
import numpy as np, psutil, tensorflow_federated as tff
from tff_agg import runtime
runtime.use("local", lanes=1)

@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def echo(x):
    return x

assert echo([1.0, 2.0]) == [1.0, 2.0]
print(*[child.pid for child in psutil.Process().children()], flush=True)
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
    ids=["normal", "SIGKILL"],
)
def test_no_process_survives_the_program(ending, code):
    done = forked.run(textwrap.dedent(PROGRAM) + ending, timeout=300)
    assert done.returncode == code, done.stderr
    assert_all_end([int(pid) for pid in done.stdout.split()])
