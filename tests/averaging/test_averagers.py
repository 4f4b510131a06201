"""What tells the averagers apart, and what they refuse."""

import numpy as np
import pytest

from tff_agg import averaging


def test_uta_counts_the_initial_model():
    aggregates = list(
        averaging.fold(averaging.uta(3), [np.float32(x) for x in range(5)])
    )
    np.testing.assert_allclose(aggregates, [0, 0.5, 1, 2, 3])


@pytest.mark.parametrize("k", [3, 10, 100, 400])
def test_long_runs_do_not_drift(k):
    # Late checkpoints are 10,000 times smaller than the early ones: a plain running
    # sum would still carry the early ones' rounding errors.
    rng = np.random.default_rng(k)
    scale = np.geomspace(100, 0.01, 5000)
    thetas = (rng.normal(size=(5000, 16)) * scale[:, None] + scale[:, None]).astype(
        np.float32
    )
    for t, aggregate in enumerate(averaging.fold(averaging.uta(k), thetas)):
        if t % 97 == 0 or t == 4999:
            direct = thetas[max(0, t - k + 1) : t + 1].astype(np.float64).mean(0)
            size = np.abs(thetas[max(0, t - k + 1) : t + 1]).mean(0)
            assert np.max(np.abs(aggregate - direct) / size) < 1e-5


def test_a_plain_running_sum_would_drift():
    """Why nothing is subtracted: the simple way fails the test above."""
    rng = np.random.default_rng(0)
    scale = np.geomspace(100, 0.01, 5000)
    thetas = (rng.normal(size=(5000, 16)) * scale[:, None]).astype(np.float32)
    k, total = 100, np.zeros(16, np.float32)
    for t, theta in enumerate(thetas):
        total = total + theta - (thetas[t - k] if t >= k else 0)
    direct = thetas[-k:].astype(np.float64).mean(0)
    size = np.abs(thetas[-k:]).mean(0)
    assert np.max(np.abs(total / k - direct) / size) > 1e-4


@pytest.mark.parametrize("k", [3, 20])
def test_moving_the_window_copies_no_checkpoint(k):
    averager = averaging.uta(k)
    thetas = [{"w": np.full(3, t, np.float32)} for t in range(2 * k + 3)]
    state = averager.init(thetas[0])
    for theta in thetas[1:]:
        state, _ = averager.next(state, theta)
    for kept, theta in zip(state["window"], reversed(thetas[-k:]), strict=True):
        assert kept["w"] is theta["w"]


def test_without_warm_up_the_two_sides_of_an_ema_mirror_each_other():
    one, other = averaging.ema(weight=0.05), averaging.ema(decay=0.95)
    np.testing.assert_allclose(one.weights(300), other.weights(300), atol=1e-15)


def test_ema_weight_is_on_the_newest_checkpoint():
    assert averaging.ema(weight=0.9).weights(5)[-1] == pytest.approx(0.9)
    assert averaging.ema(decay=0.9).weights(5)[-1] == pytest.approx(0.1)


def test_warm_up_caps_the_old_average():
    averager = averaging.ema(decay=0.9999, warm_up=True)
    for t in (1, 5, 50, 500):
        newest = averager.weights(t)[-1]
        assert newest == pytest.approx(1 - min(0.9999, (1 + t) / (10 + t)))
    # Without it, ten steps in, the initial model would still be all there is.
    assert averager.weights(10)[0] < 0.01
    assert averaging.ema(decay=0.9999).weights(10)[0] > 0.99


def test_two_coefficients_of_the_papers_table_are_one_average_in_875_steps():
    """As decays, that is: the schedule stays below 0.99."""
    of_99, of_999 = (
        averaging.ema(decay=beta, warm_up=True).weights(875) for beta in (0.99, 0.999)
    )
    np.testing.assert_array_equal(of_99, of_999)
    assert averaging.ema(decay=0.95, warm_up=True).weights(875)[-1] > 4 * of_99[-1]


@pytest.mark.parametrize("beta", [0.05, 0.5, 0.95, 0.9999, 1.0])
def test_as_printed_the_newest_checkpoint_has_the_schedules_weight(beta):
    averager = averaging.ema(weight=beta, warm_up=True)
    for t in (1, 5, 50, 500):
        newest = [min(beta, (1 + i) / (10 + i)) for i in range(1, t + 1)]
        left = np.cumprod([1.0, *(1 - np.array(newest[::-1]))])[::-1]
        by_hand = left * [1.0, *newest]
        np.testing.assert_allclose(averager.weights(t), by_hand, rtol=1e-9, atol=1e-99)


def test_the_warm_up_changes_each_reading_of_a_large_coefficient():
    for side in ("weight", "decay"):
        warm = averaging.ema(**{side: 0.95}, warm_up=True)
        assert abs(warm.weights(20) - averaging.ema(**{side: 0.95}).weights(20)).max()
        assert warm.name == f"ema({side}=0.95, warm_up)"


