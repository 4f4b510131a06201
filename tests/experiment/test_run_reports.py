"""What a run's report, tables and terminal say of its guarantee."""

import json

import pytest

from tests import tiny_stores
from tff_agg.experiment import terminal
from tff_agg.experiment.run import run as training
from tff_agg.experiment.run import tables
from tff_agg.privacy import KeySelection

SELECTION = KeySelection(cap=20, noise_multiplier=2.0, delta=1e-7)


def rows_of(plan):
    lines = terminal.plan_table(plan).splitlines()
    return {line.split("  ")[0]: line.split("  ")[-1].strip() for line in lines}


def test_the_table_of_a_plan_says_why_there_is_no_guarantee(make_config):
    known = rows_of(make_config().build_plan())
    assert known["ρ (zCDP)"] == known["ε at δ = 1e-06"]
    assert known["ρ (zCDP)"] == "none: the noise seed is known"
    assert "if read per tree node" not in known
    silent = make_config(insecure_noise_seed=None, noise_multiplier=0.0).build_plan()
    assert rows_of(silent)["ρ (zCDP)"] == "none: no noise is added"
    secret = rows_of(make_config(insecure_noise_seed=None).build_plan())
    assert secret["ρ (zCDP)"] == "2"
    assert secret["sensitivity"].endswith("(exact; tree, dynamic programming)")
    releases = [SELECTION.release("vocabulary")]
    counted = make_config(insecure_noise_seed=None).build_plan(releases)
    assert rows_of(counted)["ρ of the vocabulary"] == "0.125, δ = 1e-07"
    assert rows_of(counted)["ρ (zCDP)"] == "2.125"


@pytest.fixture(scope="module")
def private_store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("private")
    return tiny_stores.make_store(folder, users=250, words=40, selection=SELECTION)


@pytest.mark.slow
def test_a_run_reports_vocabulary_shared_users_and_spending(
    make_task, cache, private_store, tmp_path
):
    task = make_task(
        store=private_store, rounds=2, insecure_noise_seed=None, evaluate_every=2
    )
    outcome = training.run(task, tmp_path / "run", compiled=cache)
    report = json.loads((tmp_path / "run" / "privacy_report.json").read_text())
    page = (tmp_path / "run" / "privacy_report.md").read_text()
    assert report["guarantee"]["rho"] == pytest.approx(2.125) == outcome.plan.rho
    assert report["releases"][0]["rho"] == 0.125
    assert "2 (training) + 0.125 (vocabulary)" in page
    assert "counted without noise" not in page
    shared = report["evaluation"]["users_shared_with_training"]
    assert shared == {"heldout": 0, "test": 0}
    metrics = tables.read_columns(tmp_path / "run" / "metrics.csv")
    assert len(metrics["epsilon_so_far"]) == 2
    assert 0 < metrics["epsilon_so_far"][0] <= metrics["epsilon_so_far"][1]
    assert metrics["epsilon_so_far"][1] <= outcome.plan.epsilon


@pytest.mark.slow
def test_a_vocabulary_without_noise_is_named(make_task, cache, tmp_path):
    task = make_task(evaluate_every=6)
    training.run(task, tmp_path / "run", compiled=cache)
    report = json.loads((tmp_path / "run" / "privacy_report.json").read_text())
    assert report["releases"] == []
    assert any("The vocabulary: " in line for line in report["not_covered"])
    assert any("drawn at random from the run's seed" in s for s in report["assumed"])
    assert report["guarantee"]["statement"] == "none: the noise seed is known"
    rows = tables.read_rows(tmp_path / "run" / "metrics.csv")
    assert [row["epsilon_so_far"] for row in rows] == 6 * ["none"]
