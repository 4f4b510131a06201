"""Without noise, clipping and averaging the process is TFF's federated averaging."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.server import state as states

ROUNDS = 5
LEARNING_RATE = 0.7
MOMENTUM = 0.9


class Nesterov(tff.learning.optimizers.Optimizer):
    """Nesterov's momentum as Keras's SGD writes it: the velocity holds the step."""

    def initialize(self, specs):
        return tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)

    def next(self, state, weights, gradients):
        velocity = tf.nest.map_structure(
            lambda v, g: MOMENTUM * v - LEARNING_RATE * g, state, gradients
        )
        stepped = tf.nest.map_structure(
            lambda w, v, g: w + MOMENTUM * v - LEARNING_RATE * g,
            weights,
            velocity,
            gradients,
        )
        return velocity, stepped

    def get_hparams(self, state):
        return collections.OrderedDict()

    def set_hparams(self, state, hparams):
        return state


@pytest.mark.parametrize(
    ("model", "nesterov"),
    [("variable", False), ("functional", True)],
)
def test_equals_tffs_fed_avg_with_server_momentum(tiny, model, nesterov):
    model = tiny.functional_model() if model == "functional" else tiny.variable_model
    clients = 3
    ours = tiny.build(
        model,
        plan=tiny.plan(clip_norm=1e9, cohort_size=clients),
        client_optimizer=0.3,
        server_learning_rate=LEARNING_RATE,
        server_momentum=MOMENTUM,
        nesterov=nesterov,
    )
    theirs = tff.learning.algorithms.build_unweighted_fed_avg(
        model,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.3),
        server_optimizer_fn=Nesterov()
        if nesterov
        else tff.learning.optimizers.build_sgdm(LEARNING_RATE, MOMENTUM),
    )
    state, expected = ours.initialize(), theirs.initialize()
    start = tiny.vector(states.aggregate(state))
    np.testing.assert_array_equal(
        start, tiny.vector(theirs.get_model_weights(expected).trainable)
    )
    for round_number in range(ROUNDS):
        data = [tiny.examples(10 * round_number + i) for i in range(clients)]
        state, metrics = ours.next(state, data)
        expected, their_metrics = theirs.next(expected, data)
        np.testing.assert_allclose(
            tiny.vector(states.aggregate(state)),
            tiny.vector(theirs.get_model_weights(expected).trainable),
            rtol=2e-6,
            atol=2e-6,
        )
        theirs_of_train = their_metrics["client_work"]["train"]
        for name, value in theirs_of_train.items():
            ours_of_train = metrics["client_work"]["train"][name]
            np.testing.assert_allclose(ours_of_train, value, rtol=1e-5)
        assert "accuracy" in theirs_of_train
        assert metrics["client_work"]["num_examples"] == 7 * clients
    moved = np.abs(tiny.vector(states.aggregate(state)) - start)
    assert moved.max() > 0.1


def test_any_client_optimizer_and_epochs(tiny):
    """Adam over two epochs, against TFF's own on data repeated twice."""
    adam = tff.learning.optimizers.build_adam(0.05)
    ours = tiny.build(
        tiny.functional_model(),
        plan=tiny.plan(clip_norm=1e9),
        client_optimizer=adam,
        client_epochs=2,
    )
    theirs = tff.learning.algorithms.build_unweighted_fed_avg(
        tiny.functional_model(),
        client_optimizer_fn=adam,
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    )
    data = [tiny.examples(i) for i in range(2)]
    state, metrics = ours.next(ours.initialize(), data)
    expected, _ = theirs.next(theirs.initialize(), [d.repeat(2) for d in data])
    np.testing.assert_allclose(
        tiny.vector(states.aggregate(state)),
        tiny.vector(theirs.get_model_weights(expected).trainable),
        rtol=2e-6,
        atol=2e-6,
    )
    assert metrics["client_work"]["num_examples"] == 2 * 2 * 7
