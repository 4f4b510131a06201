"""The search from the command's configuration to its files and the runs' reports."""

import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from stackoverflow.data.token_store import TokenStore
from stackoverflow.task import StackOverflow
from tests import command_lines
from tests.recycling.written_runs import read_csv, write_run
from tff_agg import privacy
from tff_agg.checkpoints import blobs
from tff_agg.experiment import recycled_runs
from tff_agg.experiment.build import Compiled
from tff_agg.experiment.commands import evaluate, tune
from tff_agg.experiment.run import run as training
from tff_agg.experiment.runs import Run
from tff_agg.recycling import inference
from tff_agg.recycling.tuning import Candidate

tune_training = functools.partial(tune.tune_training, StackOverflow)
_SENTENCES = 60
_GRID = inference.Grid(uta=(2, 4, 50), outputs=(2, 5), ema=(0.5, 0.9))


@pytest.fixture
def looks(monkeypatch):
    """Lists the splits whose samples are drawn from here on."""
    found: list[str] = []
    real = TokenStore.sample_rows

    def spy(self, split, *arguments, **named):
        found.append(split)
        return real(self, split, *arguments, **named)

    monkeypatch.setattr(TokenStore, "sample_rows", spy)
    return found


def report_of(folder):
    """Returns the searches that a run's report names, and its page."""
    folder = pathlib.Path(folder)
    content = json.loads((folder / "privacy_report.json").read_text())
    page = (folder / "privacy_report.md").read_text()
    return content["tuning"], page


def files_of(out):
    """Returns all that a search writes, here and into the runs, but for the picture."""
    names = ("journal.jsonl", "trials.csv", "choice.json", "privacy_*")
    return {
        path: path.read_bytes()
        for name in names
        for path in pathlib.Path(out).rglob(name)
    }


def test_inference_picks_on_validation_and_tests_once(own_runs, tmp_path, monkeypatch):
    splits = []
    real = evaluate.evaluate_runs

    def spy(task_class, config, on_progress=None):
        splits.append((config.split, config.grid.methods()))
        return real(task_class, config, on_progress)

    monkeypatch.setattr(evaluate, "evaluate_runs", spy)
    out = tmp_path / "out"
    config = tune.InferenceConfig(
        runs=own_runs, out=str(out), grid=_GRID, examples=_SENTENCES
    )
    choices = tune.tune_inference(StackOverflow, config)
    # k = 50 is beyond the nine checkpoints.
    assert [len(c.trials) for c in choices.values()] == [1, 2, 2, 2, 2, 1]
    assert [s for s, _ in splits] == ["heldout"] + ["test"] * 6
    rows = read_csv(out / "trials.csv")
    assert len(rows) == 10 and sum(int(r["chosen"]) for r in rows) == 6
    for row in rows:
        assert (row["test"] != "") == (row["chosen"] == "1")
    for method, choice in choices.items():
        mine = [float(r["validation"]) for r in rows if r["method"] == method]
        assert choice.validation == max(mine)
    summary = json.loads((out / "choice.json").read_text())
    assert len(summary["choices"]) == 6
    # Both runs decide: the choice says something about either.
    assert summary["tuning"]["runs"] == 2 and summary["tuning"]["points"] == 10
    assert (summary["tuning"]["rho"], summary["tuning"]["rho_total"]) == (0.5, 1.0)
    assert (out / "tuning.png").stat().st_size > 5000
    note = (out / "privacy_of_tuning.md").read_text()
    assert "10 ways" in note and "2 private runs" in note
    for folder in own_runs:
        searches, page = report_of(folder)
        assert searches == {"../../out": summary["tuning"]}
        assert summary["tuning"]["paragraph"] in page
        assert "points looked at: 10" in page
        assert "without privacy protection" in page
    # The same search again looks at nothing and says nothing new.
    before = files_of(tmp_path)
    splits.clear()
    assert tune.tune_inference(StackOverflow, config) == choices
    assert splits == [] and files_of(tmp_path) == before


def test_a_report_names_what_is_there(own_runs, tmp_path):
    judging = recycled_runs.Judging(inference.Grid(uta=(2, 3)), examples=20)
    recycled_runs.recycle(StackOverflow, own_runs, tmp_path / "out", judging)
    for folder in own_runs:
        searches, _ = report_of(folder)
        assert len(searches) == 1
        assert all((pathlib.Path(folder) / name).exists() for name in searches)


