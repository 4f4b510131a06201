"""The variance estimator, its exact moments, and the interval widths."""

import itertools
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from benchmarks import quadratic
from tff_agg.recycling import theory, uncertainty

_CONTRACTION = 0.9


def ar1_covariance(rounds, start_variance):
    """An AR(1) chain whose stationary variance is 1, started with another one."""
    t = np.array(rounds)
    low = np.minimum.outer(t, t)
    variance = 1 + _CONTRACTION ** (2 * low) * (start_variance - 1)
    return _CONTRACTION ** np.abs(np.subtract.outer(t, t)) * variance


def ar1_chains(runs, steps, start, seed=0):
    rng = np.random.default_rng(seed)
    noise = math.sqrt(1 - _CONTRACTION**2)
    x = np.full(runs, float(start))
    out = [x]
    for _ in range(steps):
        x = _CONTRACTION * x + noise * rng.standard_normal(runs)
        out.append(x)
    return np.array(out)


def test_without_weights_it_is_the_sample_variance():
    values = np.random.default_rng(0).standard_normal((7, 3))
    np.testing.assert_allclose(
        uncertainty.variance_estimate(values), values.var(axis=0, ddof=1)
    )
    last = [0, 0, 0, 0, 0, 0, 1]
    np.testing.assert_allclose(
        uncertainty.variance_estimate(values, last), values.var(axis=0, ddof=1)
    )


@hypothesis.settings(deadline=None)
@hypothesis.given(
    st.lists(st.floats(0.01, 1), min_size=2, max_size=8), st.floats(0.1, 10)
)
def test_weights_scale_the_sample_variance_by_their_squares(raw, scale):
    p = np.array(raw) / sum(raw)
    values = scale * np.random.default_rng(len(raw)).standard_normal(len(raw))
    expected = (p**2).sum() / (len(p) - 1) * ((values - values.mean()) ** 2).sum()
    np.testing.assert_allclose(uncertainty.variance_estimate(values, p), expected)


def test_independent_values_give_an_unbiased_estimate_of_the_weighted_mean():
    rng = np.random.default_rng(1)
    p = np.array([0.1, 0.2, 0.3, 0.4])
    samples = 2.0 * rng.standard_normal((4, 200_000))
    truth = 4.0 * (p**2).sum()
    np.testing.assert_allclose((p @ samples).var(), truth, rtol=0.02)
    estimates = uncertainty.variance_estimate(samples, p)
    np.testing.assert_allclose(estimates.mean(), truth, rtol=0.02)


@pytest.mark.parametrize(
    "weights", [[0.5, 0.6], [1.5, -0.5], [1.0], [0.2, 0.3, 0.5], [math.nan, 1.0]]
)
def test_weights_that_are_no_convex_combination_are_refused(weights):
    with pytest.raises(ValueError, match="weights"):
        uncertainty.variance_estimate(np.array([1.0, 2.0]), weights)


def test_one_value_is_refused_everywhere():
    calls = [
        lambda: uncertainty.variance_estimate(np.array([1.0])),
        lambda: uncertainty.variance_estimate(np.array(1.0)),
        lambda: uncertainty.checkpoint_rounds(10, burn_in=10),
        lambda: quadratic.gaussian_moments(np.zeros(1), np.eye(1)),
        lambda: uncertainty.interval_factor(1),
        lambda: uncertainty.interval_widths([0, 0], lambda m, c: c, [], [1]),
        lambda: uncertainty.compare_estimators([1], None, None, None),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="at least 2"):
            call()


def test_checkpoint_rounds_end_with_the_last_and_respect_the_burn_in():
    assert uncertainty.checkpoint_rounds(10, burn_in=3, separation=3) == [4, 7, 10]
    with pytest.raises(ValueError, match="separation"):
        uncertainty.checkpoint_rounds(10, separation=0)
    with pytest.raises(ValueError, match="burn_in"):
        uncertainty.checkpoint_rounds(10, burn_in=11)


