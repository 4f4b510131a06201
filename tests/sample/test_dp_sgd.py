"""DP-SGD: clipped gradients against a loop, SGD as a special case, the noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from tests.sampled_plans import sampled_plan
from tff_agg import averaging, noise
from tff_agg.sample import linear, per_example
from tff_agg.sample.dp_sgd import DPSGDProcess
from tff_agg.sample.per_example import SampleModel
from tff_agg.server import state as states
from tff_agg.server.state import iterate

WIDTH, CLASSES = 5, 3


def network_loss(weights, example):
    features, label = example
    hidden = jnp.tanh(features @ weights["first"])
    return -jax.nn.log_softmax(hidden @ weights["second"])[label]


def network_weights(seed=0):
    generator = np.random.default_rng(seed)
    shapes = {"first": (WIDTH, 4), "second": (4, CLASSES)}
    return {n: generator.standard_normal(s).astype("f") for n, s in shapes.items()}


def examples(count, seed=1, scale=1.0):
    generator = np.random.default_rng(seed)
    features = scale * generator.standard_normal((count, WIDTH))
    return [features.astype("f"), generator.integers(CLASSES, size=count, dtype="i4")]


def plan(**changes):
    values = {
        "clip_norm": 0.5,
        "noise_multiplier": 0.0,
        "batch_size": 16,
        "population_size": 64,
        "steps": 10,
        "delta": 1e-5,
        "noise_seed_is_known": True,
    }
    return sampled_plan(**(values | changes))


def by_loop(loss, weights, batch, clip_norm):
    """The sum of clipped gradients, one example after the other, in numpy."""
    total = {name: np.zeros_like(value) for name, value in weights.items()}
    clipped = 0
    for example in zip(*batch, strict=True):
        gradient = jax.grad(loss)(weights, list(example))
        norm = np.sqrt(sum(float(np.square(g).sum()) for g in gradient.values()))
        clipped += norm > clip_norm
        for name, value in gradient.items():
            total[name] += np.asarray(value) * min(1.0, clip_norm / norm)
    return total, clipped


def summed(model, weights, batch, clip_norm, micro):
    count = len(batch[0])
    room = -(-max(count, 1) // micro) * micro
    padded = [np.zeros((room, *a.shape[1:]), a.dtype) for a in batch]
    for whole, array in zip(padded, batch, strict=True):
        whole[:count] = array
    run = jax.jit(lambda *given: model.summed(*given, clip_norm, micro))
    return run(weights, padded, count)


@pytest.mark.parametrize(
    ("micro", "count"), [(1, 13), (4, 0), (4, 13), (32, 1), (32, 13)]
)
def test_clipped_gradients_are_those_of_a_loop(micro, count):
    weights, batch = network_weights(), examples(count)
    clip_norm = 1.7
    found = summed(SampleModel(network_loss), weights, batch, clip_norm, micro)
    wanted, clipped = by_loop(network_loss, weights, batch, clip_norm)
    assert count < 13 or 0 < clipped < 13  # both kinds are there
    assert int(found.clipped) == clipped
    for name, value in wanted.items():
        np.testing.assert_allclose(found.gradients[name], value, atol=1e-5)


def test_the_closed_form_of_a_layer_is_that_of_vmap():
    model = linear.softmax_layer(lambda stored: stored / 4)
    weights = {
        "bias": np.array([0.1, -0.2, 0.3], "f"),
        "kernel": np.random.default_rng(3)
        .standard_normal((WIDTH, CLASSES))
        .astype("f"),
    }
    batch = examples(21, scale=4.0)
    for clip_norm in (0.3, 0.9, 100.0):
        closed = summed(model, weights, batch, clip_norm, 8)
        plain = summed(SampleModel(model.loss), weights, batch, clip_norm, 8)
        assert int(closed.clipped) == int(plain.clipped)
        for one, other in zip(
            jax.tree_util.tree_leaves(closed), jax.tree_util.tree_leaves(plain),
            strict=True,
        ):  # fmt: skip
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "model", [SampleModel(network_loss), linear.softmax_layer()], ids=["vmap", "closed"]
)
def test_an_example_that_is_not_finite_counts_as_zeros(model):
    weights = (
        {"bias": np.zeros(CLASSES, "f"), "kernel": np.ones((WIDTH, CLASSES), "f")}
        if model.clipped_sum
        else network_weights()
    )
    good, bad = examples(6), examples(6)
    bad[0][2, 1] = np.nan
    bad[0][4, 0] = np.inf
    found = summed(model, weights, bad, 1.0, 4)
    rest = [np.delete(array, [2, 4], axis=0) for array in good]
    wanted = summed(model, weights, rest, 1.0, 4)
    assert int(found.non_finite) == 2
    for one, other in zip(
        jax.tree_util.tree_leaves(found.gradients),
        jax.tree_util.tree_leaves(wanted.gradients),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_copies_are_averaged_before_they_are_clipped():
    def copies(example):
        features, label = example
        return [jnp.stack([features, -features]), jnp.stack([label, label])]

    weights, batch = network_weights(), examples(5)
    model = SampleModel(per_example.augmented(network_loss, copies))
    found = summed(model, weights, batch, 0.2, 2)

    def mean(weights, example):
        features, label = example
        both = (network_loss(weights, (x, label)) for x in (features, -features))
        return sum(both) / 2

    wanted, _ = by_loop(mean, weights, batch, 0.2)
    clipped_first = [
        by_loop(network_loss, weights, [sign * batch[0], batch[1]], 0.2)[0]["first"]
        for sign in (1, -1)
    ]
    np.testing.assert_allclose(found.gradients["first"], wanted["first"], atol=1e-6)
    assert np.abs(sum(clipped_first) / 2 - wanted["first"]).max() > 1e-2


def test_without_noise_and_clipping_it_is_sgd():
    process = DPSGDProcess(
        SampleModel(network_loss),
        plan=plan(clip_norm=1e6, batch_size=16),
        learning_rate=0.3,
        momentum=0.9,
    )
    weights, state = network_weights(), process.initialize(network_weights())
    momentum = {name: 0.0 for name in weights}
    for step in range(4):
        batch = examples(16, seed=step)

        def mean(weights, batch=batch):
            return jax.vmap(network_loss, (None, 0))(weights, batch).mean()

        state, metrics = process.next(state, batch)
        gradient = jax.grad(mean)(weights)
        momentum = {n: 0.9 * momentum[n] + g for n, g in gradient.items()}
        weights = {n: w - 0.3 * momentum[n] for n, w in weights.items()}
        assert metrics["clipped"] == 0
    for name, value in weights.items():
        np.testing.assert_allclose(iterate(state)[name], value, atol=1e-5)


def test_the_sum_is_divided_by_the_expected_size():
    process = DPSGDProcess(SampleModel(network_loss), plan=plan())
    batch = examples(5)
    state = process.initialize(network_weights())
    after, _ = process.next(state, batch)
    wanted, _ = by_loop(network_loss, network_weights(), batch, 0.5)
    moved = network_weights()["first"] - np.asarray(iterate(after)["first"])
    np.testing.assert_allclose(moved, wanted["first"] / 16, atol=1e-6)


def noise_of_steps(sigma, steps=6, size=4000):
    """What empty batches move the weights by: nothing but noise, in units of σC/B."""
    process = DPSGDProcess(
        SampleModel(lambda weights, example: weights["w"] @ example[0]),
        plan=plan(noise_multiplier=sigma, clip_norm=2.0, batch_size=50, steps=steps),
    )
    state = process.initialize({"w": np.zeros(size, "f")}, seed=(1, 2))
    rows, before = [], np.zeros(size)
    for _ in range(steps):
        state, _ = process.next(state, [np.zeros((0, size), "f")])
        after = np.asarray(iterate(state)["w"], np.float64)
        rows.append((before - after) * 50 / 2.0)
        before = after
    return np.array(rows)


def p_value(rows, sigma):
    """Of normals with this deviation: the scale, and the whole distribution."""
    flat = rows.ravel() / sigma
    low = scipy.stats.chi2.cdf(np.square(flat).sum(), len(flat))
    scale = 2 * min(low, 1 - low)
    return min(scale, scipy.stats.kstest(flat, "norm").pvalue)


def test_the_noise_has_the_plans_deviation_and_no_other():
    rows = noise_of_steps(1.5)
    assert p_value(rows, 1.5) > 1e-4
    for wrong in (1.5 * 1.05, 1.5 / 1.05, 1.5 / 2.0):
        assert p_value(rows, wrong) < 1e-6
    # Every step has noise of its own.
    correlations = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(correlations).max() < 6 / np.sqrt(rows.shape[1])


@pytest.mark.parametrize("step_from", ["aggregate", "iterate"])
def test_the_average_starts_at_tau(step_from):
    averager = averaging.starting_at(3, averaging.uta(2))
    process = DPSGDProcess(
        SampleModel(network_loss),
        plan=plan(noise_multiplier=1.0),
        averager=averager,
        step_from=step_from,
    )
    state = process.initialize(network_weights(), seed=(5, 6))
    iterates = [network_weights()["first"]]
    other = DPSGDProcess(SampleModel(network_loss), plan=plan(noise_multiplier=1.0))
    for step in range(6):
        batch = examples(12, seed=step)
        start = {n: np.asarray(w) for n, w in state["aggregate"].items()}
        origin = getattr(states, step_from)(state)["first"]
        alone = other.initialize(start, seed=(5, 6))
        alone = alone | {"noise": state["noise"]}
        stepped, _ = other.next(alone, batch)
        moved = np.asarray(iterate(stepped)["first"]) - start["first"]
        state, _ = process.next(state, batch)
        iterates.append(np.asarray(iterate(state)["first"]))
        # The gradient is taken at the aggregate, the step starts where it is to.
        np.testing.assert_allclose(iterates[-1], origin + moved, atol=1e-5)
        last = iterates[-1:] if step + 1 < 3 else iterates[-2:]
        np.testing.assert_allclose(
            state["aggregate"]["first"], np.mean(last, axis=0), atol=1e-6
        )


def test_batches_larger_than_usual_are_computed():
    process = DPSGDProcess(SampleModel(network_loss), plan=plan(batch_size=2))
    batch = examples(40)
    after, _ = process.next(process.initialize(network_weights()), batch)
    wanted, _ = by_loop(network_loss, network_weights(), batch, 0.5)
    moved = network_weights()["first"] - np.asarray(iterate(after)["first"])
    np.testing.assert_allclose(moved, wanted["first"] / 2, atol=1e-5)


def test_the_micro_batch_keeps_the_memory_budget():
    weights = network_weights()
    gradient = 4 * (WIDTH * 4 + 4 * CLASSES)
    model = SampleModel(network_loss)
    assert model.micro_batch(weights, 10 * gradient) == 10
    assert model.micro_batch(weights, 1) == 1
    limited = SampleModel(network_loss, largest_micro_batch=3)
    assert limited.micro_batch(weights, 10 * gradient) == 3


def test_it_refuses_what_the_plan_does_not_have():
    process = DPSGDProcess(SampleModel(network_loss), plan=plan(steps=1))
    state, _ = process.next(process.initialize(network_weights()), examples(3))
    with pytest.raises(ValueError, match="the plan is for 1 steps; 1 are done"):
        process.next(state, examples(3))
    with pytest.raises(ValueError, match="learning_rate must be a positive"):
        DPSGDProcess(SampleModel(network_loss), plan=plan(), learning_rate=0)
    with pytest.raises(TypeError, match="sampled batches"):
        DPSGDProcess(SampleModel(network_loss), plan=None)


def test_the_secret_is_forgotten_at_the_end():
    secret = plan(noise_seed_is_known=False)
    process = DPSGDProcess(SampleModel(network_loss), plan=secret)
    state = process.initialize(network_weights())
    words = states.seed_of(state)
    assert len(set(words)) == 4 and min(map(abs, words)) > 2**20
    assert states.seed_of(states.without_noise(state)).tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="noise seed was given, but the plan counts"):
        process.initialize(network_weights(), seed=(2**63 + 7, 9))
    process = DPSGDProcess(SampleModel(network_loss), plan=plan())
    known = process.initialize(network_weights(), seed=(2**63 + 7, 9))
    assert states.seed_of(known).view(np.uint64).tolist() == [2**63 + 7, 9]


def test_a_secret_seeds_noise_is_that_of_the_cipher():
    secret = plan(noise_seed_is_known=False, noise_multiplier=1.0)
    process = DPSGDProcess(SampleModel(network_loss), plan=secret)
    state = process.initialize(network_weights())
    after, _ = process.next(state, examples(0))
    assert state["noise"]["seed"].shape == (8,)
    _, drawn = noise.identity().next(state["noise"], iterate(state))
    for name, unit in drawn.items():
        moved = np.asarray(iterate(state)[name]) - iterate(after)[name]
        expected = unit * secret.noise_stddev / secret.cohort_size
        np.testing.assert_allclose(moved, expected, atol=1e-6)
        assert np.abs(expected).max() > 1e-3
