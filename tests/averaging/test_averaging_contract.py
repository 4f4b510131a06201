"""What every averager promises, whichever library its leaves come from."""

import collections
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tff_agg import averaging, backends, structure

AVERAGERS = {
    "last": averaging.last(),
    "uta1": averaging.uta(1),
    "uta3": averaging.uta(3),
    "uta9": averaging.uta(9),
    "ema_weight": averaging.ema(weight=0.3),
    "ema_weight1": averaging.ema(weight=1.0),
    "ema_weight_warm_up": averaging.ema(weight=0.05, warm_up=True),
    "ema_as_printed": averaging.ema(weight=0.95, warm_up=True),
    "ema_decay": averaging.ema(decay=0.9),
    "ema_decay_warm_up": averaging.ema(decay=0.99, warm_up=True),
    "pda0": averaging.pda(0),
    "pda2": averaging.pda(2.5),
    "schedule_free": averaging.schedule_free(0.9, 8.0),
    "schedule_free_of_pda0": averaging.schedule_free(0.25, 0.0),
    "uta3_from_4": averaging.starting_at(4, averaging.uta(3)),
    "ema_from_4": averaging.starting_at(4, averaging.ema(decay=0.8)),
    "uta9_from_0": averaging.starting_at(0, averaging.uta(9)),
}
WINDOWS = {"last": 1, "uta1": 1, "uta3": 3, "uta9": 9, "uta3_from_4": 3}

every_averager = pytest.mark.parametrize("name", AVERAGERS)


def checkpoints(n, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [
        {
            "dense": (rng.normal(size=(3, 4)).astype(dtype), np.asarray(t, dtype)),
            "bias": [rng.normal(size=5).astype(dtype)],
        }
        for t in range(n)
    ]


def expected(averager, thetas):
    weights = averager.weights(len(thetas) - 1)
    return structure.map_leaves(
        lambda *x: sum(
            w * np.asarray(v, np.float64) for w, v in zip(weights, x, strict=True)
        ),
        *thetas,
    )


def assert_close(actual, wanted, rtol=2e-5):
    structure.map_leaves(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6),
        actual,
        wanted,
    )


def assert_same_bits(a, b):
    for x, y in zip(structure.leaves(a), structure.leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype == y.dtype and x.shape == y.shape
        assert x.tobytes() == y.tobytes()


@every_averager
def test_first_aggregate_is_the_initial_model(name):
    (theta,) = checkpoints(1)
    (first,) = averaging.fold(AVERAGERS[name], [theta])
    assert_same_bits(first, theta)


@every_averager
def test_every_aggregate_is_the_published_combination(name):
    thetas = checkpoints(25)
    for t, aggregate in enumerate(averaging.fold(AVERAGERS[name], thetas)):
        assert_close(aggregate, expected(AVERAGERS[name], thetas[: t + 1]))


@every_averager
def test_unit_vectors_reveal_convex_weights(name):
    n = 16
    aggregates = list(averaging.fold(AVERAGERS[name], list(np.eye(n))))
    for t, weights in enumerate(aggregates):
        assert np.all(weights >= 0)
        assert np.isclose(weights.sum(), 1)
        assert np.all(weights[t + 1 :] == 0), "a later checkpoint took part"
        np.testing.assert_allclose(
            weights[: t + 1], AVERAGERS[name].weights(t), atol=1e-12
        )


@every_averager
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_structure_and_dtype_are_kept(name, dtype):
    thetas = checkpoints(12, dtype=dtype)
    for aggregate in averaging.fold(AVERAGERS[name], thetas):
        structure.map_leaves(
            lambda a, b: (
                pytest.fail(f"{np.asarray(a).dtype} {np.shape(a)}")
                if np.asarray(a).dtype != b.dtype or np.shape(a) != np.shape(b)
                else None
            ),
            aggregate,
            thetas[0],
        )
        assert isinstance(aggregate["dense"], tuple)
        assert isinstance(aggregate["bias"], list)


@every_averager
def test_state_never_changes_form(name):
    averager = AVERAGERS[name]
    thetas = checkpoints(12)
    state = averager.init(thetas[0])
    form = [(np.shape(x), np.asarray(x).dtype) for x in structure.leaves(state)]
    for theta in thetas[1:]:
        state, _ = averager.next(state, theta)
        assert form == [
            (np.shape(x), np.asarray(x).dtype) for x in structure.leaves(state)
        ]


@every_averager
def test_next_leaves_its_inputs_untouched(name):
    averager = AVERAGERS[name]
    thetas = checkpoints(12)
    state = averager.init(thetas[0])
    for theta in thetas[1:]:
        before_state, before_theta = pickle.dumps(state), pickle.dumps(theta)
        new_state, _ = averager.next(state, theta)
        assert pickle.dumps(state) == before_state
        assert pickle.dumps(theta) == before_theta
        state = new_state


@every_averager
def test_saved_state_continues_bit_for_bit(name):
    averager = AVERAGERS[name]
    thetas = checkpoints(24)
    unbroken = list(averaging.fold(averager, thetas))
    state = averager.init(thetas[0])
    for t, theta in enumerate(thetas[1:], start=1):
        flat = [np.asarray(x) for x in structure.leaves(state)]
        flat = [
            np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape).copy() for x in flat
        ]
        state = structure.pack(state, flat)
        state, aggregate = averager.next(state, theta)
        assert_same_bits(aggregate, unbroken[t])


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 3e38])
def test_poison_leaves_with_its_checkpoint(name, poison):
    averager, k = AVERAGERS[name], WINDOWS[name]
    thetas = checkpoints(40)
    bad = 15
    thetas[bad]["dense"][0][1, 2] = poison
    aggregates = list(averaging.fold(averager, thetas))
    for aggregate in aggregates[bad : bad + k]:
        value = aggregate["dense"][0][1, 2]
        assert not np.isfinite(value) or abs(value) > 1e36
    for t in [*range(k + 4, bad), *range(bad + k, 40)]:
        window = [theta["dense"][0] for theta in thetas[t - k + 1 : t + 1]]
        np.testing.assert_allclose(
            aggregates[t]["dense"][0], np.mean(window, axis=0), rtol=1e-5, atol=1e-6
        )


