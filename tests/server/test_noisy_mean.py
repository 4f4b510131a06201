"""The noisy mean: the same in every library, and never beyond the plan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from tests import oracles
from tests.sampled_plans import sampled_plan
from tff_agg import backends, noise, privacy, structure
from tff_agg.noise import seeds
from tff_agg.server import ClippedSum, noisy_mean

ROUNDS, COHORT = 4, 10
SEED = (123456789012345, -987654321)
# Without buffers and with them; every mechanism in every library is in tests/noise.
MECHANISMS = {"identity": noise.identity, "blt": lambda: noise.blt(ROUNDS, 2)}


def plan_of(mechanism=None, **changes):
    values = {
        "clip_norm": 0.5,
        "cohort_size": COHORT,
        "rounds": ROUNDS,
        "mechanism": mechanism or noise.identity(),
        "noise_multiplier": 0.8,
        "noise_seed_is_known": True,
    }
    return privacy.Plan(**{**values, **changes})


def sums(make=np.asarray):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(ROUNDS + 1, 6)).astype(np.float32)
    return [{"a": make(r[:2]), "b": make(r[2:].reshape(2, 2))} for r in rows]


def flat(value):
    leaves = [np.ravel(np.asarray(leaf)) for leaf in structure.leaves(value)]
    return np.concatenate(leaves)


@pytest.mark.parametrize("name", MECHANISMS)
def test_it_adds_the_mechanisms_noise_and_divides_by_the_cohort_size(name, library):
    make, compiled = library
    plan = plan_of(MECHANISMS[name]())
    mean, given = noisy_mean(plan), sums(make)
    state = mean.init(given[0], SEED)
    drawn = plan.mechanism.init(given[0], SEED)
    rows, step = [], compiled(mean.next)
    found = []
    for t in range(ROUNDS):
        drawn, row = plan.mechanism.next(drawn, given[t])
        rows.append(flat(row))
        state, update = step(state, ClippedSum(given[t], 3))
        assert int(state["round"]) == t + 1
        found.append(flat(update))
    wanted = oracles.means(map(flat, sums()[:-1]), rows, COHORT, plan.noise_stddev)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)
    assert np.std(rows) > 0.5


def test_past_the_plans_rounds_it_refuses(library):
    """In a trace of JAX, where nothing can be raised, nothing is left to use."""
    make, compiled = library
    for plan in (plan_of(noise_multiplier=0.0), plan_of()):
        # Neither of them is stopped by its mechanism.
        assert plan.mechanism.max_rounds is None
        mean, total = noisy_mean(plan), sums(make)[0]
        state, step = mean.init(total), compiled(mean.next)
        for _ in range(ROUNDS):
            state, update = step(state, ClippedSum(total, 1))
            assert np.isfinite(flat(update)).all()
        if compiled is jax.jit:
            _, update = step(state, ClippedSum(total, 1))
            assert np.isnan(flat(update)).all()
        else:
            refused = (ValueError, tf.errors.InvalidArgumentError)
            with pytest.raises(refused, match=f"the plan ends after {ROUNDS} rounds"):
                step(state, ClippedSum(total, 1))


def test_more_users_than_planned_are_refused_fewer_are_not(library):
    make, compiled = library
    mean, total = noisy_mean(plan_of(noise_multiplier=0.0)), sums(make)[0]
    state, step = mean.init(total), compiled(mean.next)
    for users in (0, 1, COHORT):
        _, update = step(state, ClippedSum(total, make(users)))
        np.testing.assert_allclose(flat(update), flat(sums()[0]) / COHORT, rtol=1e-6)
    if compiled is jax.jit:
        _, update = step(state, ClippedSum(total, make(COHORT + 1)))
        assert np.isnan(flat(update)).all()
    else:
        refused = (ValueError, tf.errors.InvalidArgumentError)
        with pytest.raises(refused, match=f"at most {COHORT} clients per round"):
            step(state, ClippedSum(total, make(COHORT + 1)))


def test_a_cohort_that_is_not_counted_is_refused_unless_drawn_by_chance():
    total = sums()[0]
    fixed = noisy_mean(plan_of())
    with pytest.raises(ValueError, match="users must be given"):
        fixed.next(fixed.init(total), ClippedSum(total))
    plan = sampled_plan(
        clip_norm=0.5, noise_multiplier=1.0, batch_size=4, population_size=64,
        steps=3, delta=1e-5,
    )  # fmt: skip
    drawn = noisy_mean(plan)
    # Half of all batches are larger than expected.
    drawn.next(drawn.init(total), ClippedSum(total, 1000))
    drawn.next(drawn.init(total), ClippedSum(total))


def test_a_seed_that_is_given_under_a_plan_that_counts_on_a_secret_is_refused(library):
    make, _ = library
    like = sums(make)[0]
    secret = noisy_mean(plan_of(noise_seed_is_known=False))
    with pytest.raises(ValueError, match="noise_seed_is_known=True"):
        secret.init(like, SEED)
    drawn = [np.asarray(secret.init(like)["seed"]).view(np.int64) for _ in range(5)]
    assert np.unique(drawn).size == 5 * 4
    simple = noisy_mean(plan_of(noise_seed_is_known=False), words=2)
    assert np.asarray(simple.init(like)["seed"]).view(np.int64).shape == (2,)
    known = noisy_mean(plan_of()).init(like, SEED)["seed"]
    assert np.asarray(known).view(np.int64).tolist() == list(SEED)


@pytest.mark.parametrize("words", [2, 4])
def test_a_graph_of_tensorflow_draws_its_seed_anew_at_every_run(words):
    draw = tf.function(
        lambda x: seeds.of_run(backends.of(x), is_known=False, words=words)
    )
    drawn = np.array([draw(tf.zeros([1])) for _ in range(40)])
    assert drawn.shape == (40, words) and len(np.unique(drawn)) == 40 * words
    assert np.all((drawn < 0).any(axis=0) & (drawn > 0).any(axis=0))


def test_the_state_of_a_run_of_jax_can_be_compiled_with_or_without_noise():
    for plan in (plan_of(noise_multiplier=0.0), plan_of(noise.blt(ROUNDS, 2))):
        mean, total = noisy_mean(plan), {"w": jnp.ones(3)}
        state = mean.init(total)
        after, _ = jax.jit(mean.next)(state, ClippedSum(total, 1))
        assert jax.tree_util.tree_map(jnp.shape, after) == jax.tree_util.tree_map(
            jnp.shape, state
        )