def test_exact_moments_agree_with_simulation():
    rounds = [5, 8, 11, 14]
    values = ar1_chains(200_000, 14, start=3.0)[rounds]
    found = uncertainty.variance_estimate(values)
    mean = 3.0 * _CONTRACTION ** np.array(rounds)
    exact = quadratic.gaussian_moments(mean, ar1_covariance(rounds, 0.0))
    assert abs(found.mean() - exact.mean) < 5 * found.std() / math.sqrt(found.size)
    np.testing.assert_allclose(found.var(), exact.variance, rtol=0.03)
    np.testing.assert_allclose(
        np.sqrt(((found - 1) ** 2).mean()), exact.rmse(1.0), rtol=0.03
    )


def bias(burn_in, separation, count=6, start=20.0):
    rounds = [burn_in + i * separation for i in range(count)]
    values = ar1_chains(40_000, rounds[-1], start, seed=burn_in + separation)[rounds]
    estimates = uncertainty.variance_estimate(values)
    # θ_0 is a point, so the last iterate's variance is a little below 1.
    truth = 1 - _CONTRACTION ** (2 * rounds[-1])
    error = estimates.std() / math.sqrt(estimates.size)
    return abs(estimates.mean() - truth), error


def test_bias_falls_as_the_burn_in_grows():
    biases = [bias(burn_in, separation=40) for burn_in in (2, 10, 20, 40, 80)]
    for (larger, e1), (smaller, e2) in itertools.pairwise(biases[:4]):
        assert larger - smaller > 3 * math.hypot(e1, e2)
    assert biases[-1][0] < 4 * biases[-1][1] + 0.01


def test_bias_falls_as_the_separation_grows():
    biases = [bias(80, separation) for separation in (1, 4, 10, 20, 60)]
    for (larger, e1), (smaller, e2) in itertools.pairwise(biases[:4]):
        assert larger - smaller > 3 * math.hypot(e1, e2)
    assert biases[-1][0] < 4 * biases[-1][1] + 0.01


def test_the_times_of_the_theorem():
    found = theory.mixing(4.0, 10, start_distance=3.0, bias=0.1, constant=2.0)
    common = 1 / 8 + 2 * math.log(10)
    first = common + math.log(2 * 4 * (9 + 10 * math.log(4)))
    between = common + math.log(2 * 4 * (math.log(10) + 10 * math.log(4)))
    assert found == pytest.approx((first, between))
    for bad in ({"smoothness": 0.5}, {"dimension": 0}, {"bias": 1.0}):
        arguments = {"smoothness": 2.0, "dimension": 5, "bias": 0.1} | bad
        with pytest.raises(ValueError, match="must be at least 1"):
            theory.mixing(**arguments, start_distance=1.0)


def test_one_run_gives_more_samples_than_its_rounds_give_runs():
    assert theory.samples(2000, 400, 20) == (81, 5)
    assert theory.samples(2000, 2000, 1) == (1, 1)
    # About t_1/γ times as many.
    for burn_in, gap in ((100, 10), (50, 5), (250, 50)):
        found = theory.samples(10_000, burn_in, gap)
        assert found.checkpoints / found.runs == pytest.approx(burn_in / gap, rel=0.05)
    with pytest.raises(ValueError, match=r"burn_in .* got 0"):
        theory.samples(10, 0, 1)


@hypothesis.settings(deadline=None)
@hypothesis.given(st.floats(0.1, 100), st.floats(0.1, 50), st.floats(2.01, 1000))
def test_the_suggested_number_minimises_the_bound(c1, c2, ratio):
    total = ratio * c1
    if 3 * total <= c2:
        with pytest.raises(ValueError, match="total"):
            theory.suggested_count(total, c1, c2)
        return
    found = theory.suggested_count(total, c1, c2)

    def bound(k):
        return 1 / k + 3 * math.exp(-(total / k - c1) / c2)

    assert found.checkpoints >= 2
    assert abs(found.checkpoints - found.exact) <= 0.5 or found.checkpoints == 2
    assert total / found.exact > c1
    assert bound(found.exact) <= bound(found.exact * 1.01) + 1e-12
    assert bound(found.exact) <= bound(found.exact / 1.01) + 1e-12
    assert found.bound == pytest.approx(bound(found.checkpoints))


