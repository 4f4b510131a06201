"""The demo's own parts: every combination is trained, and the table is honest."""

import dataclasses
import math

import pytest

from stackoverflow import demo, demo_runs
from stackoverflow.demo_runs import BASELINE, Curve, DemoConfig, Job
from tests import tiny_stores
from tff_agg import checkpoints
from tff_agg.experiment.run import tables


def results(gains):
    """Results in which every method differs from the baseline by the given points."""
    return {
        (setting, method): [
            Curve([1], [0.2], 0.2 + (method != BASELINE) * gain / 100) for gain in gains
        ]
        for setting in demo_runs.SETTINGS
        for method in demo_runs.METHODS
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
    assert len(rows) == len(demo_runs.SETTINGS) * len(demo_runs.METHODS)
    assert rows[1][2:] == ["20.50 ± 0.87", "+0.50", "0.87", "2 of 3"]
    assert all(len(row) == len(demo.HEADER) for row in rows)


@pytest.mark.parametrize("bad", [{"seeds": 0}, {"rounds": 0}])
def test_sizes_are_checked(bad):
    with pytest.raises(ValueError, match="at least 1"):
        DemoConfig(out="x", **bad)


def test_an_unknown_setting_is_named():
    with pytest.raises(ValueError, match=r"'windy'.*original, periodic shift"):
        DemoConfig(out="x", settings="original,windy")


def test_all_checkpoints_stay_for_the_means_over_them():
    """By default a run of 600 rounds keeps every tenth of the older ones."""
    run = DemoConfig(out="x").run_config("x", Job("periodic shift", "baseline", 0))
    assert run.rounds == 600 and run.keep_last == 0


def test_a_run_is_judged_by_its_last_period():
    sizes = DemoConfig(out="x", rounds=230).sizes("x", "original", seed=0)
    assert demo_runs.judged_rounds(sizes) == [140, 160, 180, 200, 220, 230]
    assert demo_runs.INFERENCE_K == demo_runs.PERIOD


def test_trainings_with_equal_settings_run_once(monkeypatch):
    same = {"averager": "last", "server_learning_rate": 0.5}
    chosen = {"baseline": same, "for UTA_inf": dict(same), "schedule-free": {"k": 2}}
    monkeypatch.setattr(demo_runs, "TRAININGS", dict.fromkeys(["original"], chosen))
    config = DemoConfig(out="x", settings="original", seeds=2)
    assert config.jobs() == [
        Job("original", training, seed)
        for training in ("baseline", "schedule-free")
        for seed in range(2)
    ]
    assert list(demo_runs.METHODS)[2] not in demo_runs.methods("original")
    assert len(demo_runs.methods("original")) == 3


def test_two_processes_divide_the_runs():
    config = DemoConfig(out="x")
    first, second = demo.halves(config)
    assert first + second == config.jobs()
    assert 0 <= len(first) - len(second) <= 1


def test_the_title_claims_no_privacy_for_known_seeds():
    config = DemoConfig(out="x", rounds=8)
    run = config.run_config("x", Job("original", "baseline", 0))
    assert demo.noise_in_words(run.build_plan()) == "noise of ε = 8, known seed"
    secret = dataclasses.replace(run, insecure_noise_seed=None).build_plan()
    assert demo.noise_in_words(secret) == "user-level ε = 8 at δ = 1e-06"
    silent = dataclasses.replace(run, epsilon=None, noise_multiplier=0.0)
    silent = dataclasses.replace(silent, insecure_noise_seed=None).build_plan()
    assert demo.noise_in_words(silent) == "privacy: none: no noise is added"


@pytest.mark.slow
def test_it_runs_end_to_end(tmp_path):
    # One setting: it is the compiling of each training that takes time here.
    config = DemoConfig(
        out=str(tmp_path / "demo"),
        settings="periodic shift",
        seeds=1,
        rounds=3,
        users=600,
    )
    store = tiny_stores.make_store(
        tmp_path / "data", users=config.users, words=config.words
    )
    found, plan = demo.gather(config, store)
    methods = demo_runs.methods("periodic shift")
    assert list(found) == [("periodic shift", method) for method in methods]
    text = demo.report(config, found, plan)
    assert "periodic shift" in text
    assert (tmp_path / "demo" / "accuracy.png").stat().st_size > 10_000
    table = (tmp_path / "demo" / "table.csv").read_text()
    assert table.count("\n") == 1 + len(found)
    shifted = tmp_path / "demo" / "runs" / "periodic_shift_baseline_0"
    clients = tables.read_columns(shifted / "metrics.csv")["question_clients"]
    assert clients[0] == 25, "the shift begins with questions only"
    assert plan.nominal_epsilon <= config.epsilon and plan.epsilon == math.inf
    assert "noise of ε = 8, known seed" in text
    again, _ = demo.gather(config, store)
    assert again == found, "a second demo reads what the first has done"
    # Every checkpoint is there to be recycled.
    store = checkpoints.CheckpointStore(shifted / "checkpoints")
    assert store.rounds("iterate") == [0, 1, 2, 3]
