"""`search`: candidates around the defaults, one table, the flags of the best."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from examples.diabetes.task import Diabetes
from tests import command_lines
from tff_agg.experiment.commands import search
from tff_agg.experiment.config import TrainConfig
from tff_agg.experiment.run.run_folder import RunFolder

START = {
    "clip_norm": 0.3, "server_learning_rate": 20.0, "client_learning_rate": 1.0
}  # fmt: skip
FLAGS = (
    "--rounds=2", "--clients_per_round=3", "--doctors=12", "--patients=2",
    "--validation_examples=60", "--epsilon=8", "--delta=1e-3",
    "--client_learning_rate=0.1",
)  # fmt: skip


def test_candidates_surround_the_start_and_more_go_on_with_the_same():
    found = list(search.candidates(START, 200))
    assert found[0] == START and found[:12] == list(search.candidates(START, 12))
    for name, start in START.items():
        values = np.array([settings[name] for settings in found]) / start
        if name != "server_learning_rate":
            assert values.min() > 0.99 / search.SPACE[name]
            assert values.max() < 1.01 * search.SPACE[name]
        assert np.median(values) == pytest.approx(1, rel=0.15)
    # The rate moves beside the clip norm: how far a round goes is what is searched.
    steps = [s["clip_norm"] * s["server_learning_rate"] / 6 for s in found]
    assert 0.24 < min(steps) < 0.27 and 3.8 < max(steps) < 4.1
    clips = np.log([settings["clip_norm"] for settings in found])
    assert abs(np.corrcoef(clips, np.log(steps))[0, 1]) < 0.1


@pytest.mark.slow
def test_it_finds_the_best_goes_on_and_says_what_it_has_cost(tmp_path, capsys):
    out = tmp_path / "search"

    def run(number):
        command_lines.run(
            Diabetes, "search", *FLAGS, f"--out={out}", f"--runs={number}"
        )
        return " ".join(capsys.readouterr().out.split())

    run(2)
    first = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/ledger.jsonl")}
    shown = run(3)
    assert len(first) == 2 and len([*out.glob("runs/*")]) == 3
    for path, time in first.items():
        assert path.stat().st_mtime_ns == time, "a run was trained again"
    # Best first: the loss is the metric.
    rows = (out / "search.csv").read_text().splitlines()
    losses = [float(row.split(",")[3]) for row in rows[1:]]
    assert len(losses) == 3 and losses == sorted(losses)
    assert sum("the start" in row for row in rows) == 1
    assert (out / "search.png").stat().st_size > 0
    (config,) = command_lines.options(
        Diabetes, "train", f"--flagfile={out / 'best.cfg'}", "--out=x"
    )[1:]
    best = (config.clip_norm, config.server_learning_rate, config.client_learning_rate)
    assert rows[1].startswith(",".join(f"{value:g}" for value in best))
    assert (config.rounds, config.epsilon, config.doctors) == (2, 8.0, 12)
    assert (
        "chosen among 3 private runs" in shown
        and "Always the same answer has loss" in shown
    )
    for path in out.glob("runs/*/privacy_report.json"):
        assert json.loads(path.read_text())["tuning"]


@pytest.mark.slow
def test_halving_goes_on_with_the_best_under_the_noise_of_the_whole_plan(
    tmp_path, capsys
):
    flags = (*FLAGS, "--rounds=4", "--evaluate_every=1", "--halving", "--runs=3")

    def run():
        command_lines.run(Diabetes, "search", *flags, f"--out={tmp_path}")
        return capsys.readouterr().out

    assert "2 of 3 candidates go on after 1 rounds" in run()
    folders = [RunFolder(path) for path in tmp_path.glob("runs/*")]
    done = {folder.path.name: folder.rounds_done for folder in folders}
    assert sorted(done.values()) == [1, 4, 4]
    for folder in folders:
        assert folder.report()["plan"]["rounds"] == 4
    at_one = {
        folder.path.name: folder.history.reported[1]["validation"]["aggregate"]
        for folder in folders
    }
    losses = {name: found["all"]["loss"] for name, found in at_one.items()}
    left = {name for name, rounds in done.items() if rounds == 4}
    assert left == {*sorted(losses, key=losses.__getitem__)[:2]}
    times = {p: p.stat().st_mtime_ns for p in tmp_path.glob("runs/*/ledger.jsonl")}
    run()
    assert times == {p: p.stat().st_mtime_ns for p in times}, "something was trained"


def test_halving_needs_a_validation_in_the_first_quarter():
    config = TrainConfig(noise_multiplier=1.0, rounds=100, evaluate_every=50)
    with pytest.raises(ValueError, match="evaluate_every=50; lower it"):
        search.rung_of(config)


def test_a_known_noise_seed_is_refused(tmp_path):
    with pytest.raises(ValueError, match="insecure_noise_seed=3: the runs of a search"):
        command_lines.run(
            Diabetes, "search", *FLAGS, f"--out={tmp_path}", "--insecure_noise_seed=3"
        )


def test_a_search_moves_only_fields_that_there_are():
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    assert len(names & set(search.SPACE)) == 3
    assert len([*itertools.islice(search.candidates(START, 5), 5)]) == 5
