"""Gains are paired by seed, positive where it is better, and judged by Student's t."""

import math

import pytest

from tff_agg.experiment.study.statistics import gain, std
from tff_agg.recycling.metrics import ACCURACY, Metric

LOSS = Metric("loss", higher_is_better=False)


@pytest.mark.parametrize(
    ("values", "clear"),
    [
        ([0.30, 0.31, 0.29], True),
        ([0.24, 0.18, 0.19], False),
        ([0.30, 0.31], None),
    ],
)
def test_a_gain_stands_clear_of_the_spread_or_not(values, clear):
    baseline = [0.20] * len(values)
    assert gain(values, baseline).clear is clear


def test_a_gain_is_relative_to_the_baseline():
    found = gain([0.22, 0.24], [0.20, 0.20])
    assert found.mean == pytest.approx(0.03)
    assert found.relative == pytest.approx(0.15)
    assert found.seeds_better == 2


@pytest.mark.parametrize("metric", [ACCURACY, LOSS])
def test_everything_is_positive_where_it_is_better(metric):
    low, high = [2.0, 2.1, 2.3], [2.5, 2.5, 2.6]
    better, worse = (high, low) if metric.higher_is_better else (low, high)
    found, other = gain(better, worse, metric), gain(worse, better, metric)
    for name in ("mean", "relative", "t"):
        assert getattr(found, name) > 0 > getattr(other, name), name
    assert found.clear and other.clear
    assert (found.seeds_better, other.seeds_better) == (3, 0)


def test_a_metric_below_zero_gains_where_it_is_better():
    score = Metric("log_likelihood")
    assert gain([-1.0, -1.0], [-2.0, -2.0], score).relative == 0.5


def test_seeds_that_scatter_together_show_a_small_gain():
    # Unpaired, the spread over seeds would hide it.
    baseline = [0.10, 0.20, 0.30, 0.40]
    found = gain(
        [b + c for b, c in zip(baseline, (0.010, 0.011, 0.012, 0.011), strict=True)],
        baseline,
    )
    assert found.clear
    assert found.t == pytest.approx(0.011 / found.error)
    assert found.spread_ratio == pytest.approx(1, abs=0.01)


def test_what_cannot_be_said_is_not_a_number_and_no_error():
    alone = gain([0.2], [0.1])
    assert math.isnan(alone.t) and math.isnan(alone.spread_ratio)
    assert (alone.clear, alone.error) == (None, 0.0)
    assert math.isnan(gain([0.1], [0.0]).relative)
    assert gain([0.2] * 3, [0.1] * 3).t == math.inf
    assert gain([0.2] * 3, [0.2] * 3).clear is False
    assert std([0.3]) == 0.0
    assert gain([math.nan] * 3, [0.2] * 3).clear is False


def test_seeds_must_be_the_same():
    with pytest.raises(ValueError, match="zip"):
        gain([0.1, 0.2], [0.1])
