"""Lanes on Ray compute the bits of local lanes, also when processes die."""

import functools
import gc
import os
import pathlib
import signal
import stat

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from stackoverflow.model import local_training, next_word
from tests.runtime import runtime_examples as examples
from tests.runtime.process_ends import assert_all_end, children

# What every runtime promises, here on Ray.
from tests.runtime.test_runtimes import (  # noqa: F401
    test_datasets_may_be_lists_of_elements,
    test_federated_computations_of_other_shapes_run,
    test_model_weights_can_be_read_and_set,
    test_plain_computations_run,
    test_results_come_in_tffs_containers,
)
from tff_agg import averaging, noise, privacy, runtime
from tff_agg.federated import process
from tff_agg.runtime.lanes.times import LaneTimes
from tff_agg.runtime.ray.session import RaySession
from tff_agg.runtime.spread import spread

LANES = 2
CLIENTS = 5
STORE = 200 << 20


@pytest.fixture(scope="module")
def times():
    return LaneTimes()


@pytest.fixture(scope="module")
def on_ray(times):
    # Other tests of this process may have children of their own.
    others = children()
    context = runtime.create(
        "ray", lanes=LANES, on_client=times, object_store_bytes=STORE
    )
    family = children()
    yield context
    family |= children()
    context.close()
    assert_all_end(sorted((family | context_pids) - others))


# Of lanes that have taken others' places.
context_pids: set[int] = set()


@pytest.fixture(scope="module")
def on_local():
    context = runtime.create("local", lanes=LANES)
    yield context
    context.close()


@pytest.fixture
def running(on_ray):
    with on(on_ray):
        yield "ray"


def on(context):
    return tff.framework.get_context_stack().install(context)


def leaves(value):
    return [np.asarray(leaf) for leaf in tf.nest.flatten(value)]


def assert_same_bits(one, other):
    one, other = leaves(one), leaves(other)
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


# Bits.

WORDS = next_word.ModelConfig(
    vocab_size=30, embedding_size=4, lstm_size=6, max_tokens=8
)


def rows(position, seed):
    rng = np.random.default_rng([position, seed])
    return rng.integers(0, WORDS.num_ids, (3 + position, 9)).astype(np.int32)


def words(seed):
    return [tf.data.Dataset.from_tensors(rows(i, seed)) for i in range(CLIENTS)]


def dp_ftrl(model, mechanism, averager, seed=(1, 2), **more):
    plan = privacy.Plan(
        clip_norm=0.3,
        cohort_size=CLIENTS,
        rounds=8,
        mechanism=mechanism,
        noise_multiplier=0.5,
        noise_seed_is_known=True,
    )
    return process.build_dp_ftrl_process(
        model,
        plan=plan,
        averager=averager,
        server_momentum=0.9,
        noise_seed=seed,
        **more,
    )


def packed():
    return local_training.packed_trainer(WORDS, 0.5, batch_size=2)


@functools.cache
def packed_tree_uta():
    """Compiled by each context once, for all tests."""
    return dp_ftrl(packed(), noise.tree(), averaging.uta(3))


