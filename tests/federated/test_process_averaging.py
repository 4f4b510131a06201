"""What is broadcast is the averager's aggregate of the iterates."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_agg import averaging, noise, structure
from tff_agg.server import state as states

ROUNDS = 6
LEARNING_RATE = 0.8
MOMENTUM = 0.5
TAU = 3

# In graphs, with either origin of the step; weights of every averager by hand are in
# tests/averaging, the step itself in tests/server.
CASES = {
    "uta": (lambda: averaging.uta(3), "aggregate"),
    "ema": (lambda: averaging.ema(decay=0.7, warm_up=True), "aggregate"),
    "pda": (lambda: averaging.pda(1.5), "aggregate"),
    "tau": (lambda: averaging.starting_at(TAU, averaging.uta(2)), "aggregate"),
    "schedule-free": (lambda: averaging.schedule_free(0.8, 2.0), "iterate"),
}


@pytest.mark.parametrize("case", CASES)
def test_broadcast_equals_the_averager_by_hand(tiny, case):
    make, step_from = CASES[case]
    averager = make()
    built = tiny.build(
        "pull",
        averager=averager,
        server_learning_rate=LEARNING_RATE,
        server_momentum=MOMENTUM,
        step_from=step_from,
    )
    state = built.initialize()
    iterates = [tiny.vector(states.iterate(state))]
    aggregates = [tiny.vector(states.aggregate(state))]
    momentum = np.zeros(tiny.WIDTH)
    rng = np.random.default_rng(1)
    for round_number in range(ROUNDS):
        targets = rng.normal(size=(2, tiny.WIDTH)).astype(np.float32)
        state, _ = built.next(state, [tiny.client(row) for row in targets])
        iterates.append(tiny.vector(states.iterate(state)))
        aggregates.append(tiny.vector(states.aggregate(state)))
        # The step, by hand: clients train at the aggregate in either mode.
        update = tiny.PULL * (aggregates[-2] - targets.mean(axis=0))
        momentum = MOMENTUM * momentum + update
        origin = aggregates[-2] if step_from == "aggregate" else iterates[-2]
        np.testing.assert_allclose(
            iterates[-1], origin - LEARNING_RATE * momentum, atol=3e-6
        )
        assert int(states.round_of(state)) == round_number + 1
    by_hand = list(averaging.fold(averager, iterates))
    np.testing.assert_allclose(aggregates, by_hand, atol=1e-6)
    weighted = [
        averager.weights(t) @ np.array(iterates[: t + 1]) for t in range(ROUNDS + 1)
    ]
    np.testing.assert_allclose(aggregates, weighted, atol=1e-5)
    gap = np.abs(np.array(iterates) - aggregates).max(axis=1)
    assert gap[-1] > 1e-3
    if case == "tau":
        assert np.all(gap[:TAU] == 0)
        assert np.all(gap[TAU:] > 1e-3)


def test_an_averager_of_ones_own(tiny):
    """Any pair of pure functions over structures will do."""
    half = averaging.Averager(
        init=lambda theta: {"old": theta},
        next=lambda state, theta: (
            {"old": theta},
            structure.map_leaves(lambda a, b: (a + b) / 2, state["old"], theta),
        ),
    )
    built = tiny.build(averager=half)
    state, _ = built.next(built.initialize(), [tiny.client([2.0] * tiny.WIDTH)] * 2)
    np.testing.assert_allclose(
        tiny.vector(states.aggregate(state)), tiny.INITIAL - 1.0, rtol=1e-6
    )


def test_set_model_weights_starts_averager_and_iterate_there(tiny):
    built = tiny.build(
        plan=tiny.plan(clip_norm=10.0, noise_multiplier=1e-9, mechanism=noise.tree()),
        averager=averaging.uta(2),
        server_momentum=0.5,
    )
    data = [tiny.client([1.0] * tiny.WIDTH)] * 2
    state, _ = built.next(built.initialize(), data)
    weights = built.get_model_weights(state)
    zeros = tf.nest.map_structure(np.zeros_like, weights.trainable)
    changed = built.set_model_weights(
        state, tff.learning.models.ModelWeights(zeros, weights.non_trainable)
    )
    assert not tiny.vector(states.aggregate(changed)).any()
    assert not tiny.vector(states.iterate(changed)).any()
    assert int(states.round_of(changed)) == 1
    changed, _ = built.next(changed, data)
    # Momentum of 1 is kept: the step is 1.5; the window is {0, −1.5}.
    np.testing.assert_allclose(tiny.vector(states.iterate(changed)), -1.5, rtol=1e-5)
    np.testing.assert_allclose(tiny.vector(states.aggregate(changed)), -0.75, rtol=1e-5)
