"""Models that are trained and saved, trained in memory, or loaded: the same scores."""

import dataclasses
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.experiment import tiny_samples
from tests.experiment.tiny_samples import Tiny
from tests.study.tiny_studies import Line, arm, study, use
from tff_agg import privacy
from tff_agg.checkpoints import CheckpointStore
from tff_agg.checkpoints.retention import Retention
from tff_agg.experiment.run.recording import SampleScorer
from tff_agg.experiment.study.declare import Arm, secret
from tff_agg.experiment.study.scores import Scores
from tff_agg.experiment.study.search import perform
from tff_agg.experiment.study.train import in_memory, loaded, saved

METHODS = "last uta:3,5 ema:0.5 opa:2 omv:3"


def of_methods(base, **changes):
    """A line for every method, on both series, and validations over rounds."""

    lines = [
        Line("row", f"{series} {method}", base, use(method, series))
        for series in ("iterate", "aggregate")
        for method in METHODS.replace("uta:3,5", "uta:3 uta:5").split()
    ]
    return study(*lines, seeds=(0,), drawn=lambda *_: (4, 8), **changes)


def values_of(found):
    return {
        (line.name, metric): (found.curve(line, metric), found.values(line, metric))
        for line in found.lines
        for metric in ("accuracy", "loss")
    }


@pytest.fixture(scope="module")
def base():
    return arm("UTA_tr", 1.0, averager="uta", k=2, keep_last=0)


@pytest.fixture(scope="module")
def kept(base, tmp_path_factory):
    """A study whose runs are saved, and its results."""
    out = tmp_path_factory.mktemp("saved")
    return of_methods(base, train=saved()), perform(
        of_methods(base, train=saved()), out
    )


def test_runs_in_memory_give_the_scores_of_saved_ones(base, kept, tmp_path):
    _, whole = kept
    found = perform(of_methods(base, train=in_memory(initial=True)), tmp_path)
    assert values_of(found) == values_of(whole)
    losses = [value for line in found.lines for value in found.values(line, "loss")]
    assert len(set(losses)) > 6, "too much alike to tell"


def test_runs_that_are_there_give_the_same_scores(kept, tmp_path):
    tiny, whole = kept
    (folder,) = whole.folders(whole.lines[0])
    there = Arm("there", tiny.lines[0].arm.config, folders=(str(folder),))
    found = perform(of_methods(there, train=loaded()), tmp_path)
    assert values_of(found) == values_of(whole)


def test_what_is_dropped_in_memory_is_what_a_store_drops(tmp_path):
    base = arm("base", 1.0, keep_last=3, keep_every=4)
    line = Line("row", "EMA_inf", base, use("ema:0.5"))
    few = study(line, train=saved(), seeds=(0,))
    keep = Retention(keep_last=3, keep_every=4)
    also = study(line, train=in_memory(keep, initial=True), seeds=(0,))
    every = study(line, train=in_memory(initial=True), seeds=(0,))
    (one,), (two,), (other,) = (
        perform(tiny, tmp_path / str(i)).values(line, "loss")
        for i, tiny in enumerate((few, also, every))
    )
    assert one == two != other


def test_windows_that_do_not_fit_into_memory_are_refused(tmp_path):
    line = Line("row", "UTA_inf", arm("base", 1.0), use("uta:3"))
    # 28 numbers of four bytes: 336 bytes for three checkpoints.
    perform(study(line, train=in_memory(memory_budget=336)), tmp_path / "fits")
    with pytest.raises(MemoryError, match="3 checkpoints of 28 numbers"):
        perform(study(line, train=in_memory(memory_budget=335)), tmp_path / "not")


def test_a_run_that_was_broken_off_goes_on(base, tmp_path, monkeypatch):
    from tff_agg.experiment.run import recording

    record = recording.Recorder.record

    def until_six(self, report):
        if report.round == 6:
            raise KeyboardInterrupt
        return record(self, report)

    monkeypatch.setattr(recording.Recorder, "record", until_six)
    tiny = of_methods(base, train=saved())
    with pytest.raises(KeyboardInterrupt):
        perform(tiny, tmp_path)
    assert not Scores(tmp_path).rows([])
    rounds = []

    def count(self, report):
        rounds.append(report.round)
        return record(self, report)

    monkeypatch.setattr(recording.Recorder, "record", count)
    found = perform(tiny, tmp_path)
    assert rounds == [6, 7, 8, 9, 10, 11, 12]
    del rounds[:]
    assert values_of(perform(tiny, tmp_path)) == values_of(found)
    assert rounds == []


