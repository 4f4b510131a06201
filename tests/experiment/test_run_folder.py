"""What a run folder keeps, refuses and restores, from configuration to files."""

import collections
import functools
import json
import logging
import os
import re
import shutil

import pytest
import tensorflow as tf

from pds import sampler
from stackoverflow.data import token_store
from stackoverflow.task import StackOverflow
from tests.experiment.run_contents import contents
from tests.experiment.train_binary import tiny_config
from tff_agg import checkpoints
from tff_agg.experiment.run import ledger, loop, recording, releasing, tables
from tff_agg.experiment.run import run as training


class Stopped(BaseException):
    """What no handler of the code under test may swallow."""


class StopAfter(recording.Observer):
    """Ends the run when a round was reported."""

    def __init__(self, last):
        self._last = last

    def on_round(self, done, facts):
        if done == self._last:
            raise Stopped


@pytest.fixture
def run(cache):
    return functools.partial(training.run, compiled=cache)


@pytest.fixture(scope="module")
def dead(cache, token_store, tmp_path_factory):
    """The folder of a run that died in round 4 of 6, and its configuration."""
    task = StackOverflow(tiny_config(token_store, insecure_noise_seed=7))
    folder = tmp_path_factory.mktemp("dead") / "run"
    with pytest.raises(Stopped):
        training.run(task, folder, StopAfter(4), compiled=cache)
    return folder, task


@pytest.fixture
def stopped(dead, tmp_path):
    """A copy of it, which a test may change."""
    folder, task = dead
    return shutil.copytree(folder, tmp_path / "run"), task


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    made = {}

    def get(run, config):
        key = json.dumps(config.config.to_json())
        if key not in made:
            folder = tmp_path_factory.mktemp("undisturbed") / "run"
            run(config, folder)
            made[key] = folder
        return made[key]

    return get


def events(folder):
    """Returns how often each step and name is in the event files."""
    found = collections.Counter()
    for path in (folder / "tensorboard").glob("events.*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            found.update((event.step, value.tag) for value in event.summary.value)
    return found


def everything(folder):
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


# --- a folder belongs to a run from its first round on -----------------------------


def test_a_run_that_failed_before_its_first_round_blocks_no_other(
    run, make_task, tmp_path, monkeypatch
):
    folder = tmp_path / "run"

    def fail(self, done):
        raise MemoryError

    with monkeypatch.context() as broken:
        # The ledger is begun, and then nothing more.
        broken.setattr(recording.Recorder, "start", fail)
        with pytest.raises(MemoryError):
            run(make_task(), folder)
    assert (folder / "config.json").exists() and (folder / "ledger.jsonl").exists()
    wanted = make_task(clip_norm=0.25)
    run(wanted, folder)
    assert json.loads((folder / "config.json").read_text())["clip_norm"] == 0.25
    run(wanted, tmp_path / "other")
    assert contents(folder) == contents(tmp_path / "other")
    with pytest.raises(loop.IdentityError, match="clip_norm"):
        run(make_task(), folder)


# --- rounds are released once ------------------------------------------------------


def test_another_version_of_the_sampler_is_refused(stopped, run, monkeypatch):
    folder, config = stopped
    before = everything(folder)
    monkeypatch.setattr(sampler, "_STREAM_ROUND", 77)
    with pytest.raises(loop.IdentityError, match="sampler: was"):
        run(config, folder)
    assert everything(folder) == before


@pytest.mark.parametrize(
    "removed",
    [
        ["checkpoints"],
        ["checkpoints", "ledger.jsonl"],
        ["checkpoints", "ledger.jsonl", "metrics.csv", "validation.csv"],
        ["checkpoints", "ledger.jsonl", "config.json"],
        ["ledger.jsonl"],
        ["config.json"],
    ],
)
def test_a_folder_that_shows_rounds_is_not_begun_anew(stopped, run, removed):
    folder, config = stopped
    for name in removed:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = set(everything(folder))
    with pytest.raises(loop.ResumeError, match="spend the privacy budget again"):
        run(config, folder)
    assert set(everything(folder)) == before


def test_a_run_goes_on_with_other_lanes(stopped, run, make_task):
    folder, _ = stopped
    run(make_task(lanes=2), folder)
    assert tables.read_columns(folder / "metrics.csv")["round"] == list(range(1, 7))


# --- nothing is written before everything has been checked -------------------------


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"server_momentum": 1.5}, "momentum"),
        ({"averager": "ema", "ema_decay": 1.5}, "decay"),
        ({"lstm_size": 0}, "lstm_size"),
        ({"embedding_size": 0}, "embedding_size"),
        ({"clients_per_round": 300}, "users"),
    ],
)
def test_what_is_refused_leaves_no_folder(run, make_task, tmp_path, bad, message):
    with pytest.raises(ValueError, match=message):
        run(make_task(**bad), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_empty_split_leaves_no_folder(run, make_task, tmp_path, monkeypatch):
    empty = {"questions": 0, "answers": 0}
    summary = {"train": empty, "heldout": empty, "test": empty}
    monkeypatch.setattr(token_store.TokenStore, "summary", summary)
    with pytest.raises(ValueError, match="has no sentences"):
        run(make_task(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- the report --------------------------------------------------------------------


def test_the_report_says_how_many_rounds_are_done(run, make_task, tmp_path):
    config = make_task(insecure_noise_seed=None)
    folder, seen = tmp_path / "run", []

    class Look(StopAfter):
        def on_round(self, done, facts):
            # What a kill in this moment would leave behind.
            seen.append((folder / "privacy_report.md").read_text())
            super().on_round(done, facts)

    with pytest.raises(Stopped):
        run(config, folder, Look(2))
    for page in seen:
        assert re.search(r"after \d+ rounds", page) is None
        assert "of the 6 planned rounds are done is in the run's `ledger.jsonl`" in page
        assert "noise from AES-256-CTR" in page
    content = json.loads((folder / "privacy_report.json").read_text())
    assert content["guarantee"]["rounds_done"] == 2
    assert "after 2 rounds" in (folder / "privacy_report.md").read_text()
    run(config, folder)
    content = json.loads((folder / "privacy_report.json").read_text())
    assert content["guarantee"]["rounds_done"] == 6
    assert content["guarantee"]["rho_so_far"] == content["guarantee"]["rho"]


# --- tables and event files --------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("metrics.csv", "removed"),
        ("metrics.csv", "changed"),
        ("validation.csv", "cut"),
        ("timing.csv", "changed"),
    ],
)
def test_a_table_that_lost_rounds_is_restored_with_a_word(
    stopped, run, undisturbed, caplog, name, how
):
    folder, config = stopped
    path = folder / name
    timing = (folder / "timing.csv").read_text()
    if how == "removed":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([*lines[:1], "7" + lines[1], *lines[2:]]))
    with caplog.at_level(logging.WARNING):
        run(config, folder)
    assert f"{path} did not have what the run's ledger says" in caplog.text
    assert contents(folder) == contents(undisturbed(run, config))
    # Round 4 was not told to its end: its row is written when it is told again.
    assert (folder / "timing.csv").read_text().startswith(timing)


