"""What is asked of a state, in both containers."""

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow_federated as tff

from tff_agg import averaging, noise, privacy
from tff_agg.server import ClippedSum, momentum, noisy_mean, server_step
from tff_agg.server import state as states

SEED = (2**63 + 7, 9)
STEP = server_step(momentum(0.9), averaging.uta(2), learning_rate=0.5)


def plan_of(**changes):
    values = {
        "clip_norm": 0.5,
        "cohort_size": 2,
        "rounds": 4,
        "mechanism": noise.tree(),
        "noise_multiplier": 0.8,
        "noise_seed_is_known": True,
    }
    return privacy.Plan(**{**values, **changes})


def in_a_dict(theta, noise, server):
    return {"aggregate": theta, "noise": noise, "server": server}


def in_tff(theta, noise, server):
    weights = tff.learning.models.ModelWeights(theta, [np.int32(7)])
    return tff.learning.templates.LearningAlgorithmState(weights, (), (), noise, server)


@pytest.fixture(params=[in_a_dict, in_tff], ids=["dict", "tff"])
def container(request):
    return request.param


def played(container, rounds=2, seed=SEED, make=np.asarray, **changes):
    mean = noisy_mean(plan_of(**changes))
    theta = {"w": make(np.arange(3, dtype=np.float32))}
    noise, server = mean.init(theta, seed), STEP.init(theta)
    for t in range(rounds):
        noise, update = mean.next(noise, ClippedSum(theta, 2))
        server, theta = STEP.next(server, theta, update, t)
    return container(theta, noise, server)


def test_its_parts_are_found(container):
    state = played(container)
    assert int(states.round_of(state)) == 2
    assert states.iterate(state)["w"].shape == (3,)
    # The mean of θ_1 and θ_2 is not θ_2.
    moved = states.aggregate(state)["w"] - states.iterate(state)["w"]
    assert np.abs(moved).max() > 1e-3
    assert states.noise(state)["round"] is states.round_of(state)


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize("seed", [SEED, (1, -2, 3, -4)], ids=["two", "four"])
def test_the_seed_is_whole_in_every_library(make, seed):
    state = played(in_a_dict, seed=seed, make=make)
    assert [int(w) % 2**64 for w in states.seed_of(state)] == [w % 2**64 for w in seed]


def test_a_state_without_noise_shows_neither_seed_nor_buffers(container):
    before = played(container, mechanism=noise.blt(4, 2))
    after = states.without_noise(before)
    assert states.seed_of(after).tolist() == [0, 0]
    for buffer in states.noise(after)["buffers"]:
        assert not np.any(buffer["w"])
    assert any(np.any(b["w"]) for b in states.noise(before)["buffers"])
    assert states.seed_of(before).tolist() != [0, 0]
    assert int(states.round_of(after)) == 2
    np.testing.assert_array_equal(
        states.iterate(after)["w"], states.iterate(before)["w"]
    )


def test_the_seed_is_set_before_the_first_round_only(container):
    start = played(container, rounds=0)
    found = states.with_noise_seed(start, (5, -6))
    assert states.seed_of(found).tolist() == [5, -6]
    with pytest.raises(ValueError, match="first round only; state is after 2 rounds"):
        states.with_noise_seed(played(container), (5, -6))
    with pytest.raises(ValueError, match="two integers of 64 bits"):
        states.with_noise_seed(start, (5,))
    with pytest.raises(ValueError, match="has 2 integers of 64 bits; the one given"):
        states.with_noise_seed(start, (5, 6, 7, 8))
    silent = played(container, rounds=0, noise_multiplier=0.0)
    assert states.seed_of(silent) is None
    with pytest.raises(ValueError, match="without noise"):
        states.with_noise_seed(silent, (5, -6))


def test_other_weights_start_the_averager_anew_and_keep_the_rest(container):
    before = played(container)
    weights = {"w": np.full(3, 8, np.float32)}
    after = states.at_weights(before, STEP, weights)
    assert states.aggregate(after) is weights and states.iterate(after) is weights
    window = states.averager(after)["window"]
    np.testing.assert_array_equal(window[0]["w"], weights["w"])
    assert states.noise(after) is states.noise(before)
    kept = states.server(after)["optimiser"]
    assert kept is states.server(before)["optimiser"] and np.any(kept["w"])
    if container is in_tff:
        assert after.global_model_weights.non_trainable == [7]
