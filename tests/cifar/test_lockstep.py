"""Runs side by side are the runs by themselves; what they share is computed once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cifar.lockstep import Lane, Lockstep, summed_at_all
from tests.sampled_plans import sampled_plan
from tff_agg import averaging
from tff_agg.sample import linear
from tff_agg.sample.dp_sgd import DPSGDProcess
from tff_agg.sample.per_example import SampleModel
from tff_agg.server.state import iterate

WIDTH, CLASSES, SEED = 5, 3, (7, 8)


def loss(weights, example):
    features, label = example
    hidden = jnp.tanh(features @ weights["first"])
    return -jax.nn.log_softmax(hidden @ weights["second"])[label]


MODELS = {
    "layer": (linear.softmax_layer(), {"bias": (CLASSES,), "kernel": (WIDTH, CLASSES)}),
    "network": (
        SampleModel(loss, by_core=True),
        {"first": (WIDTH, 4), "second": (4, CLASSES)},
    ),
}


def weights_of(shapes, seed=0):
    generator = np.random.default_rng(seed)
    return {n: generator.standard_normal(s).astype("f") for n, s in shapes.items()}


def examples(count, seed):
    generator = np.random.default_rng(seed)
    features = 2 * generator.standard_normal((count, WIDTH)).astype("f")
    return [features, generator.integers(CLASSES, size=count, dtype="i4")]


def plan(**changes):
    values = {
        "clip_norm": 0.5,
        "noise_multiplier": 1.0,
        "batch_size": 16,
        "population_size": 64,
        "steps": 7,
        "delta": 1e-5,
        "noise_seed_is_known": True,
    }
    return sampled_plan(**(values | changes))


def lane(model, start=None, averager=None, of_plan=None, **changes):
    if averager is not None and start:
        averager = averaging.starting_at(start, averager)
    made = DPSGDProcess(model, plan=of_plan or plan(), averager=averager, **changes)
    return Lane(made, start)


@pytest.mark.parametrize("name", MODELS)
def test_they_are_the_runs_by_themselves(name):
    model, shapes = MODELS[name]
    lanes = [
        lane(model),
        lane(model, 4, averaging.ema(decay=0.5)),
        lane(model, 2, averaging.uta(3), step_from="iterate"),
        lane(model, learning_rate=2.0),
        lane(model, 3, averaging.uta(2), learning_rate=2.0),
        lane(model, 0, averaging.uta(2)),
    ]
    if name == "network":
        # Of a network only the sum is another: every kind of run once is enough.
        lanes = lanes[1:4]
    together = Lockstep(lanes)
    states = together.initialize(weights_of(shapes), SEED)
    alone = [one.process.initialize(weights_of(shapes), SEED) for one in lanes]
    for step in range(7):
        batch = examples(10 + step, step)
        states = together.next(states, batch)
        alone = [
            one.process.next(state, batch).state
            for one, state in zip(lanes, alone, strict=True)
        ]
    for found, wanted in zip(states, alone, strict=True):
        jax.tree_util.tree_map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, wanted
        )
    ends = [np.asarray(jax.tree_util.tree_leaves(iterate(s))[0]) for s in states]
    # They are so many runs: a lane that took another's steps too long would show.
    for number, end in enumerate(ends):
        assert all(np.abs(end - other).max() > 1e-3 for other in ends[:number])


def test_a_run_takes_the_plain_steps_until_its_average_is_used():
    model = MODELS["layer"][0]
    together = Lockstep(
        [
            lane(model, 4, averaging.ema(decay=0.5)),
            lane(model),
            lane(model, 2, averaging.uta(3)),
            lane(model, learning_rate=2.0),
        ]
    )
    assert together.leaders(1) == (0, 0, 0, 3)
    assert together.leaders(2) == (0, 0, 2, 3)
    assert together.leaders(3) == (0, 0, 2, 3)
    assert together.leaders(4) == (0, 1, 2, 3)


def test_layers_side_by_side_have_the_sums_of_each():
    model, shapes = MODELS["layer"]
    several = [weights_of(shapes, seed) for seed in range(3)]
    batch = examples(20, 1)
    batch[0][4] = np.nan  # counts as zeros
    run = jax.jit(lambda w, n: summed_at_all(model, w, batch, n, 1.5, 5))
    found = run(several, 18)
    for weights, one in zip(several, found, strict=True):
        wanted = model.summed(weights, batch, 18, 1.5, 5)
        jax.tree_util.tree_map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
            one,
            wanted,
        )
        assert 0 < int(one.clipped) < 17
        assert int(one.non_finite) == 1


def test_it_refuses_runs_that_do_not_belong_together():
    model = MODELS["layer"][0]
    with pytest.raises(ValueError, match="one plan"):
        Lockstep([lane(model), lane(model, of_plan=plan(noise_multiplier=2.0))])
    early = DPSGDProcess(
        model, plan=plan(), averager=averaging.starting_at(3, averaging.uta(2))
    )
    with pytest.raises(ValueError, match="start=4 of run 0"):
        Lockstep([Lane(early, 4)])
    with pytest.raises(ValueError, match="start=None of run 0"):
        Lockstep([Lane(early)])
    together = Lockstep([lane(model, of_plan=plan(steps=1))])
    states = together.initialize(weights_of(MODELS["layer"][1]), SEED)
    states = together.next(states, examples(3, 0))
    with pytest.raises(ValueError, match="the plan is for 1 steps; 1 are done"):
        together.next(states, examples(3, 0))


def test_a_moving_average_that_is_stepped_from_is_a_smaller_learning_rate():
    # θ^AGG' = β θ^AGG + (1 − β)(θ^AGG − η g) = θ^AGG − (1 − β) η g.
    model, shapes = MODELS["layer"]
    averaged = DPSGDProcess(
        model, plan=plan(), averager=averaging.ema(decay=0.75), learning_rate=2.0
    )
    slower = DPSGDProcess(model, plan=plan(), learning_rate=0.5)
    states = [p.initialize(weights_of(shapes), SEED) for p in (averaged, slower)]
    for step in range(5):
        batch = examples(12, step)
        states = [
            p.next(s, batch).state
            for p, s in zip((averaged, slower), states, strict=True)
        ]
    np.testing.assert_allclose(
        states[0]["aggregate"]["kernel"], iterate(states[1])["kernel"], atol=1e-5
    )
