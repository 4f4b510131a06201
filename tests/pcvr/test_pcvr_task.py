"""The task and its binaries, from made-up clicks to tables, pictures and reports."""

import csv
import dataclasses
import json
import pathlib
import signal

import numpy as np
import pytest

from pcvr import auc
from pcvr.task import Pcvr, PcvrConfig
from tests import command_lines, forked
from tests.experiment.run_contents import contents
from tff_agg.experiment.build import Compiled, build
from tff_agg.experiment.commands import flags
from tff_agg.experiment.run import ledger
from tff_agg.experiment.run import run as training
from tff_agg.experiment.runs import Run

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = {
    "synthetic": True,
    "synthetic_clicks": 3000,
    "rounds": 24,
    "batch_size": 100,
    "noise_multiplier": 1.0,
    "learning_rate": 2.0,
    "evaluate_every": 8,
    "validation_examples": 200,
    "test_examples": 200,
    "insecure_noise_seed": 5,
    # Every column is a table of its own to compile.
    "feature_classes": "content=article:64 visit=referrer,hour",
}


def as_flags(settings):
    return [f"--{name}={value}" for name, value in settings.items()]


def binary(name, *given):
    """Runs what `python -m pcvr {name}` runs, in this process."""
    return command_lines.run(Pcvr, name, *given)


@pytest.fixture(scope="module")
def cache():
    with Compiled() as made:
        yield made


@pytest.fixture(scope="module")
def runs(cache, tmp_path_factory):
    """Two finished runs; the binary `train` itself is what the last test kills."""
    root = tmp_path_factory.mktemp("pcvr")
    for seed in range(2):
        task = Pcvr(PcvrConfig(**SMALL, seed=seed))
        training.run(task, root / str(seed), compiled=cache)
    return [str(root / str(seed)) for seed in range(2)]


def test_where_the_data_lie_does_not_decide_what_is_compiled():
    settings = {"rounds": 4, "noise_multiplier": 1.0}
    one, other = (PcvrConfig(data=name, **settings) for name in ("a.csv", "b.csv"))
    assert one.process_key() == other.process_key()


def test_a_run_is_judged_by_auc_loss_and_says_what_is_protected(runs):
    folder = pathlib.Path(runs[0])
    header, *rows = (folder / "validation.csv").read_text().splitlines()
    assert header == "round,weights,group,auc_loss,loss" and len(rows) == 9
    run = Run.open(Pcvr, runs[0])
    _, labels = run.task.evaluation_examples("test")["all"]
    scores = run.task.predictor()(run.load(24), run.task.flat_sample(
        run.task.fixed_sample("test", len(labels))))  # fmt: skip
    np.testing.assert_allclose(scores.scores.sum(1), 1, rtol=1e-5)
    expected = auc.values(scores.scores[:, 1], scores.targets)
    assert run.scorer("test", len(labels))(run.load(24)) == expected
    report = (folder / "privacy_report.md").read_text()
    for words in ("one example", "what is protected is one click", "made-up clicks"):
        assert words in report
    facts = json.loads((folder / "privacy_report.json").read_text())
    assert "none: the noise seed is known" in json.dumps(facts)


def test_evaluate_leaves_the_vote_out_and_says_why(runs, tmp_path, capsys):
    given = [f"--runs={','.join(runs)}", f"--out={tmp_path}", "--examples=200"]
    grid = ["--methods=uta:3,8 opa:1,4 omv:1,4 ema:0.9,0.9999"]
    assert binary("evaluate", *given, *grid) == 0
    assert f"OMV is left out: {Pcvr.no_vote}" in capsys.readouterr().out
    with open(tmp_path / "scores.csv", newline="") as file:
        scores = {
            row["method"]: float(row["value"])
            for row in csv.DictReader(file)
            if (row["folder"], row["metric"]) == (runs[0], "auc_loss")
            # Those of training are of another sample, of θ as well, and of more rounds.
            and (row["series"], row["round"]) == ("aggregate", "24")
            and (row["split"], row["examples"]) == ("heldout", "200")
        }
    assert set(scores) == {
        "last",
        *["uta:3", "uta:8", "opa:1", "opa:4", "ema:0.9", "ema:0.9999"],
    }
    # The mean output of one checkpoint is that checkpoint's output.
    assert scores["opa:1"] == pytest.approx(scores["last"], rel=1e-9)