def test_a_run_too_short_for_any_bound_is_refused():
    with pytest.raises(ValueError, match=r"2·c1"):
        theory.suggested_count(19, c1=10, c2=1)
    assert theory.suggested_count(20, c1=10, c2=1).checkpoints == 2
    with pytest.raises(ValueError, match="positive"):
        theory.suggested_count(19, c1=0, c2=1)


def naive_widths(models, sizes):
    import scipy.stats

    out = []
    for n in sizes:
        scores = np.stack(models[:n]).astype(np.float64)
        best = scores.mean(axis=0).argmax(axis=1)
        chosen = scores[:, np.arange(scores.shape[1]), best]
        t = scipy.stats.t.ppf(0.975, n - 1)
        out.append((2 * t * chosen.std(axis=0, ddof=1) / math.sqrt(n)).mean())
    return np.array(out)


def test_widths_equal_the_naive_computation_in_any_chunks():
    rng = np.random.default_rng(0)
    models = rng.dirichlet(np.ones(7), size=(9, 23)).astype(np.float32)
    expected = naive_widths(models, [2, 5, 9])
    for size in (1, 4, 23):
        chunks = [slice(i, i + size) for i in range(0, 23, size)]
        seen: list[int] = []
        found = uncertainty.interval_widths(
            list(models),
            lambda m, c: m[c],
            chunks,
            [9, 2, 5, 2],
            on_progress=seen.append,
        )
        assert found.sizes == (2, 5, 9)
        assert found.examples == 23
        assert sum(seen) == 9 * len(chunks)
        np.testing.assert_allclose(found.means, expected, rtol=1e-12)


def test_constant_predictions_have_exactly_zero_width():
    scores = np.random.default_rng(0).dirichlet(np.ones(5), size=8).astype(np.float32)
    found = uncertainty.interval_widths(
        [scores] * 12, lambda m, c: m, [None], range(2, 13)
    )
    assert (found.means == 0).all()


def test_the_interval_of_the_mean_covers_it_as_often_as_it_says():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((8, 40_000))
    half = uncertainty.interval_factor(8) / 2 * values.std(axis=0, ddof=1)
    covered = (abs(values.mean(axis=0)) <= half).mean()
    assert abs(covered - 0.95) < 0.005


def test_sizes_beyond_the_models_are_refused():
    with pytest.raises(ValueError, match="sizes has 3"):
        uncertainty.interval_widths([0, 0], lambda m, c: c, [], [3])


def test_comparison_draws_runs_and_tails_and_reports_their_ratio():
    # Independent models vary by 0.1, the checkpoints of a run by half as much.
    rng = np.random.default_rng(0)
    base = np.tile([0.9, 0.05, 0.05], (400, 1))
    centre = {r: base + 0.1 * rng.standard_normal(base.shape) for r in range(30)}

    def tail(run, n):
        return [centre[run] + 0.05 * rng.standard_normal(base.shape) for _ in range(n)]

    used = []

    def widths(models):
        used.append(len(models))
        return uncertainty.interval_widths(models, lambda m, c: m, [None], [5, 20])

    found = uncertainty.compare_estimators(
        list(centre),
        final=centre.__getitem__,
        widths=widths,
        alone=lambda run: widths(tail(run, 20)),
        repeats=3,
    )
    assert found.sizes == (5, 20)
    assert found.independent.shape == found.checkpoints.shape == (3, 2)
    assert used == [30, 20] * 3
    np.testing.assert_allclose(found.ratio, 2.0, rtol=0.1)
    # Repeats draw different runs.
    assert len({round(x, 12) for x in found.independent[:, 0]}) == 3
