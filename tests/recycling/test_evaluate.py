"""`evaluate`: every way to use checkpoints, beside the naive computation."""

import json
import pathlib
import shutil

import numpy as np
import pytest

from stackoverflow.task import StackOverflow
from tests.recycling.written_runs import read_csv, write_run
from tff_agg import averaging
from tff_agg.experiment.commands import evaluate
from tff_agg.experiment.commands.evaluate import EvaluateOptions
from tff_agg.experiment.run.recording import SampleScorer
from tff_agg.experiment.runs import Run, kinds, names_of
from tff_agg.experiment.study import figures, show
from tff_agg.experiment.study.search import perform
from tff_agg.recycling.methods import parse_methods
from tff_agg.recycling.series import ALWAYS_THE_SAME

_SENTENCES = 60
METRICS = [metric.name for metric in StackOverflow.metrics]


def options(runs, out, methods="", **changes):
    given = {"runs": tuple(runs), "out": str(out), "methods": parse_methods(methods)}
    return EvaluateOptions(**{"examples": 20, **given, **changes})


def evaluated(given, task=StackOverflow):
    """Returns the results and what is shown of them."""
    found = perform(evaluate.declare(task, given), given.out)
    return found, evaluate.report(task, given, found)


def naive_labels(run, rows):
    """Scores [rounds, positions, ids] and targets, one model at a time."""
    predict = run.task.predictor()
    found = [predict(run.load(t), rows) for t in run.rounds()]
    return np.stack([f.scores for f in found]).astype(np.float64), found[0].targets


def mean_of(weights):
    return {
        name: np.mean([np.float64(w[name]) for w in weights], axis=0).astype(np.float32)
        for name in weights[0]
    }


def fold(averager, run, t):
    *_, aggregate = averaging.fold(averager, [run.load(i) for i in range(t + 1)])
    return aggregate


def test_evaluate_equals_the_naive_computation(runs, tmp_path):
    methods = "uta:2,4 ema_cold:0.5 ema:0.9999 pda:1 opa:1,3,20 omv:1,3,20"
    given = options(
        runs[:2], tmp_path, methods, series="iterate", examples=_SENTENCES, span=6,
        every=3, memory_mb=0.25,
    )  # fmt: skip
    results, report = evaluated(given)
    rows = [r for r in read_csv(tmp_path / "scores.csv") if r["group"] == "all"]
    found: dict = {}
    for row in rows:
        key = (row["folder"], row["method"], int(row["round"]))
        found.setdefault(key, {})[row["metric"]] = float(row["value"])
    assert len(found) == 2 * 3 * 12
    assert {number for *_, number in found} == {2, 5, 8}
    distinct = set()
    for folder in runs[:2]:
        run = Run.open(StackOverflow, folder)
        examples = run.task.flat_sample(run.task.fixed_sample("heldout", _SENTENCES))
        score = run.scorer("heldout", _SENTENCES)
        scores, targets = naive_labels(run, examples)
        earlier = averaging.ema(decay=0.9999, warm_up=True)
        for t in (2, 5, 8):
            last_four = [run.load(i) for i in range(max(0, t - 3), t + 1)]
            expected = {
                "last": score(run.load(t)),
                "uta:4": score(mean_of(last_four)),
                "ema_cold:0.5": score(fold(averaging.ema(decay=0.5), run, t)),
                "pda:1": score(fold(averaging.pda(1.0), run, t)),
                "ema:0.9999": score(fold(earlier, run, t)),
            }
            for k in (1, 3, 20):
                window = scores[max(0, t - k + 1) : t + 1]
                right = int((window.mean(axis=0).argmax(axis=1) == targets).sum())
                expected[f"opa:{k}"] = {"accuracy": right / len(targets)}
            expected["omv:1"] = expected["opa:1"]
            for method, value in expected.items():
                own = found[folder, method, t]
                assert {name: own[name] for name in value} == value, (method, t)
                distinct.add(value["accuracy"])
            # One checkpoint alone: forward passes and the evaluator agree.
            alone, last = expected["opa:1"], expected["last"]
            assert alone["accuracy"] == last["accuracy"]
            assert 0 <= last["accuracy_with_oov"] <= 1 and last["loss"] > 0
    assert len(distinct) > 5  # The comparison could have failed.
    report.write(tmp_path)
    assert (tmp_path / "accuracy.png").stat().st_size > 5000
    last = results.lines[0]
    for name in METRICS:
        values = [found[folder, "last", 8][name] for folder in runs[:2]]
        assert results.values(last, name) == values
    combined = results.line(last.row, "opa:3")
    assert results.values(combined) and not results.values(combined, "loss")
    shown = report.shown()
    assert "UTA_inf 4" in shown and "checkpoints of θ;" in shown
    assert "seed0, seed1: " in shown


