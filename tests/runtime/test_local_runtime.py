"""What the runtime in this process promises beyond the others."""

import gc
import threading
import time

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime import runtime_examples as examples
from tff_agg import runtime


@pytest.fixture(scope="module")
def fed_avg():
    return examples.weighted_fed_avg()


@pytest.fixture(scope="module")
def context():
    return runtime.create("local", lanes=2)


@pytest.fixture
def two_lanes(context):
    """Shared, so that the process is compiled once for all tests."""
    with tff.framework.get_context_stack().install(context):
        yield context


def sleeping(dataset: tf.data.Dataset, seconds: float) -> tf.data.Dataset:
    """The same elements, each after a while."""

    def wait():
        time.sleep(seconds)
        return np.int32(0)

    def slow(*element):
        waited = tf.numpy_function(wait, [], tf.int32)
        with tf.control_dependencies([waited]):
            return tuple(tf.identity(part) for part in element)

    spec = dataset.element_spec
    return dataset.map(slow).map(
        lambda *e: tuple(
            tf.ensure_shape(p, s.shape) for p, s in zip(e, spec, strict=True)
        )
    )


def test_bits_do_not_depend_on_timing(fed_avg, two_lanes):
    data = examples.datasets(7)
    found = []
    state = fed_avg.initialize()
    for delays in ([0.0] * 7, [0.05, 0, 0, 0.02, 0, 0.03, 0], [0, 0.04] * 3 + [0]):
        slow = [sleeping(d, s) if s else d for d, s in zip(data, delays, strict=True)]
        found.append(examples.weights(fed_avg.next(state, slow).state))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_client_i_goes_to_lane_i_modulo_lanes():
    process, runs = examples.integer_sums(), []
    with runtime.running_on("local", lanes=3, on_client=runs.append):
        process.next(process.initialize(), [[1]] * 8)
    placed = {run.position: run.lane.number for run in runs}
    assert placed == {i: i % 3 for i in range(8)}


def test_known_costs_decide_on_lanes_and_not_on_the_sum():
    process = examples.integer_sums()
    runs = []
    with runtime.running_on("local", lanes=2, on_client=runs.append):
        state = process.initialize()
        with runtime.balancing_lanes([1, 1, 9, 1]):
            state, total = process.next(state, [[1], [2], [4], [8]])
        with (
            runtime.balancing_lanes([1]),
            pytest.raises(ValueError, match=r"client_costs: .* 1 values.*2 clients"),
        ):
            process.next(state, [[1], [2]])
    assert total == 15
    assert {run.position: run.lane.number for run in runs} == {0: 1, 1: 1, 2: 0, 3: 1}


