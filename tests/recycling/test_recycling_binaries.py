"""The binaries, end to end on run folders that the tests write themselves."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from absl.flags import IllegalFlagValueError

from benchmarks import one_pass
from cifar.task import Cifar
from pcvr.task import Pcvr
from stackoverflow.task import StackOverflow
from tests import command_lines, forked
from tests.recycling.written_runs import read_csv, write_run
from tff_agg import averaging
from tff_agg.experiment.commands import evaluate, tune, uncertainty
from tff_agg.experiment.runs import Run, open_runs
from tff_agg.recycling import inference
from tff_agg.recycling.grids import INFERENCE_BETAS, KS, TRAINING_BETAS, Grids
from tff_agg.recycling.methods import parse_methods
from tff_agg.recycling.metrics import Metric

_SENTENCES = 60
METRICS = [metric.name for metric in StackOverflow.metrics]


def naive_labels(run, rows):
    """Scores [rounds, positions, ids] and targets, one model at a time."""
    predict = run.task.predictor()
    found = [predict(run.load(t), rows) for t in run.rounds()]
    return np.stack([f.scores for f in found]).astype(np.float64), found[0].targets


def test_evaluate_equals_the_naive_computation(runs, tmp_path):
    grid = inference.Grid(
        uta=(2, 4), outputs=(1, 3, 20), ema=(0.5,), ema_warm_up=False, pda=(1.0,)
    )
    config = evaluate.EvaluateConfig(
        runs=runs[:2],
        out=str(tmp_path),
        grid=grid,
        examples=_SENTENCES,
        span=6,
        every=3,
        memory_budget=1 << 18,
    )
    summary = evaluate.run(StackOverflow, config)
    rows = read_csv(tmp_path / "scores.csv")
    methods = len(grid.methods()) + 1
    assert len(rows) == 2 * 3 * methods
    assert {row["round"] for row in rows} == {"2", "5", "8"}
    found = {
        (row["run"], row["method"], row["parameter"], int(row["round"])): {
            name: float(row[name]) for name in METRICS if row[name]
        }
        for row in rows
    }
    distinct = set()
    for folder in runs[:2]:
        run = Run.open(StackOverflow, folder)
        examples = rows_of(run, "heldout", _SENTENCES)
        score = run.scorer("heldout", _SENTENCES)
        scores, targets = naive_labels(run, examples)
        for t in (2, 5, 8):
            expected = {
                ("last", ""): score(run.load(t)),
                ("UTA_inf", "4"): score(
                    mean_of([run.load(i) for i in range(max(0, t - 3), t + 1)])
                ),
                ("EMA_inf", "0.5"): score(
                    fold(averaging.ema(decay=0.5), run, t),
                ),
                ("PDA", "1.0"): score(fold(averaging.pda(1.0), run, t)),
                ("EMA_baseline", ""): score(fold(inference.ema_baseline(), run, t)),
            }
            for k in (1, 3, 20):
                window = scores[max(0, t - k + 1) : t + 1]
                right = int((window.mean(axis=0).argmax(axis=1) == targets).sum())
                expected["OPA", str(k)] = {"accuracy": right / len(targets)}
            expected["OMV", "1"] = expected["OPA", "1"]
            for (method, parameter), value in expected.items():
                assert found[folder, method, parameter, t] == value, (method, t)
                distinct.add(value["accuracy"])
            # One checkpoint alone: forward passes and the evaluator agree.
            alone, last = expected["OPA", "1"], expected["last", ""]
            assert alone["accuracy"] == last["accuracy"]
            assert 0 <= last["accuracy_with_oov"] <= 1 and last["loss"] > 0
    assert len(distinct) > 5  # The comparison could have failed.
    assert (tmp_path / "accuracy.png").stat().st_size > 5000
    assert len(summary) == methods
    last = next(row for row in summary if row["method"] == "last")
    for name in METRICS:
        values = [found[folder, "last", "", 8][name] for folder in runs[:2]]
        assert last[name] == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert next(row for row in summary if row["method"] == "OPA")["loss"] is None
    assert "UTA_inf" in evaluate.table(summary, StackOverflow.metrics)


class ByLoss(StackOverflow):
    metrics = tuple(reversed(StackOverflow.metrics[:3]))


def test_outputs_are_judged_under_the_names_of_their_own_metrics(runs, tmp_path):
    """An accuracy under the name of a loss would prefer the wrong models."""
    config = evaluate.EvaluateConfig(
        runs=runs[:1],
        out=str(tmp_path),
        grid=inference.Grid(outputs=(2,), baseline=False),
        examples=20,
    )
    rows = evaluate.evaluate_runs(ByLoss, config)
    assert ByLoss.metrics[0].name == "loss"
    combined = [row for row in rows if row["method"] in ("OPA", "OMV")]
    assert len(combined) == 2
    assert all("loss" not in row and 0 <= row["accuracy"] <= 1 for row in combined)


def test_a_run_that_has_only_begun_is_not_averaged_with_finished_ones(runs, tmp_path):
    young = tmp_path / "young"
    shutil.copytree(runs[1], young)
    for number in range(4, 9):
        (young / "checkpoints" / "manifests" / f"{number:09d}.json").unlink()
    config = evaluate.EvaluateConfig(
        runs=(runs[0], str(young)), out=str(tmp_path / "out"), examples=20
    )
    with pytest.raises(ValueError, match=r"round 3.*young|young.*round 3"):
        evaluate.run(StackOverflow, config)


def rows_of(run, split, sentences):
    return run.task.flat_sample(run.task.fixed_sample(split, sentences))


def mean_of(weights):
    return {
        name: np.mean([np.float64(w[name]) for w in weights], axis=0).astype(np.float32)
        for name in weights[0]
    }


def fold(averager, run, t):
    *_, aggregate = averaging.fold(averager, [run.load(i) for i in range(t + 1)])
    return aggregate


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


def test_runs_of_several_kinds_get_a_panel_each(runs, token_store, tmp_path):
    other = write_run(tmp_path / "uta", token_store, seed=9, averager="uta")
    config = evaluate.EvaluateConfig(
        runs=(*runs[:2], other), out=str(tmp_path / "out"), examples=20
    )
    summary = evaluate.run(StackOverflow, config)
    assert {row["kind"] for row in summary} == {"averager=last", "averager=uta"}
    assert "averager=uta" in evaluate.table(summary, StackOverflow.metrics)


def test_test_data_chooses_no_parameter_for_the_picture():
    summary = [
        {"kind": "a", "method": "OMV", "parameter": 2, "x": (0.1, 0.0)},
        {"kind": "a", "method": "OMV", "parameter": 3, "x": (0.2, 0.0)},
    ]
    high, low = Metric("x"), Metric("x", higher_is_better=False)
    assert evaluate.shown_parameters(summary, high, "heldout") == {("a", "OMV"): 3}
    assert evaluate.shown_parameters(summary, low, "heldout") == {("a", "OMV"): 2}
    assert evaluate.shown_parameters(summary, high, "test") == {("a", "OMV"): 2}


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
    head = table.splitlines()[0]
    assert "independent" not in head and "ratio" not in head
    rows = read_csv(tmp_path / "widths.csv")
    assert [row["estimator"] for row in rows] == ["one run's checkpoints"] * 2
    written = {row["metric"]: row for row in read_csv(tmp_path / "metrics.csv")}
    for spread in found.spreads:
        row = written[spread.metric.name]
        assert float(row["standard_deviation"]) == spread.deviation
        assert float(row["of_mean"]) == spread.of_mean
    assert (tmp_path / "widths.png").exists()


def test_uncertainty_finds_how_far_apart_checkpoints_have_to_be(long_run, tmp_path):
    given = {"runs": (long_run,), "out": str(tmp_path), "sizes": (2, 3, 10, 50)}
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
    assert evaluate.grid_of(read.methods) == inference.Grid(
        uta=(2, 3), ema=(0.5,), votes=False, baseline=False
    )
    read = options("uncertainty", "--runs=a", "--sizes=2,4", "--level=0.9")
    assert read == uncertainty.UncertaintyConfig(runs=("a",), sizes=(2, 4), level=0.9)
    searched = tune.inference_config(options("tune", "--runs=a", "--out=o"))
    assert searched == tune.InferenceConfig(runs=("a",), out="o", grid=None)
    found = tune.paper_grid(Grids(ks=(3, 5)))
    assert found.uta == found.outputs == (3, 5) and found.ema == INFERENCE_BETAS
    given = ["--algorithm=training", "--averager=ema", "--starts=0,5"]
    config = tune.training_config(
        StackOverflow, options("tune", *given, "--train_flags=--epsilon=8 --out='a b'")
    )
    assert config.parameters == TRAINING_BETAS and config.starts == (0, 5)
    assert config.train_flags == ("--epsilon=8", "--out=a b")
    known = [given[0], "--train_flags=--epsilon=8"]
    config = tune.training_config(StackOverflow, options("tune", *known))
    assert config.parameters == KS and config.starts == (0,)


def test_the_grid_of_a_task_follows_from_the_flags_of_its_runs():
    def starts(*train_flags):
        searched = options(
            "tune", "--algorithm=training", f"--train_flags={' '.join(train_flags)}"
        )
        return tune.training_config(Cifar, searched).starts

    network = "--dataset=cifar10 --model=wide_resnet"
    assert starts(network, "--rounds=568", "--noise_multiplier=8") == (
        100, 200, 300, 400, 500,
    )  # fmt: skip
    # τ* is below T; the number of steps may follow from ε.
    assert starts(network, "--rounds=500", "--noise_multiplier=8")[-1] == 400
    assert starts(network, "--epsilon=1", "--noise_multiplier=8")[-1] == 600
    assert starts("--dataset=cifar100", "--rounds=250", "--noise_multiplier=21") == (
        50, 100, 150, 200, 250,
    )  # fmt: skip
    clicks = ["--train_flags=--synthetic --rounds=9 --noise_multiplier=1"]
    given = options("tune", "--algorithm=training", *clicks)
    assert tune.training_config(Pcvr, given).parameters == (3, 5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--starts=3"], "--starts=.*needs algorithm=training; it is inference"),
        (["--algorithm=training", "--methods=opa:3"], "--runs needs algorithm=inf"),
        (
            ["--methods=ota:3"],
            "ota:3.* one of last, uta:k, .*such as uta:100",
        ),
        (["--examples=0"], "examples must be at least 1; got 0"),
    ],
)
def test_flags_that_change_nothing_or_mean_nothing_are_refused(given, message):
    with pytest.raises((ValueError, IllegalFlagValueError), match=message):
        options("tune", "--runs=a", *given)


def test_one_pass_and_the_naive_way_give_the_same_labels():
    study = one_pass.Study(
        checkpoints=6,
        ks=(2, 3, 6),
        sentences=12,
        vocab_size=30,
        embedding_size=4,
        lstm_size=5,
        memory_budget=1 << 17,
    )
    result = one_pass.run(study)
    assert result["labels_that_differ"] == 0
    assert result["labels_compared"] == 6 * result["positions"] > 100
    assert result["one_pass_portions"] > 1
    assert result["one_pass_forward_passes"] == 6 * result["one_pass_portions"]
    assert result["naive_forward_passes"] == 2 * (2 + 3 + 6)
    assert "0 of" in one_pass.table(result)


def test_the_rounds_of_a_curve():
    assert evaluate.curve_rounds(range(0, 101), 30, 10) == [70, 80, 90, 100]
    assert evaluate.curve_rounds(range(0, 101), 0, 10) == [100]
    assert evaluate.curve_rounds([0, 50, 100], 100, 25) == [0, 50, 100]
    with pytest.raises(ValueError, match="every=0"):
        evaluate.EvaluateConfig(runs=(), out="", every=0)
