"""The server's optimisers and schedules in a round of TFF's."""

import numpy as np
import pytest

from tff_agg import averaging, noise
from tff_agg.server import Schedule, adam, server_step
from tff_agg.server import state as states

ROUNDS = 4


def test_a_process_steps_like_the_functions_in_numpy(tiny):
    """The noisy mean of a round follows from plain steps under the same seed.

    An optimiser with two states; the others are in tests/server, in graphs as well.
    """
    shared = {
        "plan": tiny.plan(
            clip_norm=1.0, mechanism=noise.tree(), noise_multiplier=0.5,
            noise_seed_is_known=True,
        ),
        "noise_seed": (1, 2),
    }  # fmt: skip
    schedule = Schedule(0.5, ROUNDS, "cosine", warm_up=2)
    built = tiny.build(
        averager=averaging.uta(2),
        server_optimizer=adam(),
        server_learning_rate=schedule,
        **shared,
    )
    plain = tiny.build(**shared)
    step = server_step(adam(), averaging.uta(2), learning_rate=schedule)
    aggregate = tiny.INITIAL.astype(np.float32)
    held, state, other = step.init(aggregate), built.initialize(), plain.initialize()
    for t in range(ROUNDS):
        # Clients of 'send' send their rows, wherever the model is.
        data = [tiny.client(np.random.default_rng(t).normal(size=tiny.WIDTH))]
        state, _ = built.next(state, data)
        before = tiny.vector(states.iterate(other))
        other, _ = plain.next(other, data)
        mean = (before - tiny.vector(states.iterate(other))).astype(np.float32)
        held, aggregate = step.next(held, aggregate, mean, t)
        np.testing.assert_allclose(
            tiny.vector(states.aggregate(state)), aggregate, rtol=1e-3, atol=1e-4
        )
        np.testing.assert_allclose(
            tiny.vector(states.iterate(state)), held["iterate"], rtol=1e-3, atol=1e-4
        )
    assert np.abs(aggregate - tiny.INITIAL).max() > 0.1
    described = built.description["server"]
    assert (
        described["name"] == "adam" and described["learning_rate"]["kind"] == "cosine"
    )


def test_momentum_beside_an_optimiser_is_refused(tiny):
    with pytest.raises(ValueError, match="server_momentum and nesterov are of"):
        tiny.build(server_optimizer=adam(), server_momentum=0.9)