def test_inference_over_one_run_is_post_processing_and_counts_every_point(
    own_runs, tmp_path
):
    run = own_runs[0]
    chosen = privacy.training_search(0.5, 1e-6, runs=6)
    privacy.add_search(run, "elsewhere", chosen)

    def search(**grid):
        tune.tune_inference(
            StackOverflow,
            tune.InferenceConfig(
                runs=(run,),
                out=str(tmp_path / "out"),
                grid=inference.Grid(**grid, baseline=False),
                examples=20,
            ),
        )
        return report_of(run)

    searches, page = search(uta=(2,))
    found = searches["../../out"]
    assert (found["runs"], found["points"], found["rho_total"]) == (1, 2, 0.5)
    assert "post-processing" in found["paragraph"]
    # That the run itself was chosen among others is not forgotten.
    assert searches["elsewhere"] == chosen.to_json() and chosen.paragraph in page
    assert "takes its place" in page
    # Another grid in the same place: what was looked at before still counts.
    searches, page = search(uta=(3, 4))
    assert searches["../../out"]["points"] == 4
    assert len(searches) == 2 and "points looked at: 2." not in page


def test_a_report_that_cannot_be_written_is_told(own_runs, tmp_path, monkeypatch):
    config = tune.InferenceConfig(
        runs=own_runs[:1],
        out=str(tmp_path / "out"),
        grid=inference.Grid(uta=(2,)),
        examples=20,
    )

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(privacy, "add_search", full)
    with pytest.raises(blobs.StoreError, match=r"privacy report.*disk is full"):
        tune.tune_inference(StackOverflow, config)
    assert (tmp_path / "out" / "choice.json").exists()


def fake_training(token_store, log, fail_on=None, **changes):
    def run_command(command):
        log.append(command)
        values = dict(a[2:].split("=", 1) for a in command if a.startswith("--"))
        folder = pathlib.Path(values["out"])
        if not folder.exists():
            rounds = int(values["rounds"])
            write_run(folder, token_store, int(values["k"]), rounds=rounds, **changes)
        if values["k"] == fail_on:
            raise subprocess.CalledProcessError(1, command)

    return run_command


def search_of(tmp_path, **changes):
    values = {
        "out": str(tmp_path),
        "averager": "uta",
        "parameters": (2, 3, 5),
        "train_flags": ("--rounds=4",),
        "examples": _SENTENCES,
    }
    return tune.TrainingConfig(**(values | changes))


def test_training_runs_each_point_and_tests_the_chosen_one_once(
    token_store, tmp_path, looks
):
    config = search_of(tmp_path, starts=(0, 4))
    log: list = []
    said = []
    choice = tune_training(
        config,
        fake_training(token_store, log),
        lambda *a: said.append(a),
    )
    assert len(log) == 6 and len(said) == 6
    assert len(choice.trials) == 6 and not choice.failed
    assert choice.best.method == "UTA_tr" and choice.looks == 1
    # Two kinds of sentences: six times validation, then the test sample of one model.
    assert looks == ["heldout"] * 12 + ["test"] * 2
    run = Run.open(StackOverflow, config.folder(choice.best))
    score = run.scorer("test", _SENTENCES)
    assert choice.test == score(run.load(4, "aggregate"))["accuracy"]
    rows = read_csv(tmp_path / "trials.csv")
    assert [row["test"] for row in rows if row["test"]] == [str(choice.test)]
    # A model that predicts only unknown words tells itself by the other metrics.
    found = score(run.load(4, "aggregate"))
    assert [r["test_loss"] for r in rows if r["test"]] == [str(found["loss"])]
    assert all(row["validation_accuracy_with_oov"] for row in rows)
    shown = tune.tuning_report.metrics_table(tmp_path, StackOverflow.metrics)
    assert StackOverflow.metrics[2].show(found["loss"], 3) in shown
    # Again: nothing runs, no data are drawn, nothing differs.
    before = files_of(tmp_path)
    log.clear()
    looks.clear()
    assert tune_training(config, fake_training(token_store, log)) == choice
    assert log == [] and looks == [] and files_of(tmp_path) == before


def test_a_search_with_failed_trials_goes_on_before_it_tests(
    token_store, tmp_path, looks
):
    config = search_of(tmp_path)
    log: list = []
    failing = fake_training(token_store, log, fail_on="5")
    choice = tune_training(config, failing)
    assert len(choice.trials) == 2 and len(choice.failed) == 1
    assert choice.test is None and "test" not in looks
    assert (
        json.loads((tmp_path / "choice.json").read_text())["choices"][0]["test"] is None
    )
    assert {row["test"] for row in read_csv(tmp_path / "trials.csv")} == {""}
    assert "UTA_tr" in tune.tuning_report.table([choice], StackOverflow.metrics[0])
    log.clear()
    again = tune_training(config, fake_training(token_store, log))
    assert [c[-3] for c in log] == ["--k=5"]
    assert len(again.trials) == 3 and not again.failed and again.test is not None
    assert looks.count("test") == 2  # One sample, of two kinds of sentences.