CASES = {
    "packed LSTM, tree, UTA": (
        packed_tree_uta,
        words,
    ),
    "packed LSTM, BLT of AES, EMA": (
        lambda: dp_ftrl(packed(), noise.blt(8), averaging.ema(decay=0.9), (1, 2, 3, 4)),
        words,
    ),
    "stock FedAvg": (
        examples.weighted_fed_avg,
        functools.partial(examples.datasets, CLIENTS),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_lanes_on_ray_compute_the_bits_of_local_lanes(case, on_ray, on_local):
    build, data = CASES[case]
    built = build()
    found = {}
    for name, context in (("local", on_local), ("ray", on_ray)):
        with on(context):
            state, outputs = built.initialize(), []
            for seed in range(2):
                # By cost and by number, in turn.
                costs = [5, 1, 1, 1, 1] if seed else None
                with runtime.balancing_lanes(costs):
                    state, metrics = built.next(state, data(seed))
                outputs.append(metrics)
        found[name] = (state, outputs)
    assert_same_bits(found["local"], found["ray"])
    with on(on_local):
        first = built.initialize()
    assert any(
        a.tobytes() != b.tobytes()
        for a, b in zip(leaves(first), leaves(found["ray"][0]), strict=True)
    )


def test_lanes_are_named_like_local_ones(on_ray, on_local):
    assert on_ray.lanes == on_local.lanes
    assert on_ray.same_bits_as == type(on_local).__name__
    assert len(set(on_ray.lane_processes)) == LANES
    assert os.getpid() not in on_ray.lane_processes


def test_seconds_are_told_by_lane(on_ray, times):
    before = sum(row.clients for row in times.table())
    total(on_ray, [[1, 2, 3]] * CLIENTS)
    table = times.table()
    assert [row.lane for row in table] == list(range(LANES))
    assert sum(row.clients for row in table) == before + CLIENTS
    assert max(row.share for row in table) == 1 and times.imbalance() >= 1


# Data.


def total(context, clients, **names):
    """Sums integers over all clients."""
    built = examples.integer_sums()
    with on(context), runtime.naming(**names):
        return int(built.next(0, clients)[1])


def numbers(upto):
    return tf.data.Dataset.range(upto)


def test_lanes_read_what_they_are_told_the_name_of(on_ray, on_local):
    clients = [runtime.LaneData(numbers, upto) for upto in (3, 4, 5)]
    assert total(on_local, clients) == 3 + 6 + 10
    assert total(on_ray, clients) == 3 + 6 + 10
    # Beside data that are sent.
    assert total(on_ray, [*clients, [100], numbers(2)]) == 19 + 101


def test_a_source_is_sent_once_and_kept_open(on_ray, tmp_path):
    class Source:
        def __init__(self, folder):
            self.folder, self.opened = folder, False

        def __call__(self, key):
            if not self.opened:
                path = pathlib.Path(self.folder, f"{os.getpid()}")
                path.write_text(path.read_text() + "x" if path.exists() else "x")
                self.opened = True
            return [key]

    source, built = Source(str(tmp_path)), examples.integer_sums()
    with on(on_ray):
        state = built.initialize()
        for _ in range(3):
            state, found = built.next(
                state, [runtime.LaneData(source, i) for i in range(4)]
            )
            assert found == 6
    opened = {int(p.name): p.read_text() for p in tmp_path.iterdir()}
    assert opened == dict.fromkeys(on_ray.lane_processes, "x")


def test_a_dataset_that_calls_python_is_read_before_it_is_sent(on_ray):
    here = os.getpid()

    def generate():
        assert os.getpid() == here
        yield from (4, 5)

    dataset = tf.data.Dataset.from_generator(
        generate, output_signature=tf.TensorSpec([], tf.int64)
    )
    assert total(on_ray, [dataset, [1]]) == 10


def test_what_a_round_sends_is_one_broadcast_and_a_sum_per_lane(on_ray):
    built = examples.weighted_fed_avg()
    with on(on_ray):
        state = built.initialize()
        built.next(state, examples.datasets(CLIENTS))
    weights = sum(w.nbytes for w in examples.weights(state))
    moved = on_ray.traffic
    assert weights <= moved.broadcast <= weights + 16
    # The sum's weight, and what metrics need.
    assert all(weights <= size <= weights + 64 for size in moved.sums.values())
    assert list(moved.sums) and len(moved.sums) == LANES


# Errors.


def test_a_failing_client_is_told_as_on_local(on_ray, on_local):
    def broken(key):
        if key == "bob":
            raise OSError("the disk of bob is gone")
        return [1]

    clients = [runtime.LaneData(broken, name) for name in ("ada", "bob", "cyd")]
    told = []
    for context in (on_local, on_ray):
        with pytest.raises(runtime.ClientError) as caught:
            total(context, clients, round=41, client_ids=["ada", "bob", "cyd"])
        error = caught.value
        told.append((str(error), error.client_id, error.round, error.stage))
        assert error.__cause__ is None and error.__context__ is None
    assert told[0] == told[1]
    assert told[1][1:] == ("bob", 41, "data") and "disk" not in told[1][0]
    assert total(on_ray, [[1], [2]]) == 3


def test_work_that_fails_names_the_first_client_and_the_operation(on_ray, on_local):
    built = packed_tree_uta()
    clients = words(0)
    for position in (3, 1):
        wrong = rows(position, 0)
        wrong[0, 1] = WORDS.num_ids + 7
        clients[position] = tf.data.Dataset.from_tensors(wrong)
    told = []
    for context in (on_local, on_ray):
        with on(context):
            state = built.initialize()
            with (
                pytest.raises(runtime.ClientError) as caught,
                runtime.naming(round=3, client_ids=list("abcde")),
            ):
                built.next(state, clients)
        assert caught.value.stage == "work" and caught.value.round == 3
        told.append(str(caught.value))
    # Lanes stop where another fails: either may be the one that is told.
    assert all("in the operation" in text for text in told)
    assert all("client 'b'" in text or "client 'd'" in text for text in told)


def test_data_of_the_wrong_type_are_refused_here_and_in_lanes(on_ray):
    for client in (["a"], runtime.LaneData(list, "a")):
        with pytest.raises(runtime.ClientDataError) as caught:
            total(on_ray, [[1], client], client_ids=["ada", "bob"])
        assert (caught.value.client_id, caught.value.stage) == ("bob", "data")


# Faults.


@pytest.mark.slow
def test_a_lane_killed_in_a_round_is_replaced_and_comes_to_the_same_bits(
    on_ray, on_local, tmp_path
):
    built = packed_tree_uta()
    victim = tmp_path / "killed"

    def deadly(key):
        position, seed = key
        if position == 3 and not victim.exists():
            victim.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return tf.data.Dataset.from_tensors(rows(position, seed))

    def clients(seed):
        return [runtime.LaneData(deadly, (i, seed)) for i in range(CLIENTS)]

    before = on_ray.lane_processes
    context_pids.update(before)
    with on(on_ray):
        state = built.initialize()
        state, metrics = built.next(state, clients(0))
        state, metrics = built.next(state, clients(1))
    after = on_ray.lane_processes
    context_pids.update(after)
    assert int(victim.read_text()) == before[1] != after[1] and before[0] == after[0]
    assert_all_end([before[1]])
    with on(on_local):
        expected = built.initialize()
        for seed in range(2):
            expected, expected_metrics = built.next(expected, words(seed))
    assert_same_bits((state, metrics), (expected, expected_metrics))


# Memory.


@pytest.mark.slow
def test_lanes_and_the_object_store_keep_nothing_of_a_round(on_ray, tmp_path):
    """Counts what is kept in a lane and in Ray while cohorts change."""
    import ray

    def observing(key):
        from tensorflow.python.eager import context

        gc.collect()
        kept = len(gc.get_objects()) + len(context.context().list_function_names())
        with open(tmp_path / str(os.getpid()), "a") as file:
            print(kept, file=file)
        return numbers(key)

    built, rng, held = examples.integer_sums(), np.random.default_rng(0), []
    worker = ray._private.worker.global_worker.core_worker
    with on(on_ray):
        state = built.initialize()
        for number in range(60):
            sizes = rng.integers(0, 9, rng.integers(2, 10))
            others = [numbers(int(size)) for size in sizes]
            source = observing if number % 6 == 5 else numbers
            first = [runtime.LaneData(source, 1)] * LANES
            state, _ = built.next(state, [*first, *others])
            held.append(len(worker.get_all_reference_counts()))
    counts = [list(map(int, p.read_text().split())) for p in tmp_path.iterdir()]
    assert len(counts) == LANES
    for kept in counts:
        assert len(kept) == 10
        # Less than one thing per round: a leak would keep several.
        assert max(kept) - kept[1] < 48
        assert max(kept) < 1.05 * kept[1]
    # No reference more than after the first rounds, but for a call under way.
    assert max(held) <= held[5] + LANES


# Security.


def test_nothing_listens_beyond_loopback(on_ray):
    assert on_ray.lanes
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    listening = [
        connection.laddr.ip.removeprefix("::ffff:")
        for member in family
        for connection in member.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= LANES + 2
    assert set(listening) <= {"127.0.0.1", "::1"}


def test_other_users_find_a_closed_folder_and_no_token(on_ray):
    import ray

    folder = pathlib.Path(ray._private.worker.global_worker.node.get_temp_dir_path())
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


# Jobs.


def test_jobs_run_on_the_cluster(capfd):
    # Inside, so that it is sent as it is: a worker need not import this file.
    def half(number):
        if number % 2:
            raise ValueError(f"{number} is odd")
        return os.getpid(), number // 2

    context = RaySession(cpus=2, object_store_bytes=STORE)
    ended = sorted(
        spread(half, [8, 3, 4], address="auto", cpus_per_job=0, set_up=lambda: None)
    )
    context.close()
    assert capfd.readouterr() == ("", "")
    assert [e.position for e in ended] == [0, 1, 2]
    assert str(ended[1].error) == "3 is odd" and isinstance(ended[1].error, ValueError)
    found = [e.value for e in ended if e.error is None]
    assert [value for _, value in found] == [4, 2]
    assert os.getpid() not in {pid for pid, _ in found}


def test_wrong_options_are_refused_before_anything_starts():
    for options, message in (
        ({"lanes": 0}, "lanes must be a whole number of at least 1, got 0"),
        ({"cpus_per_lane": 0}, "cpus_per_lane must be a positive finite number, got 0"),
        ({"gpus_per_lane": -1}, "gpus_per_lane must be .* at least 0, got -1"),
        ({"gpu_memory_mb": 500}, "gpu_memory_mb=500 needs gpus_per_lane above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            runtime.create("ray", **options)
