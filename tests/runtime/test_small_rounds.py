"""The comparison of small rounds counts what it says it counts."""

import numpy as np
import pytest

from benchmarks import small_rounds
from benchmarks.peers import workload


def times(**best):
    return {name: {"rounds": [s, 2 * s], "cpu": [s]} for name, s in best.items()}


def test_the_better_loop_of_stock_tff_counts():
    found = small_rounds.ratios(
        times(one_by_one=4.0, grouped=1.0, DATASET_REDUCE=50.0, DATASET_ITERATOR=9.0)
    )
    assert found == {"tff": 9.0, "one by one": 4.0}


def test_where_the_rule_does_not_group_one_by_one_counts():
    found = small_rounds.ratios(
        times(one_by_one=2.0, DATASET_REDUCE=5.0, DATASET_ITERATOR=9.0, pfl=3.0)
    )
    assert found == {"tff": 2.5, "pfl": 1.5}


@pytest.mark.parametrize("task", [workload.SMALL_LSTM, workload.LARGE_LSTM])
def test_sentences_are_padded_as_posts_are(task):
    cohort = workload.sentences(task, users=20, count=50)
    rows = np.concatenate(cohort)
    assert rows.shape == (1000, task.steps + 1)
    assert rows.min() >= 0 and rows.max() < task.ids
    real = rows != 0
    assert np.all(real[:, :3]), "a row shorter than three tokens"
    assert np.all(real[:, :-1] >= real[:, 1:]), "padding inside of a row"
    assert 12 < real[:, 1:].sum(1).mean() < 15
    again = workload.sentences(task, users=20, count=50)
    np.testing.assert_array_equal(rows, np.concatenate(again))