def test_the_report_of_every_trial_says_how_many_runs_were_looked_at(
    token_store, tmp_path
):
    config = search_of(tmp_path)
    log: list = []
    tune_training(config, fake_training(token_store, log, fail_on="5"))
    tune_training(config, fake_training(token_store, log))
    # Three points, one of them in two attempts.
    cost = privacy.training_search(0.5, 1e-6, runs=4)
    summary = json.loads((tmp_path / "choice.json").read_text())
    assert summary["tuning"] == cost.to_json() and cost.rho_total == 2.0
    assert cost.paragraph in (tmp_path / "privacy_of_tuning.md").read_text()
    assert len(config.folders()) == 3
    for folder in config.folders():
        searches, page = report_of(folder)
        assert searches == {"../..": cost.to_json()}
        assert cost.paragraph in page and "runs looked at: 4" in page


def test_a_search_that_is_broken_off_has_told_the_trials_so_far(token_store, tmp_path):
    config = search_of(tmp_path)
    train_one = fake_training(token_store, [])

    def breaking(command):
        if "--k=5" in command:
            raise KeyboardInterrupt
        train_one(command)

    with pytest.raises(KeyboardInterrupt):
        tune_training(config, breaking)
    for folder in config.folders():
        assert report_of(folder)[0]["../.."]["runs"] == 2


def test_runs_without_noise_are_counted_too(token_store, tmp_path):
    config = search_of(tmp_path, parameters=(2, 3))
    tune_training(config, fake_training(token_store, [], noise_multiplier=0.0))
    for folder in config.folders():
        searches, page = report_of(folder)
        assert searches["../.."]["runs"] == 2
        assert "2 runs, of which at least one has no guarantee" in page


def in_process(command, cache):
    """Runs a trial's command as the binary does, flags and all."""
    options, config, _ = command_lines.options(StackOverflow, "train", *command[4:])
    return training.run(StackOverflow(config), options.out, compiled=cache)


@pytest.mark.slow
def test_real_trials_never_draw_the_test_sample(token_store, tmp_path, looks):
    """Trained for real: the test data are drawn once, for the chosen model."""
    config = search_of(
        tmp_path,
        parameters=(1, 2),
        train_flags=(
            f"--store={token_store}",
            "--rounds=3",
            "--clients_per_round=2",
            "--max_sentences=8",
            "--embedding_size=4",
            "--lstm_size=5",
            "--noise_multiplier=1",
            "--validation_examples=20",
            "--test_examples=20",
        ),
        examples=20,
    )
    log: list = []
    with Compiled() as cache:

        def run_command(command):
            log.append(command)
            before = looks.count("test")
            outcome = in_process(command, cache)
            assert looks.count("test") == before == 0
            assert outcome.test == {"iterate": {}, "aggregate": {}}

        choice = tune_training(config, run_command)
        assert len(log) == 2 and choice.test is not None
        assert looks.count("test") == 2  # One sample, of two kinds of sentences.
        assert list(tmp_path.rglob("test.csv")) == []
        assert len(list((tmp_path / "trials").rglob("validation.csv"))) == 2
        # A trial that is run again is recognised as done, and its report stays.
        before = files_of(tmp_path)
        tables = {p: p.read_bytes() for p in tmp_path.rglob("*.csv")}
        looks.clear()
        for command in log:
            in_process(command, cache)
        assert "test" not in looks and files_of(tmp_path) == before
        assert {p: p.read_bytes() for p in tmp_path.rglob("*.csv")} == tables
        for folder in config.folders():
            assert report_of(folder)[0]["../.."]["runs"] == 2
        # Also one that was cut short before its folder was taken.
        folder = config.folder(choice.best)
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif not path.name.startswith("privacy_report"):
                path.unlink()
        in_process(log[config.grid().index(choice.best)], cache)
        assert report_of(folder)[0]["../.."]["runs"] == 2
        assert "2 private runs" in report_of(folder)[1]


def test_the_command_of_a_trial():
    config = tune.TrainingConfig(
        out="o", averager="ema", parameters=(0.95,), train_flags=("--epsilon=8",)
    )
    assert config.grid() == [Candidate("EMA_tr", 0.95, 0)]
    assert config.command("stackoverflow", config.grid()[0]) == [
        sys.executable,
        "-m",
        "stackoverflow",
        "train",
        "--epsilon=8",
        "--test_examples=0",
        "--averager=ema",
        "--ema_decay=0.95",
        "--start_round=0",
        f"--out={os.path.join('o', 'trials', 'ema-0.95-from-0')}",
    ]
    with pytest.raises(ValueError, match="averager"):
        tune.TrainingConfig(out="o", averager="pda", parameters=(1,))
