"""An error tells whose part failed and where, and nothing of anybody's data."""

import collections
import functools
import traceback

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import forked
from tests.runtime import runtime_examples as examples
from tff_agg import runtime

SECRET = 10_005
DATA = tff.SequenceType(
    tff.to_type(collections.OrderedDict(x=(np.float32, [None]), y=np.int32))
)


@functools.cache
def process_of(use):
    """A process whose clients do `use(x, y)` with each element and send a number."""

    @tff.tensorflow.computation
    def zero():
        return np.float32(0)

    @tff.federated_computation
    def initialize():
        return tff.federated_value(zero(), tff.SERVER)

    @tff.tensorflow.computation(np.float32, DATA)
    def work(state, data):
        return data.reduce(state, lambda total, e: total + use(e["x"], e["y"]))

    @tff.federated_computation(
        initialize.type_signature.result, tff.FederatedType(DATA, tff.CLIENTS)
    )
    def next_fn(state, data):
        sent = tff.federated_map(work, (tff.federated_broadcast(state), data))
        total = tff.federated_sum(sent)
        return total, total

    return tff.templates.IterativeProcess(initialize, next_fn)


def label_out_of_range(x, y):
    return tf.reduce_sum(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.expand_dims(y, 0), logits=tf.zeros([1, 10])
        )
    ) + tf.reduce_sum(0.0 * x)


def index_out_of_range(x, y):
    return tf.gather(tf.zeros([50]), y) + tf.reduce_sum(0.0 * x)


def user_assertion(x, y):
    tf.debugging.Assert(y < 10, ["labels must be below ten; there was", y])
    return tf.cast(y, tf.float32) + tf.reduce_sum(0.0 * x)


def of_client(*labels):
    return tf.data.Dataset.from_tensor_slices(
        collections.OrderedDict(
            x=np.full([len(labels), 2], 0.123, np.float32),
            y=np.array(labels, np.int32),
        )
    )


def shown(error):
    """What a traceback prints: the messages of the error and of all it came from."""
    return "".join(
        part
        for part in traceback.format_exception(error)
        if not part.startswith("  File ")
    )


@pytest.fixture(scope="module")
def contexts():
    made = {
        "quiet": runtime.create("local", lanes=2),
        "open": runtime.create("local", lanes=2, show_data_in_errors=True),
    }
    yield made
    for context in made.values():
        context.close()


def failing_round(context, process, data):
    with tff.framework.get_context_stack().install(context):
        state = process.initialize()
        with (
            runtime.naming(round=3, client_ids=[f"user {i}" for i in range(len(data))]),
            pytest.raises(runtime.ClientError) as caught,
        ):
            process.next(state, data)
    return caught.value


@pytest.mark.parametrize(
    ("use", "operation"),
    [
        (label_out_of_range, "SparseSoftmaxCrossEntropyWithLogits"),
        (index_out_of_range, "GatherV2"),
        (user_assertion, "Assert"),
    ],
)
def test_a_failing_operation_is_named_and_its_values_are_not(contexts, use, operation):
    process = process_of(use)
    data = [of_client(1, 2), of_client(3, SECRET)]
    error = failing_round(contexts["quiet"], process, data)
    text = shown(error)
    for part in ("'user 1'", "round 3", "'work'", "InvalidArgumentError", operation):
        assert part in str(error)
    assert str(SECRET) not in text
    assert "0.123" not in text
    assert error.__cause__ is None and error.__context__ is None
    # What was written in the program may be read; values may not.
    assert ("labels must be below ten" in text) == (use is user_assertion)


def test_who_asks_for_it_sees_the_data(contexts):
    process = process_of(label_out_of_range)
    data = [of_client(1, 2), of_client(3, SECRET)]
    error = failing_round(contexts["open"], process, data)
    assert str(SECRET) in str(error)
    assert isinstance(error.__cause__, tf.errors.InvalidArgumentError)


