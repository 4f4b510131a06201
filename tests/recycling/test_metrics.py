"""Metrics have a name and a direction, whatever they count."""

import math

import numpy as np
import pytest

from tff_agg.recycling.metrics import ACCURACY, Metric, OutputJudge
from tff_agg.recycling.outputs import Predictions, aggregate_outputs


def test_better_follows_the_direction_and_nan_beats_nothing():
    loss = Metric("loss", higher_is_better=False)
    assert ACCURACY.better(0.2, 0.1) and not ACCURACY.better(0.1, 0.1)
    assert loss.better(0.1, 0.2) and not loss.better(0.2, 0.1)
    for metric in (ACCURACY, loss):
        assert metric.better(0.0, math.nan) and not metric.better(math.nan, 0.0)
        assert not metric.better(math.nan, math.nan)


def test_a_metric_that_is_no_count_is_judged_over_all_portions():
    """AUC needs all scores at once; a vote over labels would mean nothing."""
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 2, 40)
    chances = rng.uniform(size=(5, 40))
    scores = np.stack([1 - chances, chances], axis=-1).astype(np.float32)

    def ranks(parts):
        value = np.concatenate([part[0] for part in parts])
        target = np.concatenate([part[1] for part in parts])
        above = value[target == 1][:, None] > value[target == 0]
        return {"auc_loss": 1 - above.mean()}

    judge = OutputJudge(
        lambda total, count, targets: (total[:, 1] / count, targets),
        None,
        ranks,
        ("auc_loss",),
    )

    def predict(weights, rows):
        return Predictions(scores[int(weights)][rows], targets[rows])

    arguments = (range(5), [4], [1, 3], predict, np.arange(40))
    found = aggregate_outputs(
        np.float32, *arguments, classes=2, judge=judge, memory_budget=1000
    )
    assert found.portions > 1
    assert set(found.values) == {("OPA", 4, 1), ("OPA", 4, 3)}
    mean = scores[2:, :, 1].astype(np.float64).mean(axis=0)
    expected = 1 - (mean[targets == 1][:, None] > mean[targets == 0]).mean()
    assert found.values["OPA", 4, 3]["auc_loss"] == pytest.approx(expected)
