"""What every runtime promises."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime import runtime_examples as examples
from tff_agg import runtime

CLIENTS = 5


@pytest.fixture(scope="module")
def contexts():
    made = {name: runtime.create(name) for name in ("local", "worker")}
    yield made
    made["worker"].close()


@pytest.fixture(params=["local", "worker"])
def running(request, contexts):
    with tff.framework.get_context_stack().install(contexts[request.param]):
        yield request.param


def on(context):
    return tff.framework.get_context_stack().install(context)


def test_fed_avg_is_what_numpy_computes(running):
    process = examples.weighted_fed_avg(examples.linear_model_fn)
    state = process.initialize()
    (expected,) = examples.weights(state)
    assert expected.shape == (examples.FEATURES, 1)
    for seed in range(3):
        data = examples.datasets(CLIENTS, seed=seed)
        state = process.next(state, data).state
        expected = examples.numpy_round(
            expected, examples.client_arrays(CLIENTS, seed=seed), batch=4
        )
        np.testing.assert_allclose(examples.weights(state)[0], expected, atol=1e-5)
    assert np.abs(expected).max() > 0.01


def test_results_come_in_tffs_containers(running):
    process = examples.weighted_fed_avg()
    output = process.next(process.initialize(), examples.datasets(CLIENTS))
    assert isinstance(output, tff.learning.templates.LearningProcessOutput)
    assert isinstance(output.state, tff.learning.templates.LearningAlgorithmState)
    model = output.state.global_model_weights
    assert isinstance(model, tff.learning.models.ModelWeights)
    assert [np.asarray(w).dtype for w in model.trainable] == [np.float32] * 4
    train = output.metrics["client_work"]["train"]
    assert isinstance(train, collections.OrderedDict)
    assert train["num_examples"] == sum(6 + i for i in range(CLIENTS))
    assert isinstance(train["loss"], np.float32)
    assert f"{train['loss']:.1f}" == f"{float(train['loss']):.1f}"


def test_model_weights_can_be_read_and_set(running):
    process = examples.weighted_fed_avg()
    state = process.next(process.initialize(), examples.datasets(CLIENTS)).state
    model = process.get_model_weights(state)
    assert isinstance(model.trainable[0], np.ndarray)
    doubled = tff.learning.models.ModelWeights(
        trainable=[2 * w for w in model.trainable], non_trainable=[]
    )
    state = process.set_model_weights(state, doubled)
    for new, old in zip(examples.weights(state), model.trainable, strict=True):
        np.testing.assert_array_equal(new, 2 * old)
    process.next(state, examples.datasets(CLIENTS))


def test_evaluation_runs(running):
    process = tff.learning.algorithms.build_fed_eval(examples.linear_model_fn)
    output = process.next(process.initialize(), examples.datasets(CLIENTS))
    current = output.metrics["client_work"]["eval"]["current_round_metrics"]
    y = np.concatenate([y for _, y in examples.client_arrays(CLIENTS)])
    np.testing.assert_allclose(current["loss"], np.mean(y**2), rtol=1e-5)
    assert current["num_examples"] == len(y)


def test_plain_computations_run(running):
    @tff.tensorflow.computation(np.int32, np.float32)
    def both(a, b):
        return examples.named(product=tf.cast(a, tf.float32) * b, same=a)

    result = both(3, 0.5)
    assert isinstance(result, collections.OrderedDict)
    assert result == {"product": 1.5, "same": 3}
    assert isinstance(result["product"], np.float32)

    @tff.tensorflow.computation
    def none():
        return tf.constant([1.0, 2.0])

    np.testing.assert_array_equal(none(), [1.0, 2.0])


def test_results_may_be_data_sets(running):
    @tff.tensorflow.computation(np.int64)
    def counted(start):
        first = tf.Variable(0, dtype=tf.int64)
        with tf.control_dependencies([first.assign_add(start)]):
            return tf.data.Dataset.range(3).map(
                lambda i: examples.named(number=i + first, half=i / 2)
            )

    @tff.federated_computation
    def at_server():
        return tff.federated_eval(
            tff.tensorflow.computation(lambda: tf.data.Dataset.range(4)), tff.SERVER
        )

    # The variable of one call is not that of the next, though it is read after it.
    one, other = counted(1), counted(100)
    assert isinstance(one, tf.data.Dataset)
    assert [int(e["number"]) for e in one] == [1, 2, 3]
    assert [int(e["number"]) for e in other] == [100, 101, 102]
    assert [float(e["half"]) for e in other] == [0.0, 0.5, 1.0]
    assert [int(e) for e in at_server()] == [0, 1, 2, 3]


WORDS = tff.TensorType(np.str_, [None])


def _static(keys, numbers):
    return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(keys, numbers), -1
    ).size()


def _mutable(keys, numbers):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    with tf.control_dependencies([table.insert(keys, numbers)]):
        return table.size()


def _of_tensors(keys, numbers):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, [-1, -1])
    with tf.control_dependencies([table.insert(keys, tf.stack([numbers] * 2, 1))]):
        return table.size()


def _dense(keys, numbers):
    table = tf.lookup.experimental.DenseHashTable(tf.string, tf.int64, -1, "", "x")
    with tf.control_dependencies([table.insert(keys, numbers)]):
        return table.size()


@pytest.mark.parametrize("table_size", [_static, _mutable, _of_tensors, _dense])
def test_every_call_and_every_client_has_tables_of_its_own(running, table_size):
    @tff.tensorflow.computation(WORDS)
    def size(keys):
        numbers = tf.range(tf.size(keys, tf.int64), dtype=tf.int64)
        return tf.ensure_shape(table_size(keys, numbers), [])

    @tff.federated_computation(tff.FederatedType(WORDS, tff.CLIENTS))
    def total(keys):
        return tff.federated_sum(tff.federated_map(size, keys))

    given = [["a", "b"], ["c", "b", "d"], ["a"], ["e"]]
    assert [size(keys) for keys in given] == [2, 3, 1, 1]
    assert total(given) == 7


def test_datasets_may_be_lists_of_elements(running):
    process = examples.integer_sums()
    state, total = process.next(process.initialize(), [[1, 2, 3], [], [10]])
    assert total == 16
    state, total = process.next(
        state, [tf.data.Dataset.range(5), tf.data.Dataset.range(3)]
    )
    assert (int(state), int(total)) == (29, 13)


def test_federated_computations_of_other_shapes_run(running):
    @tff.tensorflow.computation(np.float32)
    def double(x):
        return 2 * x

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def total(x):
        return tff.federated_sum(tff.federated_map(double, x))

    @tff.federated_computation(
        tff.FederatedType(np.float32, tff.CLIENTS),
        tff.FederatedType(np.float32, tff.SERVER),
        tff.FederatedType(np.float32, tff.CLIENTS),
    )
    def several(x, bias, y):
        return tff.federated_sum(x), bias, tff.federated_max(y)

    assert total([1.0, 2.0, 4.0]) == 14.0
    assert tuple(several([1.0, 2.0], 7.0, [3.0, -1.0])) == (3.0, 7.0, 3.0)


def test_initial_states_agree(contexts):
    process = examples.weighted_fed_avg()
    found = []
    for context in contexts.values():
        with on(context):
            found.append(examples.weights(process.initialize()))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_state_moves_between_runtimes(contexts):
    process = examples.weighted_fed_avg()
    data = examples.datasets(CLIENTS)

    def train(order):
        state = None
        for name in order:
            with on(contexts[name]):
                state = process.initialize() if state is None else state
                state = process.next(state, data).state
        return examples.weights(state)

    mixed = train(["local", "worker", "local", "worker"])
    for ours, theirs in zip(mixed, train(["worker"] * 4), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"'lokal'.*'local', 'ray', 'worker'"):
        runtime.use("lokal")
    with (
        pytest.raises(TypeError, match=r"'local'.*lane_count"),
        runtime.running_on("local", lane_count=2),
    ):
        pass
