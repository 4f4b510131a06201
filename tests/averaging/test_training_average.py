"""The analysis of averaging in training, against what is known and simulated."""

import numpy as np
import pytest

from benchmarks import training_average as study
from tff_agg import averaging, noise


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_plain_momentum_is_stable_up_to_the_textbook_limit(momentum):
    known = 2 * (1 + momentum) / (1 - momentum)
    limit = study.stability_limit(study.window(1, momentum))
    assert limit == pytest.approx(known, rel=0.01)


@pytest.mark.parametrize(("k", "momentum"), [(3, 0.0), (3, 0.9), (5, 0.5)])
def test_the_limit_is_where_the_largest_eigenvalue_passes_one(k, momentum):
    def eigenvalue(product):
        rate = product * (1 - momentum) * (k + 1) / 2
        mean = np.append(np.full(k, 1 / k), 0.0)
        velocity = mean + momentum * np.eye(k + 1)[k]
        moves = np.zeros((k + 1, k + 1))
        moves[0] = mean - rate * velocity
        moves[1:k, : k - 1] = np.eye(k - 1)
        moves[k] = velocity
        return np.abs(np.linalg.eigvals(moves)).max()

    limit = study.stability_limit(study.window(k, momentum))
    assert eigenvalue(0.98 * limit) < 1 < eigenvalue(1.02 * limit)


def test_responses_are_those_of_a_run():
    curvature, rounds = 0.2, 9
    noises = np.random.default_rng(0).normal(size=rounds)
    step = study.reading(averaging.ema(weight=0.95, warm_up=True), "iterate")
    iterates, models = study.responses(step, curvature, rounds)
    model = np.float64(3.0)
    state = step.init(model)
    for t, own_noise in enumerate(noises):
        state, model = step.next(state, model, curvature * model + own_noise, t)
        assert iterates[t] @ [3.0, *noises] == pytest.approx(state["iterate"])
        assert models[t] @ [3.0, *noises] == pytest.approx(model)


def test_without_averaging_the_noise_is_that_of_prefix_sums():
    rounds = 32
    sums = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(
        noise.tree().matrix(rounds)
    )
    known = np.sqrt(np.square(sums).sum(axis=1)[rounds // 2 :].mean())
    assert study.noise_left(study.window(1, 0.0), 0.0, rounds) == pytest.approx(known)


def test_momentum_leaves_nothing_to_average_in_training():
    def change(momentum, recycled=1, k=3):
        plain = study.noise_left(study.window(1, momentum), 0.1, 128)
        own = study.noise_left(study.window(k, momentum), 0.1, 128, recycled)
        return own / plain

    assert change(0.0) < 0.96
    assert change(0.9) > 1.0
    assert change(0.9, recycled=10, k=1) < 0.95


def test_at_the_best_rate_of_the_baseline_no_other_is_better():
    rounds, steepest = 256, 1.0
    start = study.start_of_best_rate(rounds, steepest)

    def loss(rate):
        step = study.reading(averaging.last(), "aggregate", rate)
        of_start, of_noise = study.parts_of_loss(step, rounds, steepest)
        return start * of_start + of_noise

    assert loss(1.0) < min(loss(0.8), loss(1.25))


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