def test_small_weights_survive_float32():
    averager = averaging.ema(decay=1 - 1e-9)
    *_, aggregate = averaging.fold(
        averager, [np.zeros(1, np.float32)] + [np.full(1, 1e9, np.float32)] * 3
    )
    np.testing.assert_allclose(aggregate, 3, rtol=1e-3)


def test_pda_zero_is_the_mean_of_all():
    np.testing.assert_allclose(averaging.pda(0).weights(9), np.full(10, 0.1))
    np.testing.assert_allclose(averaging.uta(10).weights(9), np.full(10, 0.1))


def test_pda_follows_its_recursion():
    gamma, weights = 3.0, np.array([1.0])
    for t in range(2, 12):  # the formula counts checkpoints from 1
        newest = (gamma + 1) / (t + gamma)
        weights = np.append(weights * (1 - newest), newest)
        np.testing.assert_allclose(averaging.pda(gamma).weights(t - 1), weights)


def test_schedule_free_lies_between_the_iterate_and_its_running_average():
    thetas = [np.float64(x) for x in np.random.default_rng(3).normal(size=12)]
    beta, gamma = 0.9, 8.0
    averages = list(averaging.fold(averaging.pda(gamma), thetas))
    broadcast = list(averaging.fold(averaging.schedule_free(beta, gamma), thetas))
    for theta, average, point in zip(thetas, averages, broadcast, strict=True):
        np.testing.assert_allclose(point, beta * average + (1 - beta) * theta)
    assert broadcast[0] == thetas[0]


def test_the_ends_of_schedule_free_are_last_and_pda():
    for t in (0, 1, 7):
        np.testing.assert_allclose(
            averaging.schedule_free(0.0, 3.0).weights(t), averaging.last().weights(t)
        )
        np.testing.assert_allclose(
            averaging.schedule_free(1.0, 3.0).weights(t), averaging.pda(3.0).weights(t)
        )


def test_starting_at_sees_checkpoints_before_tau():
    averager = averaging.starting_at(3, averaging.uta(3))
    aggregates = list(averaging.fold(averager, [np.float64(x) for x in range(6)]))
    np.testing.assert_allclose(aggregates, [0, 1, 2, 2, 3, 4])


@pytest.mark.parametrize("k", [0, -1, 2.5, True, "3", None])
def test_uta_refuses(k):
    with pytest.raises(ValueError, match="k must be a whole number of at least 1"):
        averaging.uta(k)


@pytest.mark.parametrize("value", [0, -0.1, 1.1, float("nan")])
def test_ema_refuses_a_weight(value):
    with pytest.raises(ValueError, match=r"weight must be in \(0, 1\], got"):
        averaging.ema(weight=value)


@pytest.mark.parametrize("value", [1, -0.1, 1.1, float("nan")])
def test_ema_refuses_a_decay(value):
    with pytest.raises(ValueError, match=r"decay must be in \[0, 1\), got"):
        averaging.ema(decay=value)


@pytest.mark.parametrize("arguments", [{}, {"weight": 0.5, "decay": 0.5}])
def test_ema_takes_exactly_one(arguments):
    with pytest.raises(ValueError, match="exactly one"):
        averaging.ema(**arguments)


@pytest.mark.parametrize("gamma", [-1, float("nan"), float("inf")])
def test_pda_refuses(gamma):
    with pytest.raises(ValueError, match="gamma must be a finite number of at least 0"):
        averaging.pda(gamma)


@pytest.mark.parametrize("beta", [-0.1, 1.1, float("nan")])
def test_schedule_free_refuses(beta):
    with pytest.raises(ValueError, match=r"beta must be in \[0, 1\], got"):
        averaging.schedule_free(beta)
    with pytest.raises(ValueError, match="gamma must be a finite number of at least 0"):
        averaging.schedule_free(gamma=-1.0)


@pytest.mark.parametrize("call", ["1", None, True])
def test_numbers_must_be_numbers(call):
    with pytest.raises(ValueError, match="gamma must be a finite number"):
        averaging.pda(call)
    with pytest.raises(ValueError, match=r"weight must be in \(0, 1\]"):
        averaging.ema(weight=call or "x")


@pytest.mark.parametrize("tau", [-1, 0.5, None])
def test_starting_at_refuses(tau):
    with pytest.raises(ValueError, match="tau must be a whole number"):
        averaging.starting_at(tau, averaging.last())


def test_weights_refuse_a_negative_step():
    for averager in (averaging.last(), averaging.uta(2), averaging.pda(1)):
        with pytest.raises(ValueError, match="t must be a whole number"):
            averager.weights(-1)