@pytest.mark.parametrize("lanes", [1, 4])
def test_lanes_do_not_share_variables(lanes):
    process = examples.integer_sums()
    data = [tf.data.Dataset.range(i).repeat(20) for i in range(12)]
    with runtime.running_on("local", lanes=lanes):
        state = process.initialize()
        for _ in range(3):
            state, total = process.next(state, data)
            assert total == 20 * sum(i * (i - 1) // 2 for i in range(12))


def test_sums_in_lanes_are_the_sum_in_one(fed_avg, context):
    data, found = examples.datasets(9), []
    for several in (runtime.create("local", lanes=1), context):
        with tff.framework.get_context_stack().install(several):
            output = fed_avg.next(fed_avg.initialize(), data)
        found.append(examples.weights(output.state))
        assert output.metrics["client_work"]["train"]["num_examples"] == 90
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_no_clients_and_fewer_clients_than_lanes():
    process = examples.integer_sums()
    with runtime.running_on("local", lanes=4):
        state, total = process.next(process.initialize(), [])
        assert (int(state), int(total)) == (0, 0)
        state, total = process.next(state, [[5]])
        assert (int(state), int(total)) == (5, 5)


def test_secure_sums_are_sums(two_lanes):
    # TFF's worker refuses these.
    assert tuple(examples.secure_sums()([1, 20, 3, 50])) == (74, 74, 74)
    assert examples.modular_sum(7)([3, 5, 6, 6]) == 20 % 7


def test_state_stays_in_tensorflow(fed_avg, two_lanes):
    state = fed_avg.next(fed_avg.initialize(), examples.datasets(2)).state
    assert all(isinstance(w, tf.Tensor) for w in state.global_model_weights.trainable)


def test_no_process_is_started(fed_avg, two_lanes):
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    fed_avg.next(fed_avg.initialize(), examples.datasets(2))
    now = {child.pid for child in psutil.Process().children(recursive=True)}
    assert now <= before


def test_a_computation_is_compiled_once_and_forgotten_with_it(monkeypatch):
    from tff_agg.runtime.compile import rounds

    compiled = []
    form_of = rounds.form_of
    monkeypatch.setattr(
        rounds, "form_of", lambda comp: compiled.append(comp) or form_of(comp)
    )
    with runtime.running_on("local") as context:
        process = examples.integer_sums()
        state = process.initialize()
        for clients in (1, 5, 2, 9):
            state, _ = process.next(state, [[1]] * clients)
        assert len(compiled) == 2
        assert len(context._compiled) == 2
        del process
        compiled.clear()
        gc.collect()
        assert len(context._compiled) == 0


def test_a_failing_dataset_names_client_round_and_stage(fed_avg, two_lanes):
    def broken():
        yield examples.client_arrays(1)[0]
        raise OSError("the disk of this client is gone")

    good = examples.datasets(3)
    bad = tf.data.Dataset.from_generator(broken, output_signature=good[0].element_spec)
    state = fed_avg.initialize()
    with (
        pytest.raises(runtime.ClientError) as caught,
        runtime.naming(round=41, client_ids=["ada", "bob", "cyd"]),
    ):
        fed_avg.next(state, [good[0], good[1], bad])
    error = caught.value
    assert (error.client_id, error.position) == ("cyd", 2)
    assert (error.round, error.stage) == (41, "work")
    for part in ("'cyd'", "round 41", "'work'", "UnknownError"):
        assert part in str(error)
    # Without names: positions; and the runtime still works afterwards.
    with pytest.raises(runtime.ClientError, match=r"client 1 \(position 1\) failed"):
        fed_avg.next(state, [good[0], bad])
    fed_avg.next(state, good)


def test_wrong_shapes_name_the_client(fed_avg, two_lanes):
    wrong = tf.data.Dataset.from_tensors((np.zeros((2, 9), "f"), np.zeros((2, 1), "f")))
    state = fed_avg.initialize()
    with (
        runtime.naming(client_ids=["ada", "bob"]),
        pytest.raises(runtime.ClientDataError, match=r"'bob'.*'data'.*\[\?,9\]"),
    ):
        fed_avg.next(state, [examples.datasets(1)[0], wrong])
    with pytest.raises(TypeError, match=r"position 0.*Dataset or a list"):
        fed_avg.next(state, ["no data"])


def test_the_first_failing_client_is_the_one_named(fed_avg, two_lanes):
    def broken():
        raise OSError("gone")
        yield

    good = examples.datasets(1)[0]
    bad = tf.data.Dataset.from_generator(broken, output_signature=good.element_spec)
    late = sleeping(good, 0.05).concatenate(bad)
    state = fed_avg.initialize()
    with pytest.raises(runtime.ClientError) as caught:
        fed_avg.next(state, [late, bad])
    assert caught.value.position == 0


def test_names_must_fit_the_clients(fed_avg, two_lanes):
    state = fed_avg.initialize()
    with (
        runtime.naming(client_ids=["ada"]),
        pytest.raises(ValueError, match=r"client_ids: .* 1 values.*2 clients"),
    ):
        fed_avg.next(state, examples.datasets(2))


def test_a_wrong_state_is_refused_by_name(fed_avg, two_lanes):
    state = fed_avg.initialize()
    first, *rest = state.global_model_weights.trainable
    assert first.shape != (2, 2)
    weights = tff.learning.models.ModelWeights([np.zeros((2, 2), "f"), *rest], [])
    wrong = state._replace(global_model_weights=weights)
    with pytest.raises(TypeError, match=r"global_model_weights/trainable/0.*2, ?2"):
        fed_avg.next(wrong, examples.datasets(2))


def test_what_does_not_fit_says_why_and_names_the_other_runtime():
    # A broadcast of an aggregate: two round trips, so no MapReduce form.
    @tff.tensorflow.computation(np.float32, np.float32)
    def subtract(x, mean):
        return x - mean

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def centred(x):
        mean = tff.federated_broadcast(tff.federated_mean(x))
        return tff.federated_sum(tff.federated_map(subtract, (x, mean)))

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def echo(x):
        return x

    with runtime.running_on("local", lanes=1, worker=False):
        with pytest.raises(
            runtime.RuntimeUnsupportedError, match=r"(?s)MapReduce.*broadcast.*'worker'"
        ):
            centred([1.0, 2.0])
        with pytest.raises(
            runtime.RuntimeUnsupportedError, match=r"not at the server.*'worker'"
        ):
            echo([1.0, 2.0])


def test_threads_may_call_at_the_same_time():
    process = examples.integer_sums()
    with runtime.running_on("local", lanes=2) as context:
        process.next(process.initialize(), [[1]])
    found: dict[int, int] = {}

    def call(i: int) -> None:
        with tff.framework.get_context_stack().install(context):
            state = 0
            for _ in range(5):
                state, _ = process.next(state, [[i]] * 4)
            found[i] = int(state)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: 20 * i for i in range(4)}


@pytest.mark.parametrize("lanes", [0, -1, 1.5])
def test_impossible_lanes_are_refused(lanes):
    with pytest.raises(ValueError, match=f"lanes must be .*, got {lanes}"):
        runtime.create("local", lanes=lanes)


def test_unknown_devices_are_refused():
    with pytest.raises(ValueError, match=r"no device 'GPU:7'; it sees .*CPU:0"):
        runtime.create("local", devices=["GPU:7"])
    with pytest.raises(ValueError, match="devices: an empty list"):
        runtime.create("local", devices=[])
