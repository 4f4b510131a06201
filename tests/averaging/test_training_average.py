"""The analysis of averaging in training, against what is known and simulated."""

import numpy as np
import pytest

from benchmarks import training_average as study
from tff_agg import averaging, noise


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_plain_momentum_is_stable_up_to_the_textbook_limit(momentum):
    known = 2 * (1 + momentum) / (1 - momentum)
    assert study.stability_limit(1, momentum) == pytest.approx(known, rel=0.01)


@pytest.mark.parametrize(("k", "momentum"), [(1, 0.9), (3, 0.0), (3, 0.9), (5, 0.5)])
def test_the_limit_is_where_a_simulated_run_turns(k, momentum):
    limit = study.stability_limit(k, momentum)
    for product, converges in ((0.9 * limit, True), (1.1 * limit, False)):
        rate = product * (1 - momentum) * (k + 1) / 2
        averager = averaging.uta(k)
        mean, velocity = np.float64(1.0), 0.0
        state = averager.init(mean)
        for _ in range(3000):
            velocity = momentum * velocity + mean
            state, mean = averager.next(state, mean - rate * velocity)
            if abs(mean) > 1e6:
                break
        assert (abs(mean) < 1e-3) == converges


def test_responses_are_those_of_the_averager():
    k, momentum, curvature, rounds = 3, 0.5, 0.2, 9
    noises = np.random.default_rng(0).normal(size=rounds)
    iterates, means = study.responses(k, momentum, curvature, rounds)
    averager = averaging.uta(k)
    mean, velocity = np.float64(0.0), 0.0
    state = averager.init(mean)
    for t in range(rounds):
        velocity = momentum * velocity + curvature * mean + noises[t]
        theta = mean - velocity * (1 - momentum) * (k + 1) / 2
        state, mean = averager.next(state, theta)
        assert iterates[t] @ noises == pytest.approx(theta)
        assert means[t] @ noises == pytest.approx(mean)


def test_without_averaging_the_noise_is_that_of_prefix_sums():
    rounds = 32
    sums = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(
        noise.tree().matrix(rounds)
    )
    known = np.sqrt(np.square(sums).sum(axis=1)[rounds // 2 :].mean())
    assert study.noise_left(1, 0.0, 0.0, rounds) == pytest.approx(known)


def test_momentum_leaves_nothing_to_average_in_training():
    def change(momentum, recycled=1, k=3):
        plain = study.noise_left(1, momentum, 0.1, 128)
        return study.noise_left(k, momentum, 0.1, 128, recycled) / plain

    assert change(0.0) < 0.96
    assert change(0.9) > 1.0
    assert change(0.9, recycled=10, k=1) < 0.95


@pytest.mark.parametrize(
    ("given", "share"),
    [
        ({"decay": 0.5}, lambda t: 0.5),
        ({"decay": 0.95}, lambda t: 0.05),
        ({"decay": 0.95, "warm_up": True}, lambda t: max(0.05, 9 / (10 + t))),
        ({"weight": 0.95}, lambda t: 0.95),
        ({"weight": 0.95, "warm_up": True}, lambda t: min(0.95, (1 + t) / (10 + t))),
    ],
)
def test_an_ema_in_training_is_another_rate_and_nothing_else(given, share):
    """Whatever the gradients, a step from the average moves it by a share of itself."""

    def run(averager, rate):
        noises = np.random.default_rng(0).normal(size=250)
        mean, velocity = np.float64(1.0), 0.0
        state, passed = averager.init(mean), []
        for t, own_noise in enumerate(noises, 1):
            velocity = 0.95 * velocity + np.sin(mean) + own_noise
            state, mean = averager.next(state, mean - rate(t) * velocity)
            passed.append(mean)
        return passed

    plain = run(averaging.last(), lambda t: 0.01 * share(t))
    averaged = run(averaging.ema(**given), lambda t: 0.01)
    np.testing.assert_allclose(averaged, plain, rtol=1e-9)
