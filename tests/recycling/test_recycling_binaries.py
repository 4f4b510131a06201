"""The binaries, end to end on run folders that the tests write themselves."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from absl import flags

from benchmarks import one_pass
from stackoverflow import evaluate, tune, uncertainty
from tests.recycling.written_runs import read_csv, write_run
from tff_agg import averaging
from tff_agg.experiment import runs as recycling
from tff_agg.recycling import inference, tuning

_SENTENCES = 60


def naive_labels(run, rows):
    """Scores [rounds, positions, ids] and targets, one model at a time."""
    predict = recycling.predictor(run.sizes)
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
        sentences=_SENTENCES,
        span=6,
        every=3,
        memory_budget=1 << 20,
    )
    summary = evaluate.run(config)
    rows = read_csv(tmp_path / "scores.csv")
    methods = len(grid.methods()) + 1
    assert len(rows) == 2 * 3 * methods
    assert {row["round"] for row in rows} == {"2", "5", "8"}
    found = {
        (row["run"], row["method"], row["parameter"], int(row["round"])): (
            int(row["correct"]),
            int(row["total"]),
        )
        for row in rows
    }
    distinct = set()
    for folder in runs[:2]:
        run = recycling.Run.open(folder)
        examples = run.rows("heldout", _SENTENCES)
        score = recycling.scorer(run.sizes, examples)
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
                expected["OPA", str(k)] = right, len(targets)
            expected["OMV", "1"] = expected["OPA", "1"]
            for (method, parameter), value in expected.items():
                assert found[folder, method, parameter, t] == value, (method, t)
                distinct.add(value)
            # One checkpoint alone: forward passes and the evaluator agree.
            assert expected["OPA", "1"] == expected["last", ""]
    assert len(distinct) > 5  # The comparison could have failed.
    assert (tmp_path / "accuracy.png").stat().st_size > 5000
    assert len(summary) == methods
    last = next(row for row in summary if row["method"] == "last")
    values = [found[folder, "last", "", 8] for folder in runs[:2]]
    assert last["mean"] == pytest.approx(np.mean([c / n for c, n in values]))
    assert last["spread"] == pytest.approx(np.std([c / n for c, n in values], ddof=1))
    assert "UTA_inf" in evaluate.table(summary)


def mean_of(weights):
    return [
        np.mean([np.float64(w[i]) for w in weights], axis=0).astype(np.float32)
        for i in range(8)
    ]


def fold(averager, run, t):
    *_, aggregate = averaging.fold(averager, [run.load(i) for i in range(t + 1)])
    return aggregate


def test_predictions_come_in_the_order_of_the_words(runs):
    run = recycling.Run.open(runs[0])
    rows = run.rows("heldout", 20)
    predict = recycling.predictor(run.sizes)
    whole = predict(run.load(3), rows)
    real = rows[:, 1:]
    words = (real > 0) & (real <= run.sizes.vocab_size)
    np.testing.assert_array_equal(whole.targets, real[words])
    parts = [predict(run.load(3), rows[i : i + 7]) for i in range(0, 20, 7)]
    np.testing.assert_array_equal(
        np.concatenate([part.targets for part in parts]), whole.targets
    )
    np.testing.assert_allclose(
        np.concatenate([part.scores for part in parts]), whole.scores, rtol=1e-5
    )
    assert predict(run.load(3), rows[:0]).scores.shape == (0, run.sizes.num_ids)


def test_runs_of_several_kinds_get_a_panel_each(runs, token_store, tmp_path):
    other = write_run(tmp_path / "uta", token_store, seed=9, averager="uta")
    config = evaluate.EvaluateConfig(
        runs=(*runs[:2], other), out=str(tmp_path / "out"), sentences=20
    )
    summary = evaluate.run(config)
    assert {row["kind"] for row in summary} == {"averager=last", "averager=uta"}
    assert "averager=uta" in evaluate.table(summary)


def test_test_data_chooses_no_parameter_for_the_picture():
    summary = [
        {"kind": "a", "method": "OMV", "parameter": 2, "mean": 0.1},
        {"kind": "a", "method": "OMV", "parameter": 3, "mean": 0.2},
    ]
    assert evaluate.shown_parameters(summary, "heldout") == {("a", "OMV"): 3}
    assert evaluate.shown_parameters(summary, "test") == {("a", "OMV"): 2}


def test_what_is_no_run_or_not_alike_is_refused(runs, token_store, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config.json"):
        recycling.open_runs([str(tmp_path)])
    with pytest.raises(ValueError, match="no run folders"):
        recycling.open_runs([])
    odd = tmp_path / "odd"
    shutil.copytree(runs[0], odd)
    config = json.loads((odd / "config.json").read_text())
    (odd / "config.json").write_text(json.dumps(config | {"lstm_size": 6}))
    with pytest.raises(ValueError, match="other sizes"):
        recycling.open_runs([runs[0], str(odd)])
    (odd / "config.json").write_text(json.dumps(config | {"store_fingerprint": "x"}))
    with pytest.raises(ValueError, match="other data"):
        recycling.open_runs([str(odd)])


def test_uncertainty_compares_both_estimators(runs, tmp_path):
    config = uncertainty.UncertaintyConfig(
        runs=runs,
        out=str(tmp_path),
        sizes=(2, 4, 50),
        repeats=3,
        sentences=30,
        memory_budget=1 << 19,
    )
    progress = []
    found = uncertainty.run(config, lambda *a: progress.append(a))
    assert found.sizes == (2, 4)
    assert found.independent.shape == found.checkpoints.shape == (3, 2)
    assert progress[-1][1] == progress[-1][2] > 3 * 2 * 4  # In several portions.
    # With all four runs the order does not matter: a naive computation says the same.
    opened = [recycling.Run.open(folder) for folder in runs]
    examples = opened[0].rows("heldout", 30)
    predict = recycling.predictor(opened[0].sizes)
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
    assert f"{found.ratio[0]:.2f}" in uncertainty.table(found)


def test_uncertainty_refuses_what_it_cannot_compare(runs, token_store, tmp_path):
    def compare(**changes):
        given = {"runs": runs, "out": str(tmp_path), "sentences": 10, **changes}
        uncertainty.compare(uncertainty.UncertaintyConfig(**given))

    with pytest.raises(ValueError, match="sizes"):
        compare(sizes=(5, 10))
    with pytest.raises(ValueError, match="twice"):
        compare(runs=(runs[0], runs[0]))
    with pytest.raises(ValueError, match="do not fit"):
        compare(sizes=(4,), separation=4)
    other = write_run(tmp_path / "uta", token_store, seed=9, averager="uta")
    with pytest.raises(ValueError, match="2 kinds"):
        compare(runs=(runs[0], other))


def run_binary(name, *arguments):
    return subprocess.run(
        [sys.executable, "-m", f"stackoverflow.{name}", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_binary_from_the_command_line(runs, tmp_path):
    """One for all: flags, progress bars, table, files and a plain error."""
    common = [f"--runs={','.join(runs)}", "--sentences=20"]
    done = run_binary("tune", *common, f"--out={tmp_path}", "--ema=0.5,0.9")
    assert done.returncode == 0, done.stderr
    assert "EMA_inf" in done.stdout and "4 private runs" in done.stdout
    assert "models: 100%" in done.stderr
    assert (tmp_path / "tuning.png").exists()
    wrong = run_binary("uncertainty", f"--runs={tmp_path / 'absent'}")
    assert wrong.returncode == 2
    assert "config.json" in wrong.stderr and "Traceback" not in wrong.stderr


def parsed(define, *arguments):
    values = flags.FlagValues()
    define(values)
    values(["binary", *arguments])
    return values


def test_flags_become_configurations():
    values = parsed(
        evaluate.define_flags,
        "--runs=a,b",
        "--uta_k=2,3",
        "--ema=0.5",
        "--ema_convention=weight",
        "--noema_warm_up",
        "--memory_mb=2",
        "--span=30",
    )
    assert evaluate.config_from_flags(values) == evaluate.EvaluateConfig(
        runs=("a", "b"),
        out="results/evaluate",
        grid=inference.Grid(
            uta=(2, 3), ema=(0.5,), ema_convention="weight", ema_warm_up=False
        ),
        span=30,
        memory_budget=2 << 20,
    )
    values = parsed(uncertainty.define_flags, "--runs=a", "--sizes=2,4", "--level=0.9")
    assert uncertainty.config_from_flags(values) == uncertainty.UncertaintyConfig(
        runs=("a",), out="results/uncertainty", sizes=(2, 4), level=0.9
    )
    values = parsed(tune.define_flags, "--runs=a", "--out=o")
    assert tune.inference_config_from_flags(values) == tune.InferenceConfig(
        runs=("a",), out="o", grid=tune.paper_grid()
    )
    assert tune.paper_grid().uta == tune.paper_grid().outputs == tuning.KS
    values = parsed(
        tune.define_flags,
        "--averager=ema",
        "--starts=0,5",
        "--train_flags=--epsilon=8 --out='a b'",
    )
    config = tune.training_config_from_flags(values)
    assert config.parameters == tuning.TRAINING_BETAS and config.starts == (0, 5)
    assert config.train_flags == ("--epsilon=8", "--out=a b")


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
