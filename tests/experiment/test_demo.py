"""The demo's own parts: every combination is trained, and the table is honest."""

import dataclasses
import math

import pytest

from stackoverflow import demo
from stackoverflow.data import prepared
from tff_agg.experiment import tables


def results(gains):
    """Results in which every method differs from the baseline by the given points."""
    return {
        (setting, method): [
            demo.Result([1.0], [0.2], 0.2 + (method != demo.BASELINE) * gain / 100)
            for gain in gains
        ]
        for setting in demo.SETTINGS
        for method in demo.METHODS
    }


def test_a_gain_in_all_seeds_stands_clear():
    (line, *_) = demo.verdict(results([1.0, 1.1, 0.9]))
    assert "+1.00 points" in line and "stands clear" in line


def test_a_gain_in_one_seed_does_not():
    (line, *_) = demo.verdict(results([3.0, -1.0, -1.5]))
    assert "within the spread" in line


def test_a_loss_is_called_a_loss():
    (line, *_) = demo.verdict(results([-1.0, -1.1, -0.9]))
    assert "-1.00 points" in line and "stands clear" in line


def test_two_seeds_are_too_few():
    (line, *_) = demo.verdict(results([1.0, 1.1]))
    assert "too few" in line


def test_the_table_has_a_row_for_every_combination():
    rows = demo.rows_of(results([1.0, 1.0, -0.5]))
    assert len(rows) == len(demo.SETTINGS) * len(demo.METHODS)
    assert rows[1][2:] == ["20.50 ± 0.87", "+0.50", "0.87", "2 of 3"]
    assert all(len(row) == len(demo.HEADER) for row in rows)


@pytest.mark.parametrize("bad", [{"seeds": 0}, {"rounds": 0}])
def test_sizes_are_checked(bad):
    with pytest.raises(ValueError, match="at least 1"):
        demo.DemoConfig(out="x", **bad)


def test_the_title_claims_no_privacy_for_known_seeds():
    config = demo.DemoConfig(out="x", rounds=8)
    run = config.run_config("x", "original", "baseline", seed=0)
    assert demo.noise_in_words(run.build_plan()) == "noise of ε = 8, known seed"
    secret = dataclasses.replace(run, insecure_noise_seed=None).build_plan()
    assert demo.noise_in_words(secret) == "user-level ε = 8 at δ = 1e-06"
    silent = dataclasses.replace(run, epsilon=None, noise_multiplier=0.0)
    silent = dataclasses.replace(silent, insecure_noise_seed=None).build_plan()
    assert demo.noise_in_words(silent) == "privacy: none: no noise is added"


@pytest.mark.slow
def test_it_runs_end_to_end(tmp_path):
    config = demo.DemoConfig(out=str(tmp_path / "demo"), seeds=1, rounds=2, users=600)
    store = prepared.ensure_store(
        "synthetic", None, tmp_path / "data", users=config.users, workers=1
    )
    found, plan = demo.run_all(config, store)
    assert set(found) == {(s, m) for s in demo.SETTINGS for m in demo.METHODS}
    text = demo.report(config, found, plan)
    assert "periodic shift" in text
    assert (tmp_path / "demo" / "accuracy.png").stat().st_size > 10_000
    assert (tmp_path / "demo" / "table.csv").read_text().count("\n") == 9
    shifted = tmp_path / "demo" / "runs" / "periodic_shift_baseline_0"
    clients = tables.read_columns(shifted / "metrics.csv")["question_clients"]
    assert clients[0] == 20, "the shift begins with questions only"
    assert plan.nominal_epsilon <= config.epsilon and plan.epsilon == math.inf
    assert "noise of ε = 8, known seed" in text
    again, _ = demo.run_all(config, store)
    assert again == found, "a second demo reads what the first has done"