@every_averager
def test_whole_numbers_are_kept_or_refused(name):
    theta = {"w": np.zeros(3, np.float32), "steps": np.asarray(7)}
    if name == "last":
        (aggregate,) = averaging.fold(AVERAGERS[name], [theta])
        assert aggregate["steps"] == 7
    else:
        with pytest.raises(TypeError, match=r"leaf at steps.*int64.*float32"):
            AVERAGERS[name].init(theta)


@every_averager
@pytest.mark.parametrize("empty", [{}, [], (), {"a": []}])
def test_empty_structures_stay_empty(name, empty):
    for aggregate in averaging.fold(AVERAGERS[name], [empty] * 12):
        assert aggregate == empty


@pytest.mark.parametrize("name", [n for n in AVERAGERS if n != "last"])
def test_a_leaf_of_another_shape_is_refused(name):
    state = AVERAGERS[name].init({"w": np.zeros((3, 4), np.float32)})
    with pytest.raises(ValueError, match=r"leaf at w has shape \(1, 4\)"):
        AVERAGERS[name].next(state, {"w": np.zeros((1, 4), np.float32)})


@every_averager
def test_tensorflow_eager_and_graph_agree_with_numpy(name):
    import tensorflow as tf

    averager, thetas = AVERAGERS[name], checkpoints(20)
    wanted = list(averaging.fold(averager, thetas))
    as_tf = [structure.map_leaves(tf.constant, theta) for theta in thetas]
    for t, aggregate in enumerate(averaging.fold(averager, as_tf)):
        assert backends.of(aggregate).name == "tf"
        assert_close(structure.map_leaves(lambda x: x.numpy(), aggregate), wanted[t])
    compiled = tf.function(averager.next)
    state = tf.function(averager.init)(as_tf[0])
    for t in range(1, 20):
        state, aggregate = compiled(state, as_tf[t])
        assert_close(structure.map_leaves(lambda x: x.numpy(), aggregate), wanted[t])
    assert compiled.experimental_get_tracing_count() == 1


@every_averager
def test_jax_agrees_with_numpy_compiled_or_not(name):
    import jax

    averager, thetas = AVERAGERS[name], checkpoints(20)
    wanted = list(averaging.fold(averager, thetas))
    as_jax = [structure.map_leaves(jax.numpy.asarray, theta) for theta in thetas]
    step = jax.jit(averager.next)
    state = averager.init(as_jax[0])
    for t in range(1, 20):
        state, aggregate = step(state, as_jax[t])
        assert_close(aggregate, wanted[t])
    for t, aggregate in enumerate(averaging.fold(averager, as_jax[:6])):
        assert_close(aggregate, wanted[t])


@every_averager
def test_runs_inside_a_tff_computation(name):
    import tensorflow_federated as tff

    averager = AVERAGERS[name]
    model = collections.OrderedDict(
        a=tff.TensorType(np.float32, [2]), b=tff.TensorType(np.float32, [])
    )

    @tff.tensorflow.computation(model)
    def init(theta):
        return averager.init(theta)

    @tff.tensorflow.computation(init.type_signature.result, model)
    def step(state, theta):
        return averager.next(state, theta)

    assert step.type_signature.result[0].is_equivalent_to(init.type_signature.result)
    assert step.type_signature.result[1].is_equivalent_to(tff.to_type(model))


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    k=st.integers(1, 12),
    gamma=st.floats(0, 50),
    rate=st.floats(0.001, 1),
    warm_up=st.booleans(),
    tau=st.integers(0, 10),
)
def test_any_parameters_give_the_published_combination(
    data, k, gamma, rate, warm_up, tau
):
    values = data.draw(
        hnp.arrays(np.float64, (15, 3), elements=st.floats(-1e6, 1e6, width=32))
    )
    for averager in (
        averaging.uta(k),
        averaging.pda(gamma),
        averaging.ema(weight=rate, warm_up=warm_up),
        averaging.ema(decay=1 - rate, warm_up=warm_up),
        averaging.schedule_free(rate, gamma),
        averaging.starting_at(tau, averaging.uta(k)),
    ):
        for t, aggregate in enumerate(averaging.fold(averager, list(values))):
            weights = averager.weights(t)
            assert np.all(weights >= 0) and np.isclose(weights.sum(), 1)
            np.testing.assert_allclose(
                aggregate, weights @ values[: t + 1], rtol=1e-9, atol=1e-6
            )
