"""`python -m stackoverflow train` from flags to files, and killed on Ray."""

import json
import signal
import stat

import pytest

from tests import forked
from tests.experiment.run_contents import contents
from tests.experiment.train_binary import KILLED, flags, run_forked
from tests.runtime.process_ends import assert_all_end
from tff_agg.experiment.run import tables
from tff_agg.experiment.run.ledger import Ledger
from tff_agg.processes import usable_cores


@pytest.mark.slow
def test_it_shows_the_plan_a_bar_and_a_table(finished):
    _, done = finished
    # The noise seed is known: no ρ and no ε anywhere, whatever the noise.
    shown = [line for line in done.stdout.splitlines() if line.startswith(("ρ", "ε"))]
    assert [line.split("  ")[0] for line in shown] == ["ρ (zCDP)", "ε at δ = 1e-06"]
    assert all(line.endswith("none: the noise seed is known") for line in shown)
    assert "if read per tree node" not in done.stdout
    assert "at most one round" in done.stdout
    assert "Noise and signal: noise" in done.stdout
    assert "θ^AGG, as broadcast" in done.stdout
    assert "always the same answer  all" in done.stdout
    assert "100%" in done.stderr and "ε so far=none" in done.stderr
    for chatter in ("cuDNN", "TensorRT", "rebuild TensorFlow", "pkg_resources"):
        assert chatter not in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.slow
def test_it_writes_what_a_reader_needs(finished):
    out, _ = finished
    config = json.loads((out / "config.json").read_text())
    assert config["averager"] == "uta" and config["epsilon"] == 8.0
    report = json.loads((out / "privacy_report.json").read_text())
    assert report["guarantee"]["epsilon"] is None
    assert report["guarantee"]["rho"] is None
    assert report["guarantee"]["statement"] == "none: the noise seed is known"
    text = (out / "privacy_report.md").read_text()
    assert "VOID" in text, "a known noise seed must be called out"
    metrics = tables.read_columns(out / "metrics.csv")
    assert metrics["round"] == list(range(1, 9))
    spent = {row["epsilon_so_far"] for row in tables.read_rows(out / "metrics.csv")}
    assert spent == {"none"}
    validation = tables.read_rows(out / "validation.csv")
    assert {row["round"] for row in validation} == {"4", "8"}
    weights = {"iterate", "aggregate", "trivial"}
    assert {row["weights"] for row in validation} == weights
    tested = tables.read_rows(out / "test.csv")
    assert len(tested) == 9 and {row["weights"] for row in tested} == weights
    assert list((out / "tensorboard").glob("events.*"))
    assert "tensorflow" in json.loads((out / "environment.json").read_text())


@pytest.mark.slow
def test_the_state_is_the_owners_alone(finished):
    out, _ = finished
    for path in (out / "checkpoints").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.slow
def test_begun_on_ray_and_killed_it_leaves_nothing_and_goes_on_here_to_the_same_bits(
    finished, token_store, tmp_path
):
    out, lanes = tmp_path / "run", f"--lanes={usable_cores()}"
    process = forked.run(KILLED, "31", *flags(token_store, out, "--runtime=ray", lanes))
    assert process.returncode == -signal.SIGKILL, process.stderr
    family = [int(pid) for pid in process.stdout.splitlines()[-1].split()]
    # Ray's own processes, and the lanes.
    assert len(family) >= 3 + usable_cores()
    assert_all_end(family)
    done = Ledger(out).read()
    assert done is not None and 2 <= done.last < 8
    last = run_forked(token_store, out, "--runtime=local", lanes)
    assert last.returncode == 0, last.stderr
    assert contents(out) == contents(finished[0])


@pytest.mark.slow
def test_errors_are_one_message_without_a_traceback(token_store, tmp_path, finished):
    changed = run_forked(token_store, finished[0], "--k=5")
    assert changed.returncode == 2
    assert "k: was 2, is now 5" in changed.stderr
    assert "Traceback" not in changed.stderr


def test_bad_flags_are_reported_before_anything_is_written(token_store, tmp_path):
    bad = run_forked(token_store, tmp_path / "run", "--noise_multiplier=1")
    assert bad.returncode == 2
    assert "exactly one of noise_multiplier" in bad.stderr
    assert "Traceback" not in bad.stderr
    assert not (tmp_path / "run").exists()