class ByLoss(StackOverflow):
    metrics = tuple(reversed(StackOverflow.metrics[:3]))


def test_outputs_are_judged_under_the_names_of_their_own_metrics(runs, tmp_path):
    """An accuracy under the name of a loss would prefer the wrong models."""
    given = options(runs[:1], tmp_path, "opa:2 omv:2")
    results, report = evaluated(given, ByLoss)
    assert ByLoss.metrics[0].name == "loss"
    last, *combined = results.lines
    assert len(combined) == 2 and results.values(last)
    for line in combined:
        assert results.values(line) == []
        assert 0 <= results.values(line, "accuracy")[0] <= 1
    # Nothing of theirs can be drawn over the loss, and all else is.
    (curves,) = evaluate.panels(given, results).values()
    assert list(curves) == ["last"]
    assert "OMV 2" in report.shown()


def shortened(run, folder, last):
    """Copies a run that has come no further than a round."""
    shutil.copytree(run, folder)
    for number in range(last + 1, 9):
        (folder / "checkpoints" / "manifests" / f"{number:09d}.json").unlink()
    return str(folder)


def test_a_run_that_has_only_begun_is_not_averaged_with_finished_ones(runs, tmp_path):
    young = shortened(runs[1], tmp_path / "young", 3)
    with pytest.raises(ValueError, match=r"round 3.*young|young.*round 3"):
        evaluated(options([runs[0], young], tmp_path / "out"))
    # Alone it stands for what it is.
    results, _ = evaluated(options([young], tmp_path / "out"))
    assert {row["round"] for row in read_csv(tmp_path / "out" / "scores.csv")} == {"3"}
    assert results.lines


def test_a_run_that_has_gone_on_is_not_shown_as_it_was(runs, tmp_path):
    """A score belongs to the weights that it was computed of."""
    run = shortened(runs[0], tmp_path / "run", 7)
    given = options([run], tmp_path / "out", series="iterate")
    before, _ = evaluated(given)
    shutil.rmtree(run)
    shutil.copytree(runs[1], run)
    # The same folder and the same settings but for the seed; other weights.
    config = json.loads((pathlib.Path(run) / "config.json").read_text())
    (pathlib.Path(run) / "config.json").write_text(json.dumps(config | {"seed": 0}))
    after, _ = evaluated(given)
    (line,) = after.lines
    score = Run.open(StackOverflow, runs[1]).scorer("heldout", 20)
    other = Run.open(StackOverflow, runs[1]).load(8)
    assert after.values(line, "loss") == [score(other)["loss"]]
    assert after.values(line, "loss") != before.values(before.lines[0], "loss")


def test_what_was_scored_is_not_scored_again(runs, tmp_path, monkeypatch):
    scored = []
    score = SampleScorer.__call__

    def count(self, weights):
        scored.append(weights)
        return score(self, weights)

    monkeypatch.setattr(SampleScorer, "__call__", count)
    evaluated(options(runs[:2], tmp_path, "uta:2"))
    assert len(scored) == 4
    evaluated(options(runs[:2], tmp_path, "uta:2,3"))
    assert len(scored) == 6


