"""The state is all there is: it can be stored, restored and run elsewhere."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_agg import averaging, noise, runtime
from tff_agg.federated import trainers
from tff_agg.server import state as states

HEAVY_OP = "Qr"


def played(tiny, built, state, first, last):
    for round_number in range(first, last):
        rng = np.random.default_rng(round_number)
        rows = rng.normal(size=(2, tiny.WIDTH))
        state, metrics = built.next(state, [tiny.client(row) for row in rows])
    return state, metrics


def build_everything(tiny, **changes):
    arguments = {
        "plan": tiny.plan(
            clip_norm=0.7,
            noise_multiplier=0.5,
            mechanism=noise.blt_from((0.9,), (0.2,)),
            noise_seed_is_known=True,
        ),
        "averager": averaging.starting_at(1, averaging.uta(3)),
        "server_momentum": 0.9,
        "nesterov": True,
        "noise_seed": (1, 2),
    }
    return tiny.build("pull", **{**arguments, **changes})


def test_a_state_stored_as_numpy_goes_on_bit_by_bit(tiny):
    built = build_everything(tiny)
    halfway, _ = played(tiny, built, built.initialize(), 0, 3)
    expected, expected_metrics = played(tiny, built, halfway, 3, 6)
    # Weights that are not trained are carried along.
    assert [int(leaf) for leaf in expected.global_model_weights.non_trainable] == [7]
    stored = tf.nest.map_structure(lambda leaf: np.array(leaf), halfway)
    assert all(isinstance(leaf, np.ndarray) for leaf in tf.nest.flatten(stored))
    # Another process object, as after a restart.
    restored, metrics = played(tiny, build_everything(tiny), stored, 3, 6)
    assert metrics == expected_metrics
    tf.nest.assert_same_structure(expected, restored)
    compared = 0
    for one, other in zip(
        tf.nest.flatten(expected), tf.nest.flatten(restored), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
        compared += 1
    assert compared > 15


def test_a_model_initialized_at_random_starts_everywhere_alike(tiny):
    def random_weights():
        draw = tf.raw_ops.NonDeterministicInts(shape=[tiny.WIDTH], dtype=tf.int64)
        return tff.learning.models.ModelWeights([tf.cast(draw, tf.float32)], [])

    trainer = tiny.trainer()._replace(
        initial_weights=random_weights,
        update=trainers.one_user(lambda weights, dataset: (weights.trainable, 0.0, {})),
        finalize_metrics=lambda sums: sums,
    )
    built = tiny.build(trainer, averager=averaging.uta(2))
    starts = []
    for _ in range(2):
        state = built.initialize()
        starts.append(tiny.vector(states.aggregate(state)))
        np.testing.assert_array_equal(tiny.vector(states.iterate(state)), starts[-1])
        window = states.averager(state)["window"]
        np.testing.assert_array_equal(tiny.vector(window[0]), starts[-1])
    assert np.abs(starts[0] - starts[1]).max() > 0


def test_worker_and_local_agree(tiny):
    """Noise, clipping, momentum and averaging on TFF's own runtime."""
    built = build_everything(tiny)
    here, metrics = played(tiny, built, built.initialize(), 0, 3)
    with runtime.running_on("worker"):
        there, their_metrics = played(tiny, built, built.initialize(), 0, 3)
        there = tf.nest.map_structure(np.asarray, there)
    np.testing.assert_allclose(
        tiny.vector(states.aggregate(here)),
        tiny.vector(states.aggregate(there)),
        rtol=1e-5,
        atol=1e-6,
    )
    for name, value in metrics["aggregator"].items():
        assert their_metrics["aggregator"][name] == pytest.approx(value, rel=1e-5)


def test_the_worker_refuses_noise_from_the_cipher_before_any_round(tiny):
    """It is another program, and the cipher is Python of this one."""
    plan = tiny.plan(noise_multiplier=0.5, mechanism=noise.tree())
    secret, simple = tiny.build(plan=plan), tiny.build(plan=plan, noise_words=2)
    state, client = secret.initialize(), tiny.client([1.0] * tiny.WIDTH)
    refusal = "AES-256-CTR.*noise_words=2.*use\\('local'\\)"
    with runtime.running_on("worker"):
        with pytest.raises(runtime.RuntimeUnsupportedError, match=refusal):
            secret.initialize()
        with pytest.raises(runtime.RuntimeUnsupportedError, match=refusal):
            secret.next(state, [client])
        after = simple.next(simple.initialize(), [client]).state
    seed = states.seed_of(after)
    assert seed.shape == (2,) and np.abs(seed).min() > 2**40


def nodes_of(computation):
    """All nodes of a TensorFlow computation, those of its functions too."""
    proto = tff.framework.serialize_computation(computation)
    graph = tf.compat.v1.GraphDef()
    proto.tensorflow.graph_def.Unpack(graph)
    inner = [node for f in graph.library.function for node in f.node_def]
    return [*graph.node, *inner]


def test_mapreduce_form_does_a_clients_work_once(tiny):
    """The compiled form has one copy of the training and one norm for each leaf."""
    plain = tiny.trainer()

    def update(weights, dataset):
        delta, count, metrics = plain.update(weights, dataset)
        # An op that nothing else uses stands for the heavy work.
        q, _ = tf.linalg.qr(tf.reshape(delta["a"], [3, 1]))
        delta["a"] = delta["a"] + tf.reshape(q, [1, 3])
        return delta, count, metrics

    built = tiny.build(plain._replace(update=update), averager=averaging.uta(3))
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(built.next)
    work = [node.op for node in nodes_of(form.work)]
    assert work.count(HEAVY_OP) == 1
    assert work.count("L2Loss") == 2
    assert work.count("ReduceDataset") == 1
