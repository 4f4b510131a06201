"""`python -m stackoverflow audit` on a tiny run, and on one that cheats."""

import contextlib
import dataclasses
import json
import shutil

import pytest

from stackoverflow.task import StackOverflow, StackOverflowConfig
from tests import command_lines, forked, tiny_stores
from tff_agg.experiment import canary_audit
from tff_agg.experiment.build import Compiled, build
from tff_agg.experiment.commands import audit as driver
from tff_agg.experiment.run import run_folder
from tff_agg.experiment.runs import Run

CANARIES = 150


@pytest.fixture(scope="module")
def token_store(tmp_path_factory):
    return tiny_stores.make_store(tmp_path_factory.mktemp("data"), users=60, words=60)


@pytest.fixture(scope="module")
def claimed(token_store, tmp_path_factory):
    """A run's folder as it is claimed before the first round: enough for an audit."""
    config = StackOverflowConfig(
        store=token_store,
        rounds=4,
        clients_per_round=3,
        max_sentences=4,
        embedding_size=6,
        lstm_size=8,
        noise_multiplier=0.8,
        server_momentum=0.9,
        averager="uta",
        k=2,
        mechanism="blt",
        buffers=2,
        lanes=1,
    )
    task = StackOverflow(config)
    built = build(task, Compiled())
    folder = tmp_path_factory.mktemp("claimed") / "run"
    with run_folder.RunFolder(folder).claim(built, {}):
        return folder


@pytest.fixture
def folder(claimed, tmp_path):
    return shutil.copytree(claimed, tmp_path / "run")


@pytest.mark.slow
def test_a_sound_run_passes_and_its_report_says_so(folder):
    flags = (f"--canaries={CANARIES}", "--window=2", "--insecure_seed=1")
    done = forked.run(command_lines.program("audit"), f"--run={folder}", *flags)
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("claimed epsilon ")
    assert ", estimate " in last and ", lower bound " in last
    content = json.loads((folder / "audit" / "audit.json").read_text())
    threats = [found["threat"] for found in content["findings"]]
    assert threats == [
        "all iterates",
        "final model",
        "recycled model, uta(k=2)",
        "last 2 models",
    ]
    first = content["findings"][0]
    assert first["interval"][0] < first["claimed"] < first["interval"][1]
    assert (folder / "audit" / "scores.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((folder / "privacy_report.json").read_text())
    assert report["audit"]["findings"] == content["findings"]
    page = (folder / "privacy_report.md").read_text()
    assert "## Audit" in page and "The claim is not refuted." in page
    assert "beside the run's users" in page


@pytest.mark.slow
def test_a_run_with_half_its_noise_ends_with_status_1(folder, capsys, monkeypatch):
    honest = driver.subject_of

    def cheating(*arguments):
        subject = honest(*arguments)

        def build(trainer, plan, rate):
            half = dataclasses.replace(
                plan, noise_multiplier=plan.noise_multiplier / 2, claimed_epsilon=None
            )
            return subject.build(trainer, half, rate)

        return dataclasses.replace(subject, build=build)

    monkeypatch.setattr(driver, "subject_of", cheating)
    config = driver.AuditConfig(CANARIES, users=False, window=2, insecure_seed=1)
    assert driver.audit_run(Run.open(StackOverflow, folder), config) == 1
    shown = capsys.readouterr().out
    assert "noise: 0.2" in shown
    claimed, _, bound = (
        float(part.rsplit(" ", 1)[1]) for part in shown.splitlines()[-1].split(",")
    )
    assert bound > claimed
    assert "The claim is REFUTED." in (folder / "privacy_report.md").read_text()


def test_what_cannot_be_audited_is_refused(folder):
    with pytest.raises(ValueError, match="canaries must be at least 10; got 2"):
        driver.AuditConfig(canaries=2)
    with contextlib.ExitStack() as stack:
        subject = driver.subject_of(Run.open(StackOverflow, folder), stack)
        plan = dataclasses.replace(subject.plan, noise_multiplier=0.0)
        silent = dataclasses.replace(subject, plan=plan)
        with pytest.raises(ValueError, match="adds no noise"):
            canary_audit.run(silent, driver.AuditConfig(), folder)
        with pytest.raises(FileNotFoundError, match=r"no privacy_report\.json"):
            canary_audit.run(subject, driver.AuditConfig(), folder.parent)
        with pytest.raises(ValueError, match="take fewer canaries"):
            canary_audit.run(subject, driver.AuditConfig(canaries=100_000), folder)
    assert not (folder / "audit").exists()