def test_what_was_scored_before_an_error_is_kept(runs, tmp_path, monkeypatch):
    from tff_agg.recycling import outputs

    scored = []
    score = SampleScorer.__call__

    def count(self, weights):
        scored.append(weights)
        return score(self, weights)

    def broken(*arguments, **named):
        raise ValueError("no room for predictions")

    monkeypatch.setattr(SampleScorer, "__call__", count)
    with monkeypatch.context() as failing:
        failing.setattr(outputs, "aggregate_outputs", broken)
        with pytest.raises(ValueError, match="no room"):
            evaluated(options(runs[:2], tmp_path, "uta:2 opa:2"))
    assert len(scored) == 4
    evaluated(options(runs[:2], tmp_path, "uta:2 opa:2"))
    assert len(scored) == 4


def test_runs_of_several_kinds_are_named_and_explained_once(
    runs, token_store, tmp_path, monkeypatch
):
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    other = write_run(tmp_path / "uta", token_store, seed=9, averager="uta", k=7)
    given = options((*runs[:2], other), tmp_path / "out", "uta:2")
    found = kinds(StackOverflow, given.runs)
    assert [kind.own for kind in found] == [
        {"averager": "last", "k": 3},
        {"averager": "uta", "k": 7},
    ]
    _, report = evaluated(given)
    report.write(tmp_path / "out")
    names = [kind.name for kind in found]
    assert [row[0] for row in report.tables["table"].rows] == [
        *([names[0]] * 2),
        *([names[1]] * 2),
        ALWAYS_THE_SAME,
    ]
    assert report.tables["runs"].header == ["settings that differ", *names]
    assert report.tables["runs"].rows == [["averager", "last", "uta"], ["k", "3", "7"]]
    # Each is compared with its own last checkpoint.
    *rows, _ = report.tables["table"].rows
    assert [bool(row[-1]) for row in rows] == [False, True] * 2
    (figure,) = drawn
    left, right = figure.axes
    assert [axis.get_title() for axis in figure.axes] == names
    assert left.get_ylim() == right.get_ylim()


def test_titles_of_panels_do_not_overprint_each_other(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    curve = {"last": figures.Curve([1, 2], [[0.1, 0.2]])}
    panels = {f"{name}, a rather long name " * 6: curve for name in "ab"}
    figures.curves(tmp_path / "a.png", panels)
    figure = drawn[0]
    figure.canvas.draw()
    left, right = (axis.title.get_window_extent() for axis in figure.axes)
    assert left.x1 < right.x0


def test_runs_are_named_by_what_tells_them_apart(runs, token_store, tmp_path):
    assert names_of(["a/one/seed0", "a/two/seed0"]) == {
        "a/one/seed0": "one/seed0",
        "a/two/seed0": "two/seed0",
    }
    with pytest.raises(ValueError, match="twice"):
        names_of([runs[0], f"{runs[0]}/"])
    (kind,) = kinds(StackOverflow, runs)
    assert kind.name == "seed0 … seed3 (4 runs)" and kind.own == {}


def test_test_data_chooses_no_parameter_for_the_picture(runs, tmp_path, monkeypatch):
    def shown(split, metric):
        class Judged(StackOverflow):
            metrics = (metric, *StackOverflow.metrics[:1])

        given = options(
            runs[:1], tmp_path, "uta:2,8", split=split, series="iterate", examples=60
        )
        found, _ = evaluated(given, Judged)
        (curves,) = evaluate.panels(given, found).values()
        by = {line.name: found.values(line) for line in found.lines[1:]}
        return list(curves)[1], show.best(by, metric)

    loss = StackOverflow.metrics[2]
    assert loss.name == "loss"
    bests = set()
    for metric in (loss, loss._replace(higher_is_better=True)):
        title, best = shown("heldout", metric)
        assert title == f"UTA_inf {best.removeprefix('uta:')}"
        bests.add(best)
        assert shown("test", metric)[0] == "UTA_inf 2"
    assert bests == {"uta:2", "uta:8"}


def test_the_rounds_of_a_curve():
    assert evaluate.curve_rounds(range(101), 100, 30, 10) == (70, 80, 90, 100)
    assert evaluate.curve_rounds(range(101), 100, 0, 10) == (100,)
    assert evaluate.curve_rounds([0, 50, 100], 100, 100, 25) == (0, 50, 100)
    with pytest.raises(ValueError, match="every must be at least 1"):
        options((), "", every=0)
    with pytest.raises(ValueError, match="span must be at least 0"):
        options((), "", span=-1)