def test_every_round_is_in_tensorboard_once(stopped, run, undisturbed):
    folder, config = stopped
    run(config, folder)
    assert set(events(folder).values()) == {1}
    assert events(folder) == events(undisturbed(run, config))


def test_lost_event_files_are_written_again(stopped, run, undisturbed):
    folder, config = stopped
    (path,) = (folder / "tensorboard").glob("events.*")
    os.truncate(path, path.stat().st_size // 2)
    run(config, folder)
    expected = events(undisturbed(run, config))
    # The rest of the file that was cut cannot be read; what it lost is in the next.
    os.unlink(path)
    later = events(folder)
    assert set(later.values()) == {1}
    assert {step for step, _ in later} >= {3, 4, 5, 6}
    assert set(later) <= set(expected)


def test_a_run_killed_before_its_seed_was_dropped_is_not_yet_done(
    run, make_task, tmp_path, monkeypatch
):
    config, folder = make_task(test_examples=0), tmp_path / "run"

    def die(self, done):
        if done == config.config.rounds:
            raise Stopped

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(releasing.Releases, "_drop_old_states", die)
        run(config, folder)
    store = checkpoints.CheckpointStore(folder / "checkpoints")
    assert store.rounds("state") == [0, 1, 2, 3, 4, 5, 6]
    run(config, folder)
    assert store.rounds("state") == [6]


def test_tables_of_a_finished_run_are_written_from_its_ledger(
    run, make_task, tmp_path, monkeypatch, caplog
):
    """They are lost; nobody looks at the test data a second time to get them back."""
    task, folder = make_task(), tmp_path / "run"
    first = run(task, folder)
    before, shown = contents(folder), events(folder)
    timing = (folder / "timing.csv").read_bytes()
    for name in ("metrics.csv", "validation.csv", "timing.csv", "test.csv"):
        (folder / name).unlink()
    shutil.rmtree(folder / "tensorboard")

    def look(*arguments):
        raise AssertionError("models were judged again")

    monkeypatch.setattr(recording.SampleScorer, "__call__", look)
    again = run(task, folder)
    assert again.test == first.test and again.test["aggregate"]["all"]
    assert contents(folder) == before and events(folder) == shown
    assert (folder / "timing.csv").read_bytes() == timing
    assert f"{folder / 'test.csv'} did not have what" in caplog.text


def test_a_finished_run_that_is_asked_again_writes_nothing(run, make_task, tmp_path):
    task, folder = make_task(), tmp_path / "run"
    run(task, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    run(task, folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_the_ledger_is_read_once(stopped, run, monkeypatch):
    folder, task = stopped
    real, parsed = ledger._parse, []

    def parse(content, path):
        parsed.append(path)
        return real(content, path)

    monkeypatch.setattr(ledger, "_parse", parse)
    run(task, folder)
    assert parsed == [folder / "ledger.jsonl"]
    assert ledger.Ledger(folder).read().tested["aggregate"]["all"]