def test_tune_uncertainty_and_report_run_to_their_end(runs, tmp_path, capsys):
    given = [f"--runs={','.join(runs)}", "--examples=150"]
    grid = ["--methods=uta:2,6 opa:2,6 omv:2,6 ema:0.9,0.9999"]
    assert binary("tune", *given, *grid, f"--out={tmp_path / 'tune'}") == 0
    shown = capsys.readouterr().out
    assert f"OMV is left out: {Pcvr.no_vote}" in shown and shown.count("OMV") == 1
    sizes = ["--sizes=2", "--repeats=2", f"--out={tmp_path / 'widths'}"]
    assert binary("uncertainty", *given, *sizes) == 0
    assert (tmp_path / "widths" / "widths.csv").exists()
    page = tmp_path / "page.html"
    assert binary("report", f"--run={runs[0]}", f"--out={page}", "--examples=150",
                  "--methods=uta:2") == 0  # fmt: skip
    assert "what is protected is one click" in page.read_text()


@pytest.mark.parametrize("groups", ["label", "hour"])
def test_the_shift_moves_between_two_halves_of_the_clicks(groups):
    task = Pcvr(PcvrConfig(**SMALL, pds=True, pds_period=8, pds_groups=groups))
    first, second = task.shifting_groups()
    clicks, labels = task.training_arrays()
    assert len(first.users) + len(second.users) == len(clicks)
    members = build(task, Compiled()).sampler
    start, middle = members.users(0), members.users(4)
    assert np.isin(start, first.users).all() and np.isin(middle, second.users).all()
    if groups == "label":
        assert not labels[start].any() and labels[middle].all()


def test_runs_share_a_process_only_where_they_share_the_noise():
    """The noise of one ε depends on how many clicks there are, and on the shift."""
    compiled = Compiled()
    plain = Pcvr(PcvrConfig(**SMALL))
    first = build(plain, compiled).process
    assert build(plain, compiled).process is first
    shifted = Pcvr(PcvrConfig(**SMALL, pds=True))
    assert build(shifted, compiled).process is not first


def test_settings_that_make_no_sense_are_refused():
    for wrong, says in (
        ({"data": "clicks.parquet"}, "name a file of clicks, or give synthetic"),
        ({"synthetic": False}, "name a file of clicks, or give synthetic"),
        ({"feature_classes": "ad"}, "feature_classes: 'ad' must be class=column"),
        ({"pds_groups": "user"}, "pds_groups must be one of label, hour"),
    ):
        with pytest.raises(ValueError, match=says):
            PcvrConfig(**SMALL | wrong)
    with pytest.raises(ValueError, match=r"missing columns \['advert'\]"):
        Pcvr(PcvrConfig(**SMALL | {"feature_classes": "ad=advert"}))


def test_every_flag_file_is_a_configuration_at_epsilon_6():
    found = sorted((ROOT / "pcvr" / "configs").glob("*.cfg"))
    assert len(found) == 3
    for path in found:
        given = [f"--flagfile={path}", "--data=clicks.parquet"]
        (config,) = flags.parse(given, PcvrConfig)
        assert config.epsilon == 6 and "proxy" in config.data_note


# The binary as it is, killed where it makes the step after its third durable.
KILLED = """
import os, runpy, signal, sys
from tff_agg.experiment import terminal

on_round, fsync, told = terminal.TrainingBar.on_round, os.fsync, 0

def note(self, done, facts):
    global told
    on_round(self, done, facts)
    told = done

def dying(descriptor):
    if told >= 3:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)

terminal.TrainingBar.on_round, os.fsync = note, dying
sys.argv.insert(1, "train")
runpy.run_module("pcvr", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_killed_it_goes_on_to_the_same_bits(runs, cache, tmp_path):
    """The binary is killed in the midst of its steps, and goes on in this process."""
    out = tmp_path / "run"
    killed = forked.run(KILLED, f"--out={out}", *as_flags(SMALL))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert 3 <= ledger.Ledger(out).read().last < 24
    config = PcvrConfig(**SMALL)
    training.run(Pcvr(config), out, compiled=cache)
    expected = contents(runs[0])
    assert contents(out) == expected
    other = dataclasses.replace(config, feature_classes="content=article")
    with pytest.raises(RuntimeError, match="feature_classes"):
        training.run(Pcvr(other), out)
