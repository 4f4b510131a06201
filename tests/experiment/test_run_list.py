"""Runs side by side: what they have in common is left out, what differs is shown."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from stackoverflow.task import StackOverflow
from tests.experiment.train_binary import tiny_config
from tff_agg.experiment import run_list
from tff_agg.experiment.commands import runs as driver
from tff_agg.experiment.run import run as training
from tff_agg.experiment.run import tables


@pytest.fixture(scope="module")
def folder(token_store, cache, tmp_path_factory):
    top = tmp_path_factory.mktemp("runs")
    for name, changes in (
        ("a", {"seed": 1}),
        ("deep/b", {"seed": 2, "insecure_noise_seed": 8}),
    ):
        config = tiny_config(token_store, **changes)
        training.run(StackOverflow(config), top / name, compiled=cache)
    return top


def shown(capsys, *arguments):
    status = driver.run(StackOverflow, list(map(str, arguments)))
    return status, capsys.readouterr().out


def test_every_run_is_listed_with_what_is_its_own(folder, capsys):
    status, text = shown(capsys, folder)
    assert status == 0
    first, second, whose = text.splitlines()[2:]
    assert "θ^AGG" in whose
    assert first.split()[:4] == ["a", "6", "of", "6"]
    assert second.split()[0] == os.path.join("deep", "b")
    assert first.endswith("seed=1, insecure_noise_seed=None")
    assert second.endswith("seed=2, insecure_noise_seed=8")
    # A known seed has no guarantee; the other run's is the plan's.
    report = json.loads((folder / "a" / "privacy_report.json").read_text())
    assert first.split()[4] == f"{report['guarantee']['epsilon']:.4g}"
    assert second.split()[4] == "none"
    (score,) = tables.read_columns(
        folder / "a" / "test.csv", {"weights": "aggregate", "group": "all"}
    )["accuracy"]
    assert f"{100 * score:.2f}" in first.split()
    assert "(round 6)" in first


def test_two_runs_are_compared_in_all_that_differs(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    status, text = shown(capsys, "a", os.path.join("deep", "b"))
    assert status == 0
    names = [line.split("  ")[0] for line in text.splitlines()[2:]]
    assert names[:2] == ["seed", "insecure_noise_seed"]
    assert {"ε", "rounds done", "test loss", "validation perplexity"} <= set(names)
    assert "clip_norm" not in names


def test_a_run_in_its_middle_and_a_damaged_one_are_reported(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path / "runs")
    book = tmp_path / "runs" / "a" / "ledger.jsonl"
    lines = book.read_text().splitlines(keepends=True)
    released = [i for i, line in enumerate(lines) if '"round"' in line]
    book.write_text("".join(lines[: released[2]]))
    config = tmp_path / "runs" / "deep" / "b" / "config.json"
    config.write_text("{not json")
    status, text = shown(capsys, tmp_path / "runs")
    assert status == 1
    assert "of 6" in text and "6 of 6" not in text and "–" in text
    assert f"Left out: {config.parent}: {config} is damaged" in text


def test_a_folder_without_runs_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"{tmp_path} holds no runs"):
        run_list.find(tmp_path)


@pytest.mark.parametrize("arguments", [(), ("a", "b", "c")])
def test_the_number_of_folders_is_checked(arguments):
    with pytest.raises(ValueError, match="two run folders to compare"):
        driver.run(StackOverflow, arguments)


def test_the_binary_answers_without_tensorflow(folder):
    program = (
        "import runpy, sys\n"
        f"sys.argv = ['', 'runs', {str(folder)!r}]\n"
        "try:\n"
        "    runpy.run_module('stackoverflow', run_name='__main__', alter_sys=True)\n"
        "finally:\n"
        "    assert 'tensorflow' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "seed=2" in done.stdout
