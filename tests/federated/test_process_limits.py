"""Clipping, counting, and refusing what the plan does not cover."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_agg import averaging, noise, runtime
from tff_agg.federated import clipping, process, trainers
from tff_agg.server import state as states

CLIP = 1.5


def clip_one(update, clip_norm, on_non_finite):
    """Clips the update of a client that is one user."""
    stack = tf.nest.map_structure(lambda leaf: leaf[None], update)
    return clipping.clip_users(stack, clip_norm, on_non_finite)


@pytest.mark.parametrize("on_non_finite", ["error", "drop"])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 0.1, 1.0, 1e3, 1e15])
def test_no_clipped_update_is_longer_than_the_clip_norm(scale, on_non_finite):
    rng = np.random.default_rng(5)
    update = collections.OrderedDict(
        kernel=tf.constant(scale * rng.normal(size=(30, 20)), tf.float32),
        bias=tf.constant(scale * rng.normal(size=20), tf.float32),
    )
    clipped, counts, norm = clip_one(update, CLIP, on_non_finite)
    before = np.sqrt(sum(np.sum(np.float64(x) ** 2) for x in update.values()))
    after = np.sqrt(sum(np.sum(np.float64(x) ** 2) for x in clipped.values()))
    assert after <= CLIP * (1 + 1e-6)
    np.testing.assert_allclose(after, min(before, CLIP), rtol=1e-5, atol=1e-25)
    np.testing.assert_allclose(norm, before, rtol=1e-5, atol=1e-18)
    assert int(counts["clipped"]) == (before > CLIP)
    assert int(counts["clients"]) == 1
    assert int(counts["non_finite"]) == 0
    if before <= CLIP:
        for name in update:
            np.testing.assert_array_equal(clipped[name], update[name])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_an_update_that_is_not_finite_is_dropped_or_an_error(bad):
    """1e30 is finite, but its square is not: it is treated as if it were not."""
    update = [tf.constant([1.0, bad]), tf.constant([2.0])]
    clipped, counts, norm = clip_one(update, CLIP, "drop")
    assert all(not np.any(leaf) for leaf in clipped)
    assert int(counts["non_finite"]) == 1
    assert int(counts["clipped"]) == 0
    assert float(norm) == 0
    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
        clip_one(update, CLIP, "error")


def test_one_client_moves_the_model_by_no_more_than_the_clip_norm(tiny):
    plan = tiny.plan(clip_norm=CLIP, cohort_size=4)
    built = tiny.build(plan=plan, server_learning_rate=1.0)
    small = np.array([0.1, 0, 0, 0, 0], np.float32)
    huge = np.array([0, 0, 0, -3e6, 4e6], np.float32)
    start = built.initialize()
    without, _ = built.next(start, [tiny.client(small)])
    state, metrics = built.next(start, [tiny.client(small), tiny.client(huge)])
    moved = tiny.vector(states.iterate(state)) - tiny.vector(states.iterate(without))
    np.testing.assert_allclose(
        moved, -CLIP / 4 * np.array([0, 0, 0, -0.6, 0.8]), atol=1e-6
    )
    measured = metrics["aggregator"]
    assert measured["clients"] == 2
    assert measured["clipped_fraction"] == 0.5
    assert measured["update_norm_max"] == pytest.approx(5e6)
    assert measured["update_norm_mean"] == pytest.approx(2.5e6 + 0.05)
    assert measured["non_finite"] == 0
    assert measured["noise_stddev"] == 0
    expected = np.linalg.norm(tiny.vector(states.iterate(state)) - tiny.INITIAL)
    assert metrics["finalizer"]["update_norm"] == pytest.approx(expected, rel=1e-5)


def test_a_client_with_nan_is_dropped_and_counted_unless_told_otherwise(tiny):
    built = tiny.build(plan=tiny.plan(cohort_size=4))
    good = [tiny.client([1.0] * tiny.WIDTH), tiny.client([3.0] * tiny.WIDTH)]
    bad = tiny.client([np.nan] * tiny.WIDTH)
    with_bad, metrics = built.next(built.initialize(), [good[0], bad, good[1]])
    without, expected = built.next(built.initialize(), good)
    np.testing.assert_array_equal(
        tiny.vector(states.iterate(with_bad)), tiny.vector(states.iterate(without))
    )
    measured = metrics["aggregator"]
    assert measured["non_finite"] == 1
    assert measured["clients"] == 3
    assert measured["update_norm_mean"] == pytest.approx(2 * np.sqrt(tiny.WIDTH))
    assert measured["update_norm_max"] == pytest.approx(3 * np.sqrt(tiny.WIDTH))
    # The metrics of the others are not spoilt.
    assert metrics["client_work"]["train"] == expected["client_work"]["train"]
    assert metrics["client_work"]["train"]["mean"] == pytest.approx(2 * tiny.WIDTH)


def test_a_client_with_nan_is_an_error_that_names_it(tiny):
    built = tiny.build(plan=tiny.plan(cohort_size=4), on_non_finite="error")
    good = tiny.client([1.0] * tiny.WIDTH)
    bad = tiny.client([np.nan] * tiny.WIDTH)
    state = built.initialize()
    with (
        runtime.naming(round=3, client_ids=["ada", "bob"]),
        pytest.raises(
            runtime.ClientError, match=r"(?s)bob.*round 3.*not finite"
        ) as error,
    ):
        built.next(state, [good, bad])
    assert error.value.client_id == "bob"
    # The state is as it was: the round can be played without that client.
    state, metrics = built.next(state, [good])
    assert metrics["aggregator"]["clients"] == 1


def test_a_client_with_nan_leaves_the_noise_and_the_clipping_of_the_others(tiny):
    plan = tiny.plan(
        cohort_size=4,
        clip_norm=1.0,
        mechanism=noise.tree(),
        noise_multiplier=1.0,
        noise_seed_is_known=True,
    )
    built = tiny.build(plan=plan, noise_seed=(1, 2))
    good = tiny.client([3.0] * tiny.WIDTH)
    bad = tiny.client([np.inf] * tiny.WIDTH)
    with_bad, _ = built.next(built.initialize(), [good, bad])
    without, _ = built.next(built.initialize(), [good])
    np.testing.assert_array_equal(
        tiny.vector(states.iterate(with_bad)), tiny.vector(states.iterate(without))
    )


@pytest.fixture
def worked():
    """A runtime of its own, and the clients that have worked on it."""
    seen = []
    with runtime.running_on("local", lanes=1, on_client=seen.append):
        yield seen


def test_a_run_ends_where_its_plan_ends_before_any_client_works(tiny, worked):
    plan = tiny.plan(rounds=2, mechanism=noise.tree(), noise_multiplier=1.0)
    built = tiny.build(plan=plan)
    data = [tiny.client([1.0] * tiny.WIDTH)]
    state = built.initialize()
    for _ in range(2):
        state, _ = built.next(state, data)
    assert len(worked) == 2
    with pytest.raises(ValueError, match=r"the plan ends after 2 rounds; .* after 2"):
        built.next(state, data)
    assert len(worked) == 2


def test_more_clients_than_planned_are_refused_before_any_works_fewer_are_not(
    tiny, worked
):
    built = tiny.build(plan=tiny.plan(cohort_size=2))
    one = tiny.client([1.0] * tiny.WIDTH)
    state = built.initialize()
    with pytest.raises(ValueError, match=r"at most 2 clients per round; there were 3"):
        built.next(state, [one] * 3)
    with pytest.raises(ValueError, match=r"at most 2 clients per round; there were 3"):
        built.next(state, client_data=[one] * 3)
    assert not worked
    for count in (0, 1, 2):
        after, metrics = built.next(state, [one] * count)
        assert metrics["aggregator"]["clients"] == count
        np.testing.assert_allclose(
            tiny.vector(states.iterate(after)), tiny.INITIAL - count / 2
        )


def test_the_computation_itself_refuses_too(tiny):
    """A loop that calls it from a computation of its own gets no further."""
    plan = tiny.plan(rounds=1, cohort_size=2)
    built = tiny.build(plan=plan)
    state_type, data_type = built.next.type_signature.parameter

    @tff.federated_computation(state_type, data_type)
    def two_by_two(state, data):
        return built.next(state, data)

    one = tiny.client([1.0] * tiny.WIDTH)
    state = built.initialize()
    with pytest.raises(runtime.ComputationError, match="at most 2 clients per round"):
        two_by_two(state, [one] * 3)
    state, _ = two_by_two(state, [one] * 2)
    with pytest.raises(runtime.ComputationError, match="the plan ends after 1 rounds"):
        two_by_two(state, [one])


HALVES = [tf.float16, tf.bfloat16]


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("scale", [0.01, 1.0, 300.0])
def test_half_precision_is_clipped_in_float32(dtype, scale):
    rng = np.random.default_rng(6)
    update = [tf.cast(scale * rng.normal(size=(40, 25)), dtype)]
    clipped, counts, norm = clip_one(update, CLIP, "drop")
    exact = np.asarray(tf.cast(update[0], tf.float64))
    assert clipped[0].dtype == tf.float32
    np.testing.assert_allclose(norm, np.linalg.norm(exact), rtol=1e-5)
    after = np.linalg.norm(np.float64(clipped[0]))
    assert after <= CLIP * (1 + 1e-6)
    np.testing.assert_allclose(after, min(np.linalg.norm(exact), CLIP), rtol=1e-5)
    assert int(counts["non_finite"]) == 0


def half_trainer(dtype, width=3):
    """A client that sends the sum of its rows, in half precision."""

    def update(weights, dataset):
        total = dataset.reduce(tf.zeros([width]), lambda sums, row: sums + row)
        return (tf.cast(total, dtype),), tf.constant(1.0), collections.OrderedDict()

    return trainers.Trainer(
        element_spec=tf.TensorSpec([width], tf.float32),
        initial_weights=lambda: tff.learning.models.ModelWeights(
            (tf.zeros([width], dtype),), ()
        ),
        update=trainers.one_user(update),
        finalize_metrics=lambda sums: sums,
    )


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
def test_half_precision_is_summed_in_float32(tiny, dtype):
    """A sum of 300 clients of 1/4 each would stop growing in half precision."""
    clients = 300
    built = tiny.build(
        half_trainer(dtype),
        plan=tiny.plan(
            cohort_size=clients,
            mechanism=noise.tree(),
            noise_multiplier=1e-12,
            noise_seed_is_known=True,
        ),
        averager=averaging.uta(2),
        noise_seed=(1, 2),
    )
    one = tf.data.Dataset.from_tensors(np.array([0.25, 2048.0, 0.0], np.float32))
    state, metrics = built.next(built.initialize(), [one] * clients)
    assert metrics["aggregator"]["clients"] == clients
    assert metrics["aggregator"]["non_finite"] == 0
    found = states.iterate(state)[0]
    assert found.dtype == dtype
    np.testing.assert_allclose(
        np.asarray(tf.cast(found, tf.float32)), [-0.25, -2048.0, 0.0], atol=1e-4
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"server_learning_rate": 0.0},
            "server's learning_rate must be a positive",
        ),
        ({"server_momentum": 1.0}, r"server's momentum must be in \[0, 1\), got 1.0"),
        ({"nesterov": True}, "nesterov=True needs a momentum above 0"),
        ({"step_from": "average"}, "step_from must be one of"),
        ({"on_non_finite": "ignore"}, "on_non_finite must be one of"),
        ({"noise_seed": (1,)}, "seed must be two integers"),
        ({"noise_seed": (1, 2**64)}, "seed must be two integers"),
        ({"client_optimizer": 0.1}, "a Trainer has its own"),
    ],
)
def test_wrong_arguments_are_named(tiny, arguments, message):
    with pytest.raises(ValueError, match=message):
        tiny.build(**arguments)


def test_wrong_models_plans_and_optimizers_are_named(tiny):
    with pytest.raises(TypeError, match="plan must be a tff_agg"):
        process.build_dp_ftrl_process(tiny.trainer(), plan=object())
    with pytest.raises(TypeError, match="model must be a tff"):
        tiny.build(object(), client_optimizer=0.1)
    with pytest.raises(TypeError, match="must return a"):
        tiny.build(lambda: None, client_optimizer=0.1)
    with pytest.raises(ValueError, match="client_optimizer must be"):
        tiny.build(tiny.variable_model)
    with pytest.raises(TypeError, match="client_optimizer must be"):
        tiny.build(tiny.variable_model, client_optimizer="sgd")
    with pytest.raises(ValueError, match="client_epochs"):
        tiny.build(tiny.variable_model, client_optimizer=0.1, client_epochs=0)
