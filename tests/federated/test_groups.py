"""A group of users is to the process what its users one by one would be."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_agg import runtime
from tff_agg.federated import clipping, grouping, vectorized
from tff_agg.server import state as states

CLIP = 0.05
SHAPE = (6, 6, 1)
CLASSES = 3
# Unequal numbers of examples, two users without any, two alike.
COUNTS = (5, 0, 3, 8, 5, 1, 0)
BATCH = 3


def _model(kind):
    layers = tf.keras.layers
    first = {
        "linear": [layers.Flatten()],
        "convolutional": [
            layers.Conv2D(4, 3, activation="tanh"),
            layers.MaxPool2D(),
            layers.Flatten(),
        ],
        "recurrent": [layers.Reshape((3, 12)), layers.LSTM(4, unroll=True)],
        "recurrent loop": [layers.Reshape((3, 12)), layers.LSTM(4)],
    }[kind]
    keras = tf.keras.Sequential(
        [layers.Input(SHAPE), *first, layers.Dense(CLASSES, activation=None)]
    )
    return tff.learning.models.functional_model_from_keras(
        keras,
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        (tf.TensorSpec([None, *SHAPE], tf.float32), tf.TensorSpec([None], tf.int32)),
        lambda: collections.OrderedDict(
            accuracy=tf.keras.metrics.SparseCategoricalAccuracy()
        ),
    )


def _users(counts=COUNTS, seed=0):
    rng = np.random.default_rng(seed)
    return [
        [
            (x[i : i + BATCH], y[i : i + BATCH])
            for i in range(0, count, BATCH)
            for x, y in [
                (
                    rng.normal(size=(count, *SHAPE)).astype(np.float32),
                    rng.integers(0, CLASSES, count).astype(np.int32),
                )
            ]
        ]
        for count in counts
    ]


def _one_by_one(users, spec):
    def dataset(batches):
        return tf.data.Dataset.from_generator(lambda: batches, output_signature=spec)

    return [dataset(batches) for batches in users]


def _in_groups(users, spec, size):
    groups = grouping.form_groups([len(u) for u in users], size)
    return groups, [
        grouping.group_batches([users[i] for i in group], spec) for group in groups
    ]


@pytest.mark.parametrize(
    ("kind", "optimizer", "epochs"),
    [
        ("linear", "adam", 2),
        pytest.param("convolutional", 0.3, 1, marks=pytest.mark.slow),
        pytest.param("recurrent", 0.3, 2, marks=pytest.mark.slow),
        pytest.param("recurrent loop", 0.3, 1, marks=pytest.mark.slow),
    ],
)
def test_groups_give_what_users_one_by_one_give(tiny, kind, optimizer, epochs):
    model, users = _model(kind), _users()
    if optimizer == "adam":
        optimizer = tff.learning.optimizers.build_adam(0.02)
    arguments = {
        "plan": tiny.plan(clip_norm=CLIP, cohort_size=len(users)),
        "client_optimizer": optimizer,
        "client_epochs": epochs,
    }
    alone = tiny.build(model, **arguments)
    side_by_side = tiny.build(model, grouped=True, **arguments)
    wanted, expected = alone.initialize(), None
    found, metrics = side_by_side.initialize(), None
    _, groups = _in_groups(users, model.input_spec, 4)
    for _ in range(2):
        wanted, expected = alone.next(wanted, _one_by_one(users, model.input_spec))
        found, metrics = side_by_side.next(found, groups)
    start = tiny.vector(states.iterate(alone.initialize()))
    moved = tiny.vector(states.iterate(wanted)) - start
    assert np.abs(moved).max() > 1e-3
    np.testing.assert_allclose(
        tiny.vector(states.iterate(found)) - start, moved, rtol=1e-4, atol=1e-7
    )
    for want, have in zip(
        tf.nest.flatten(expected), tf.nest.flatten(metrics), strict=True
    ):
        np.testing.assert_allclose(have, want, rtol=1e-5)
    assert metrics["aggregator"]["clients"] == len(users)
    assert 0 < metrics["aggregator"]["clipped_fraction"] < 1
    assert metrics["client_work"]["num_examples"] == epochs * sum(COUNTS)


def test_the_rule_groups_what_tensorflow_can_take_as_one():
    assert vectorized.pays(_model("linear"))
    assert vectorized.pays(_model("recurrent"))
    assert not vectorized.pays(_model("convolutional"))
    assert not vectorized.pays(_model("recurrent loop"))
    assert not vectorized.pays(lambda: None)


def test_the_rule_leaves_large_models_one_by_one(monkeypatch):
    monkeypatch.setattr(vectorized, "MOST_PARAMETERS", 36 * CLASSES + CLASSES)
    assert vectorized.pays(_model("linear"))
    monkeypatch.setattr(vectorized, "MOST_PARAMETERS", 36 * CLASSES + CLASSES - 1)
    assert not vectorized.pays(_model("linear"))


@pytest.fixture(scope="module")
def linear(tiny):
    """A model, and what makes a process of it in groups."""
    model = _model("linear")

    def build(**arguments):
        plan = tiny.plan(clip_norm=CLIP, cohort_size=3)
        return tiny.build(
            model, plan=plan, client_optimizer=0.3, grouped=True, **arguments
        )

    return model, build


def _with_nan(users, place):
    users = [list(batches) for batches in users]
    x, y = users[place][-1]
    users[place][-1] = (np.full_like(x, np.nan), y)
    return users


def test_a_user_with_nan_is_an_error_that_names_the_user(linear):
    model, build = linear
    users = _with_nan(_users((3, 6, 4)), 1)
    groups, data = _in_groups(users, model.input_spec, 2)
    names = [[("ada", "bob", "cy")[i] for i in group] for group in groups]
    built = build(on_non_finite="error")
    state = built.initialize()
    with (
        runtime.naming(round=3, client_ids=names),
        pytest.raises(
            runtime.ClientError, match=r"(?s)'bob' .*round 3.*not finite"
        ) as error,
    ):
        built.next(state, data)
    assert error.value.client_id == "bob"
    assert names[error.value.position][error.value.member] == "bob"
    assert "ada" not in str(error.value) and "cy" not in str(error.value)


def test_a_user_with_nan_is_dropped_and_the_rest_of_its_group_is_not(tiny, linear):
    model, build = linear
    built = build(on_non_finite="drop")
    users = _users((3, 6, 4))
    bad = _with_nan(users, 1)
    _, data = _in_groups(bad, model.input_spec, 3)
    state, metrics = built.next(built.initialize(), data)
    _, rest = _in_groups([users[0], users[2]], model.input_spec, 3)
    wanted, expected = built.next(built.initialize(), rest)
    np.testing.assert_allclose(
        tiny.vector(states.iterate(state)),
        tiny.vector(states.iterate(wanted)),
        atol=1e-7,
    )
    assert metrics["aggregator"]["non_finite"] == 1
    assert metrics["aggregator"]["clients"] == 3
    for name, value in expected["client_work"]["train"].items():
        assert metrics["client_work"]["train"][name] == pytest.approx(value)


def test_the_cohort_size_is_that_of_users(linear):
    model, build = linear
    built = build()
    _, data = _in_groups(_users((3, 1, 0, 2)), model.input_spec, 2)
    assert len(data) == 2
    with pytest.raises(Exception, match="at most 3 clients per round"):
        built.next(built.initialize(), data)
    assert built.next(built.initialize(), [])[1]["aggregator"]["clients"] == 0


def test_what_cannot_be_grouped_is_refused(tiny):
    with pytest.raises(ValueError, match="a Trainer says itself how many"):
        tiny.build("send", grouped=True)
    with pytest.raises(TypeError, match="functional_model_from_keras"):
        tiny.build(tiny.variable_model, client_optimizer=0.1, grouped=True)


@pytest.mark.parametrize("on_non_finite", ["error", "drop"])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 0.1, 1e3, 1e15])
def test_each_update_of_a_stack_is_clipped_by_itself(scale, on_non_finite):
    rng = np.random.default_rng(5)
    # One user far above the clip norm must not shorten the others.
    scales = scale * np.array([1.0, 1e-3, 100.0, 0.0])
    updates = collections.OrderedDict(
        kernel=tf.constant(
            rng.normal(size=(4, 30, 20)) * scales[:, None, None], tf.float32
        ),
        bias=tf.constant(rng.normal(size=(4, 20)) * scales[:, None], tf.float32),
    )
    total, counts, largest = clipping.clip_users(updates, 1.5, on_non_finite)
    alone = [
        clipping.clip_users(
            collections.OrderedDict((k, v[i : i + 1]) for k, v in updates.items()),
            1.5,
            on_non_finite,
        )
        for i in range(4)
    ]
    for name, leaf in total.items():
        wanted = sum(clipped[name].numpy() for clipped, _, _ in alone)
        np.testing.assert_allclose(leaf, wanted, rtol=1e-5, atol=1e-6 * min(scale, 1))
    for name, count in counts.items():
        np.testing.assert_allclose(
            count, sum(c[name].numpy() for _, c, _ in alone), rtol=1e-5, atol=1e-17
        )
    np.testing.assert_allclose(
        largest, max(n for _, _, n in alone), rtol=1e-5, atol=1e-18
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_one_update_of_a_stack_that_is_not_finite(bad):
    stack = [tf.constant([[0.5, 0.0], [1.0, bad], [0.0, 0.25]])]
    total, counts, largest = clipping.clip_users(stack, 1.0, "drop")
    np.testing.assert_array_equal(total[0], [0.5, 0.25])
    assert int(counts["non_finite"]) == 1 and int(counts["clients"]) == 3
    assert float(largest) == 0.5
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"(?s)member of the group:\W*1.*not finite",
    ):
        clipping.clip_users(stack, 1.0, "error")
