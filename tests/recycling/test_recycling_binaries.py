"""The binaries, end to end on run folders that the tests write themselves."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import one_pass
from stackoverflow.task import StackOverflow
from tests import command_lines, forked
from tests.recycling.written_runs import read_csv, write_run
from tff_agg.experiment.commands import evaluate, uncertainty
from tff_agg.experiment.runs import Run, open_runs
from tff_agg.recycling.methods import parse_methods

_SENTENCES = 60
METRICS = [metric.name for metric in StackOverflow.metrics]


def rows_of(run, split, sentences):
    return run.task.flat_sample(run.task.fixed_sample(split, sentences))


def test_predictions_come_in_the_order_of_the_words(runs):
    run = Run.open(StackOverflow, runs[0])
    rows = rows_of(run, "heldout", 20)
    predict = run.task.predictor()
    whole = predict(run.load(3), rows)
    real = rows[:, 1:]
    words = (real > 0) & (real <= run.task.sizes.vocab_size)
    np.testing.assert_array_equal(whole.targets, real[words])
    parts = [predict(run.load(3), rows[i : i + 7]) for i in range(0, 20, 7)]
    np.testing.assert_array_equal(
        np.concatenate([part.targets for part in parts]), whole.targets
    )
    np.testing.assert_allclose(
        np.concatenate([part.scores for part in parts]), whole.scores, rtol=1e-5
    )
    assert predict(run.load(3), rows[:0]).scores.shape == (0, run.task.classes)


def test_what_is_no_run_or_not_alike_is_refused(runs, token_store, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config.json"):
        open_runs(StackOverflow, [str(tmp_path)])
    with pytest.raises(ValueError, match="no run folders"):
        open_runs(StackOverflow, [])
    odd = tmp_path / "odd"
    shutil.copytree(runs[0], odd)
    config = json.loads((odd / "config.json").read_text())
    (odd / "config.json").write_text(json.dumps(config | {"lstm_size": 6}))
    with pytest.raises(ValueError, match="other sizes"):
        open_runs(StackOverflow, [runs[0], str(odd)])
    (odd / "config.json").write_text(json.dumps(config | {"data_fingerprint": "x"}))
    with pytest.raises(ValueError, match="other data"):
        open_runs(StackOverflow, [str(odd)])


def test_uncertainty_compares_both_estimators(runs, tmp_path):
    config = uncertainty.UncertaintyConfig(
        runs=runs,
        out=str(tmp_path),
        sizes=(2, 4, 50),
        repeats=3,
        examples=30,
        memory_mb=0.125,
        series="iterate",
    )
    progress = []
    findings = uncertainty.run(StackOverflow, config, lambda *a: progress.append(a))
    found = findings.widths
    assert findings.spreads == () and "too few" in findings.notes[0]
    assert found.sizes == (2, 4)
    assert found.independent.shape == found.checkpoints.shape == (3, 2)
    assert progress[-1][1] == progress[-1][2] > 3 * 2 * 4  # In several portions.
    # With all four runs the order does not matter: a naive computation says the same.
    opened = [Run.open(StackOverflow, folder) for folder in runs]
    examples = rows_of(opened[0], "heldout", 30)
    predict = opened[0].task.predictor()
    scores = np.stack([predict(run.load(8), examples).scores for run in opened])
    scores = scores.astype(np.float64)
    best = scores.mean(axis=0).argmax(axis=1)
    chosen = scores[:, np.arange(len(best)), best].std(axis=0, ddof=1)
    from tff_agg.recycling.uncertainty import interval_factor

    np.testing.assert_allclose(
        found.independent[:, 1], interval_factor(4) * chosen.mean(), rtol=1e-6
    )
    rows = read_csv(tmp_path / "widths.csv")
    assert len(rows) == 2 * 3 * 2
    assert (tmp_path / "widths.png").stat().st_size > 5000
    assert f"{found.ratio[0]:.2f}" in uncertainty.table(findings)


def test_uncertainty_of_a_single_run(runs, tmp_path):
    config = uncertainty.UncertaintyConfig(
        runs=runs[:1],
        out=str(tmp_path),
        sizes=(2, 3, 50),
        examples=30,
        separation=2,
        burn_in=3,
        series="iterate",
    )
    progress = []
    found = uncertainty.run(StackOverflow, config, lambda *a: progress.append(a))
    assert progress[-1][1] == progress[-1][2]
    run = Run.open(StackOverflow, runs[0])
    score = run.scorer("heldout", 30)
    scores = [score(run.load(t)) for t in (4, 6, 8)]
    assert [spread.metric.name for spread in found.spreads] == METRICS
    for spread in found.spreads:
        values = np.array([values[spread.metric.name] for values in scores])
        assert spread.rounds == (4, 6, 8) and spread.last == values[-1]
        assert spread.deviation == pytest.approx(values.std(ddof=1))
        # The mean of three: p_i = 1/3.
        assert spread.of_mean == pytest.approx(spread.deviation / np.sqrt(3))
    assert any(spread.deviation > 0 for spread in found.spreads)
    # The widths are those of the checkpoints; nothing is compared.
    assert found.widths.sizes == (2, 3) and not len(found.widths.independent)
    table = uncertainty.table(found)
    assert "3 checkpoints of the rounds 4 to 8" in table
    assert "Checkpoints 2 rounds apart, as asked" in table
    # 1 + (8 − 4)/2 of them, or 8/4 runs.
    assert "3 checkpoints (1 + (T − t_1)/γ, t_1 = 4, γ = 2), or 2 independent" in table
    assert "κ_1" not in table
    title, head = table.splitlines()[:2]
    assert "Mean width of the confidence interval" in title
    assert "Checkpoints of θ." in table
    assert "independent" not in head and "ratio" not in head
    rows = read_csv(tmp_path / "widths.csv")
    assert [row["estimator"] for row in rows] == ["2 rounds apart"] * 2
    written = {row["metric"]: row for row in read_csv(tmp_path / "metrics.csv")}
    for spread in found.spreads:
        row = written[spread.metric.name]
        assert float(row["standard_deviation"]) == spread.deviation
        assert float(row["of_mean"]) == spread.of_mean
    assert (tmp_path / "widths.png").exists()


def test_uncertainty_finds_how_far_apart_checkpoints_have_to_be(long_run, tmp_path):
    given = {"runs": (long_run,), "out": str(tmp_path), "sizes": (2, 3, 10, 50)}
    given["series"] = "iterate"
    config = uncertainty.UncertaintyConfig(**given, examples=30, smoothness=10.0)
    progress = []
    found = uncertainty.run(StackOverflow, config, lambda *a: progress.append(a))
    assert {stage for stage, *_ in progress} == {"rounds", "predictions"}
    assert progress[-1][1] == progress[-1][2]
    # From the middle on there are 25.
    assert found.widths.sizes == (2, 3, 10)
    first = found.spreads[0].rounds
    assert len(first) == 10 and first[0] >= 24 and first[-1] == 48
    # The weights walk from the beginning: neighbours say far too little, most of all
    # the newest two.
    near = uncertainty.UncertaintyConfig(**given, examples=30, separation=1)
    narrow = uncertainty.compare(StackOverflow, near).widths.checkpoints[0]
    wide = found.widths.checkpoints[0]
    assert (wide > 1.4 * narrow[:3]).all() and wide[0] > 3 * narrow[0]
    table = uncertainty.table(found)
    assert "checkpoints (1 + (T − t_1)/γ, t_1 = 24" in table
    assert "κ_1 = " in table and "κ_2 = " in table


def test_uncertainty_refuses_what_it_cannot_compare(runs, token_store, tmp_path):
    def compare(**changes):
        given = {"runs": runs, "out": str(tmp_path), "examples": 10, **changes}
        uncertainty.compare(StackOverflow, uncertainty.UncertaintyConfig(**given))

    with pytest.raises(ValueError, match="sizes"):
        compare(sizes=(5, 10))
    with pytest.raises(ValueError, match="checkpoints of"):
        compare(runs=runs[:1], sizes=(50,))
    with pytest.raises(ValueError, match="twice"):
        compare(runs=(runs[0], runs[0]))
    with pytest.raises(ValueError, match="from 2 to the 3 checkpoints of"):
        compare(sizes=(4,), separation=4)
    other = write_run(tmp_path / "uta", token_store, seed=9, averager="uta")
    with pytest.raises(ValueError, match="2 kinds"):
        compare(runs=(runs[0], other))


@pytest.mark.slow
def test_a_binary_from_the_command_line(own_runs, tmp_path):
    """One for all: flags, progress bars, table, files and a plain error."""
    command = [sys.executable, "-m", "stackoverflow", "tune", f"--out={tmp_path}"]
    command += [f"--runs={','.join(own_runs)}", "--examples=20"]
    command += ["--methods=ema:0.5,0.9"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "EMA_inf" in done.stdout and "2 private runs" in done.stdout
    assert "models: 100%" in done.stderr
    assert (tmp_path / "tuning.png").exists()
    program = command_lines.program("uncertainty")
    wrong = forked.run(program, f"--runs={tmp_path / 'absent'}")
    assert wrong.returncode == 2
    assert "config.json" in wrong.stderr and "Traceback" not in wrong.stderr


def options(name, *given):
    (read,) = command_lines.options(StackOverflow, name, *given)
    return read


def test_flags_become_options():
    read = options(
        "evaluate", "--runs=a,b", "--methods=uta:2,3 ema:0.5", "--memory_mb=2"
    )
    assert read == evaluate.EvaluateOptions(
        runs=("a", "b"), methods=parse_methods("uta:2,3 ema:0.5"), memory_mb=2.0
    )
    assert read.memory_budget == 2 << 20
    read = options("uncertainty", "--runs=a", "--sizes=2,4", "--level=0.9")
    assert read == uncertainty.UncertaintyConfig(runs=("a",), sizes=(2, 4), level=0.9)


def test_one_pass_and_the_naive_way_give_the_same_labels():
    study = one_pass.Study(
        checkpoints=6,
        ks=(2, 3, 6),
        sentences=12,
        vocab_size=30,
        embedding_size=4,
        lstm_size=5,
        memory_mb=0.125,
    )
    result = one_pass.run(study)
    assert result["labels_that_differ"] == 0
    assert result["labels_compared"] == 6 * result["positions"] > 100
    assert result["one_pass_portions"] > 1
    assert result["one_pass_forward_passes"] == 6 * result["one_pass_portions"]
    assert result["naive_forward_passes"] == 2 * (2 + 3 + 6)
    assert "0 of" in one_pass.table(result)
