"""The noise of a run is the mechanism's, to the bit of its seed."""

import numpy as np
import pytest
import tensorflow as tf

from tff_agg import backends, noise
from tff_agg.federated import tracing
from tff_agg.noise import generators, seeds
from tff_agg.server import state as states

ROUNDS = 6
LEARNING_RATE = 0.5
COHORT = 4
SEED = (123456789012345, -987654321)

# Of nodes that are drawn anew, and of buffers in the state.
MECHANISMS = {
    "tree": noise.tree,
    "blt": lambda: noise.blt(rounds=ROUNDS, buffers=2),
}


def independent_normals(seed, like):
    """The rows of Z that belong to a seed, one per round."""
    library = backends.of(like)
    seed = seeds.seed_in(library, seed)
    rounds = [tf.constant(t, tf.int64) for t in range(ROUNDS)]
    return [generators.normals(library, seed, t, like) for t in rounds]


@pytest.mark.parametrize("name", MECHANISMS)
def test_prefix_sums_are_those_of_the_explicit_matrix(tiny, name):
    mechanism = MECHANISMS[name]()
    plan = tiny.plan(
        clip_norm=2.0,
        cohort_size=COHORT,
        rounds=ROUNDS,
        mechanism=mechanism,
        noise_multiplier=0.7,
        noise_seed_is_known=True,
    )
    built = tiny.build(plan=plan, server_learning_rate=LEARNING_RATE, noise_seed=SEED)
    state = built.initialize()
    seed = states.seed_of(state)
    assert tuple(seed) == SEED
    rng = np.random.default_rng(0)
    true_sum = np.zeros(tiny.WIDTH)
    observed = []
    like = states.iterate(state)
    for _ in range(ROUNDS):
        # Fewer clients than the cohort size: the divisor stays what it was.
        updates = rng.uniform(-0.4, 0.4, size=(3, tiny.WIDTH)).astype(np.float32)
        state, metrics = built.next(state, [tiny.client(u) for u in updates])
        assert metrics["aggregator"]["clipped_fraction"] == 0
        assert metrics["aggregator"]["noise_stddev"] == pytest.approx(plan.noise_stddev)
        true_sum = true_sum + updates.sum(axis=0)
        exact = tiny.INITIAL - LEARNING_RATE * true_sum / COHORT
        observed.append(tiny.vector(states.iterate(state)) - exact)
    z = np.stack([tiny.vector(row) for row in independent_normals(seed, like)])
    rows = np.linalg.solve(mechanism.matrix(ROUNDS), z)
    scale = -LEARNING_RATE / COHORT * plan.noise_stddev
    np.testing.assert_allclose(
        np.stack(observed), scale * np.cumsum(rows, axis=0), atol=2e-5
    )
    assert np.std(observed) > 0.01


def test_a_start_draws_a_seed_of_its_own_unless_one_is_set(tiny):
    built = tiny.build(plan=tiny.plan(noise_multiplier=1.0, noise_seed_is_known=True))
    starts = [built.initialize() for _ in range(5)]
    words = [int(w) for s in starts for w in states.seed_of(s)]
    assert len(set(words)) == 10
    # A word of 64 random bits is below 2**40 once in 8 million.
    assert all(abs(word) > 2**40 for word in words)

    one, other = (states.with_noise_seed(start, SEED) for start in starts[:2])
    assert tuple(states.seed_of(one)) == SEED
    data = [tiny.client([1] * tiny.WIDTH)]
    one, _ = built.next(one, data)
    other, _ = built.next(other, data)
    np.testing.assert_array_equal(
        tiny.vector(states.iterate(one)), tiny.vector(states.iterate(other))
    )
    with pytest.raises(ValueError, match="first round only; state is after 1 rounds"):
        states.with_noise_seed(one, SEED)


@pytest.mark.parametrize("words", [2, 4])
def test_both_signs_of_all_words_occur_in_a_traced_seed(words):
    """In TFF's graph too, where a comparison can silently be one of objects."""
    library = backends.of(tf.zeros(1))
    draw = tracing.graph_computation()(
        lambda: seeds.of_run(library, is_known=False, words=words)
    )
    drawn = np.array([draw() for _ in range(40)])
    assert drawn.shape == (40, words) and len(np.unique(drawn)) == 40 * words
    assert np.all((drawn < 0).any(axis=0) & (drawn > 0).any(axis=0))


def test_a_secret_seed_is_a_key_of_the_cipher_and_its_noise_the_mechanisms(tiny):
    mechanism = noise.tree()
    plan = tiny.plan(clip_norm=1.0, mechanism=mechanism, noise_multiplier=0.7)
    built = tiny.build(plan=plan)
    assert built.description["noise_generator"] == "AES-256-CTR"
    start, other = built.initialize(), built.initialize()
    seed = states.seed_of(start)
    assert seed.shape == (4,)
    assert not np.intersect1d(seed, states.seed_of(other)).size
    assert all(abs(int(word)) > 2**40 for word in seed)
    # The same noise by numpy, outside of any graph.
    like = tf.nest.map_structure(np.asarray, states.iterate(start))
    noises, state = mechanism.init(like, seed), start
    for _ in range(5):
        before = tiny.vector(states.iterate(state))
        state, _ = built.next(state, [])
        noises, row = mechanism.next(noises, like)
        np.testing.assert_allclose(
            before - tiny.vector(states.iterate(state)),
            tiny.vector(row) * plan.noise_stddev / plan.cohort_size,
            atol=2e-5,
        )


def test_two_words_can_be_had_for_tffs_worker(tiny):
    plan = tiny.plan(mechanism=noise.tree(), noise_multiplier=0.7)
    built = tiny.build(plan=plan, noise_words=2)
    assert built.description["noise_generator"] == "Philox"
    assert states.seed_of(built.initialize()).shape == (2,)
    with pytest.raises(ValueError, match="words must be one of 2, 4, got 3"):
        tiny.build(plan=plan, noise_words=3)


def test_a_seed_that_is_given_must_be_known_to_the_plan(tiny):
    secret = tiny.plan(noise_multiplier=1.0)
    with pytest.raises(ValueError, match="noise seed was given, but the plan counts"):
        tiny.build(plan=secret, noise_seed=SEED)
    with pytest.raises(ValueError, match=r"has 4 integers of 64 bits; .* given has 2"):
        states.with_noise_seed(tiny.build(plan=secret).initialize(), SEED)
    known = tiny.plan(noise_multiplier=1.0, noise_seed_is_known=True)
    four = tiny.build(plan=known, noise_seed=(1, 2, 3, 4)).initialize()
    assert states.seed_of(four).tolist() == [1, 2, 3, 4]


def test_no_noise_means_no_noise_state(tiny):
    state = tiny.build().initialize()
    assert states.seed_of(state) is None
    assert set(states.noise(state)) == {"round"}
    with pytest.raises(ValueError, match="without noise"):
        states.with_noise_seed(state, SEED)
