"""Optimisers and schedules: those of TFF's own, in every library."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_agg import averaging, backends
from tff_agg.server import (
    Schedule,
    adagrad,
    adam,
    keeping_means,
    momentum,
    server_step,
    yogi,
)

RATE, ROUNDS = 0.3, 6
KINDS = {
    "adam": (
        lambda: adam(0.8, 0.95, 1e-3),
        lambda: tff.learning.optimizers.build_adam(RATE, 0.8, 0.95, 1e-3),
    ),
    "adam without momentum": (
        lambda: adam(0.0, 0.95, 1e-3),
        lambda: tff.learning.optimizers.build_adam(RATE, 0.0, 0.95, 1e-3),
    ),
    "yogi": (
        lambda: yogi(0.8, 0.95, 1e-3),
        lambda: tff.learning.optimizers.build_yogi(RATE, 0.8, 0.95, 1e-3, 0.0),
    ),
    "adagrad": (
        lambda: adagrad(1e-3),
        lambda: tff.learning.optimizers.build_adagrad(RATE, 0.0, 1e-3),
    ),
}


def means():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(ROUNDS, 6)) * rng.lognormal(0, 2, (ROUNDS, 6))
    return [
        {"a": row[:2], "b": row[2:].reshape(2, 2)} for row in rows.astype(np.float32)
    ]


def flat(weights):
    return np.concatenate([np.ravel(np.asarray(weights[n])) for n in ("a", "b")])


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_tff(kind, library):
    make, compiled = library
    mine, theirs = (of() for of in KINDS[kind])
    theta = {"a": np.ones(2, np.float32), "b": np.zeros((2, 2), np.float32)}
    step = server_step(mine, learning_rate=RATE)
    weights = aggregate = {n: make(x) for n, x in theta.items()}
    state, next_ = step.init(aggregate), compiled(step.next)
    weights = tuple(tf.constant(theta[n]) for n in ("a", "b"))
    specs = tuple(tf.TensorSpec(w.shape, w.dtype) for w in weights)
    held = theirs.initialize(specs)
    for t, mean in enumerate(means()):
        given = {n: make(x) for n, x in mean.items()}
        state, aggregate = next_(state, aggregate, given, make(t))
        gradients = tuple(tf.constant(mean[n]) for n in ("a", "b"))
        held, weights = theirs.next(held, weights, gradients)
        wanted = np.concatenate([np.ravel(w) for w in weights])
        np.testing.assert_allclose(flat(aggregate), wanted, rtol=2e-4, atol=1e-5)
    assert np.abs(flat(aggregate) - flat(theta)).mean() > 0.1


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant"])
def test_a_schedule_is_the_same_in_every_library(kind, library):
    make, compiled = library
    schedule = Schedule(2.0, 8, kind, warm_up=3)
    step = server_step(averager=averaging.uta(2), learning_rate=schedule)
    aggregate = make(np.zeros(1, np.float32))
    state, next_, rates = step.init(aggregate), compiled(step.next), []
    for t in range(8):
        before = np.asarray(aggregate)
        state, aggregate = next_(state, aggregate, make(np.ones(1, "f")), make(t))
        rates.append(float((before - np.asarray(state["iterate"]))[0]))
    done = np.arange(8) / 8
    falls = {
        "linear": 1 - done, "cosine": (1 + np.cos(np.pi * done)) / 2,
        "constant": np.ones(8),
    }[kind]  # fmt: skip
    rises = np.minimum((np.arange(8) + 1) / 3, 1)
    np.testing.assert_allclose(rates, 2.0 * falls * rises, atol=1e-5)


def test_a_step_with_a_schedule_has_a_response_and_others_have_none():
    scheduled = server_step(momentum(0.5), learning_rate=Schedule(2.0, 3, "linear"))
    rng = np.random.default_rng(1)
    sums = rng.normal(size=(3, 4))
    found = scheduled.run(np.zeros(4), sums)
    np.testing.assert_allclose(found, scheduled.response(3) @ sums, atol=1e-6)
    assert scheduled.scaled(2.0).learning_rate.rate == 4.0
    with pytest.raises(ValueError, match="is not linear"):
        server_step(adam()).response(3)


def test_the_means_can_be_kept():
    kept, alone = keeping_means(yogi()), yogi()
    theta = np.zeros(3, np.float32)
    state, own = kept.init(theta), alone.init(theta)
    for t in range(3):
        mean = np.full(3, t + 1, np.float32)
        state, direction = kept.next(state, mean, t)
        own, wanted = alone.next(own, mean, t)
        np.testing.assert_array_equal(direction, wanted)
        np.testing.assert_array_equal(state["mean"], mean)
    assert not kept.linear


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: adam(1.0), r"adam's beta_1 must be in \[0, 1\), got 1.0"),
        (lambda: yogi(0.9, -0.1), r"yogi's beta_2 must be in \[0, 1\), got -0.1"),
        (lambda: adagrad(0.0), "adagrad's epsilon must be a positive finite number"),
        (lambda: Schedule(0.0, 3), "learning_rate must be a positive finite number"),
        (lambda: Schedule(1.0, 3, "step"), "kind must be one of"),
        (
            lambda: Schedule(1.0, 3, warm_up=4),
            "warm_up must be a whole .* 0 to 3, got 4",
        ),
    ],
)
def test_what_is_out_of_range_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_schedule_goes_to_zero_and_no_further():
    schedule = Schedule(1.0, 4, "linear")
    assert [float(schedule(backends.NUMPY, t)) for t in (3, 4, 9)] == [0.25, 0.0, 0.0]