def test_a_run_that_was_trained_again_with_another_secret_is_another_run(tmp_path):
    line = Line("row", "last", arm("base", 1.0))
    tiny = study(line, train=saved(), seeds=(0,), seeding=secret)
    before = perform(tiny, tmp_path)
    shutil.rmtree(tmp_path / "runs")
    after = perform(tiny, tmp_path)
    assert before.frame.height == after.frame.height
    assert len({p.name[:32] for p in (tmp_path / "scores").iterdir()}) == 2
    assert before.values(line, "loss") != after.values(line, "loss")


def test_a_run_with_more_rounds_is_scored_again(tmp_path):
    tiny = study(Line("row", "last", arm("base", 1.0)), train=saved(), seeds=(0,))
    whole = perform(tiny, tmp_path / "a")
    (folder,) = whole.folders(tiny.lines[0])
    there = Arm("there", tiny.lines[0].arm.config, folders=(str(folder),))
    line = Line("row", "last", there)
    first = perform(study(line, train=loaded()), tmp_path / "b").values(line, "loss")
    store = CheckpointStore(folder / "checkpoints")
    other = {n: np.zeros_like(w) for n, w in store.load(12, "aggregate").items()}
    store.save(13, {"iterate": other, "aggregate": other})
    longer = study(line, train=loaded(), rounds=lambda config: (13,))
    second = perform(longer, tmp_path / "b").values(line, "loss")
    assert first == whole.values(tiny.lines[0], "loss") != second


def test_what_training_has_validated_is_not_computed_again(tmp_path, monkeypatch):
    scored = []
    score = SampleScorer.__call__

    def count(self, weights):
        scored.append(weights)
        return score(self, weights)

    monkeypatch.setattr(SampleScorer, "__call__", count)
    base = arm("base", 1.0, validation_examples=30)

    line = Line("row", "last", base)
    tiny = study(line, train=saved(), drawn=lambda *_: (4, 8, 12), seeds=(0,))
    found = perform(tiny, tmp_path)
    assert found.curve(line).rounds == [4, 8, 12]
    # Three validations in training, and the test.
    assert len(scored) == 4


def test_a_search_is_told_in_the_reports_of_the_runs_it_looked_at(tmp_path):
    searched = study(Line("row", "last", arm("base", 1.0, 2.0)), train=saved())
    perform(searched, tmp_path / "training")
    runs = [*(tmp_path / "training" / "runs").iterdir()]
    told = [list(privacy.searches_of(folder).values()) for folder in runs]
    # Two candidates were looked at; the two runs of the table came later.
    assert sorted(map(len, told)) == [0, 0, 1, 1]
    assert {search["runs"] for found in told for search in found} == {2}

    own = study(Line("row", "UTA_inf", arm("base", 1.0), use(METHODS)), train=saved())
    perform(own, tmp_path / "inference")
    runs = [*(tmp_path / "inference" / "runs").iterdir()]
    told = [privacy.searches_of(folder) for folder in runs]
    (search,) = (found["../.."] for found in told if found)
    assert search["points"] == 6


def test_what_a_run_was_tested_on_is_not_looked_at_again(tmp_path, monkeypatch):
    from tff_agg.experiment.run import run as training

    config = tiny_samples.config(test_examples=30)
    outcome = training.run(Tiny(config), tmp_path / "run")
    monkeypatch.setattr(SampleScorer, "__call__", None)
    line = Line("row", "last", Arm("there", config, folders=(str(tmp_path / "run"),)))
    found = perform(study(line, train=loaded()), tmp_path / "out")
    assert found.values(line) == [outcome.test["aggregate"]["all"]["accuracy"]]


def test_declaring_a_study_imports_nothing_heavy():
    program = (
        "import sys\n"
        "from tff_agg.experiment.study import declare, train, search, results, show\n"
        "for name in ('tensorflow', 'tensorflow_federated', 'jax', 'polars', 'rich'):\n"
        "    assert name not in sys.modules, name\n"
        "print('light')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert run.stdout == "light\n", run.stderr


def test_runs_may_stop_before_their_end_and_go_on(tmp_path):
    line = Line("row", "last", arm("base", 1.0))
    whole = study(line, train=saved(), seeds=(0,), drawn=lambda *_: (8,))
    part = dataclasses.replace(whole, train=saved(until=8), rounds=lambda config: (8,))
    stopped = perform(part, tmp_path).values(line, "loss")
    (folder,) = (tmp_path / "runs").iterdir()
    done = CheckpointStore(folder / "checkpoints").rounds("iterate")
    assert max(done) == 8 and len(stopped) == 1
    # Told of the run as it was at that round, also when it has gone on.
    perform(whole, tmp_path)
    assert perform(part, tmp_path).values(line, "loss") == stopped