def test_an_error_of_the_clients_own_python_is_not_quoted(contexts):
    def broken():
        yield collections.OrderedDict(x=np.zeros(2, np.float32), y=1)
        raise ValueError(f"cannot parse the line 'my number is {SECRET}'")

    good = of_client(1)
    bad = tf.data.Dataset.from_generator(broken, output_signature=good.element_spec)
    process = process_of(index_out_of_range)
    error = failing_round(contexts["quiet"], process, [good, bad])
    assert "'user 1'" in str(error)
    assert str(SECRET) not in shown(error)
    error = failing_round(contexts["open"], process, [good, bad])
    assert str(SECRET) in str(error)


def test_data_that_looks_like_an_operation_is_not_quoted(contexts):
    """A name is shown only if the program has it."""

    def broken():
        yield collections.OrderedDict(x=np.zeros(2, np.float32), y=1)
        raise ValueError("{{node my_diary}} {{node MyDiary/Assert_of_mine}}")

    good = of_client(1)
    bad = tf.data.Dataset.from_generator(broken, output_signature=good.element_spec)
    error = failing_round(contexts["quiet"], process_of(user_assertion), [good, bad])
    assert "iary" not in shown(error)


@pytest.mark.parametrize(
    "bad",
    [
        f"number {SECRET}",
        [{"x": [0.5], "y": f"number {SECRET}"}],
        [{"x": [0.5], "y": 1, f"number {SECRET}": 1}],
        [{"x": [0.5], "y": [SECRET, SECRET]}],
        [[f"number {SECRET}"]],
        {"y": SECRET},
    ],
)
def test_data_of_the_wrong_type_is_not_quoted(contexts, bad):
    process = process_of(index_out_of_range)
    error = failing_round(contexts["quiet"], process, [of_client(1), bad])
    assert isinstance(error, runtime.ClientDataError)
    assert error.stage == "data" and error.client_id == "user 1"
    assert str(SECRET) not in shown(error)


def test_how_much_a_client_has_is_not_told(contexts):
    """Of sizes that the program leaves open, errors say nothing."""
    rows = 4711
    wrong = tf.data.Dataset.from_tensors(
        (np.zeros((rows, 9), "f"), np.zeros((rows, 1), "f"))
    )
    longer = tf.data.Dataset.from_tensors(
        (np.zeros((rows, 9, rows), "f"), np.zeros((rows, 1), "f"))
    )
    process = examples.weighted_fed_avg()
    for data, told in ((wrong, "float32[?,9]"), (longer, "float32[?,?,?]")):
        error = failing_round(contexts["quiet"], process, [data])
        assert told in str(error)
        assert str(rows) not in shown(error)


def test_plain_computations_and_the_server_do_not_quote_either(contexts):
    @tff.tensorflow.computation(np.int32)
    def look_up(index):
        return tf.gather(tf.zeros([50]), index)

    with (
        tff.framework.get_context_stack().install(contexts["quiet"]),
        pytest.raises(runtime.ComputationError, match="GatherV2") as caught,
    ):
        look_up(SECRET)
    assert str(SECRET) not in shown(caught.value)
    with (
        tff.framework.get_context_stack().install(contexts["quiet"]),
        pytest.raises(TypeError) as caught,
    ):
        look_up(f"number {SECRET}")
    assert str(SECRET) not in str(caught.value)


PROGRAM = """
import sys
from tff_agg.runtime.quiet import quiet_tensorflow
quiet_tensorflow()
from tests.runtime import test_errors_without_data as this
from tff_agg import runtime
process = this.process_of(this.label_out_of_range)
with runtime.running_on(sys.argv[1]), runtime.naming(round=3):
    process.next(process.initialize(), [this.of_client(1), this.of_client(2, 10_005)])
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local", "worker"])
def test_a_program_prints_nothing_of_it_either(name):
    """TensorFlow's own log would: also in TFF's worker."""
    done = forked.run(PROGRAM, name, timeout=300)
    assert done.returncode == 1
    assert "round 3" in done.stderr
    assert str(SECRET) not in done.stdout + done.stderr.replace("10_005", "")
