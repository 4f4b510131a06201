"""Damaged files of a run folder: an error that names the file, or what they said."""

import json
import shutil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests import fuzzing
from tff_agg.experiment import run_list
from tff_agg.experiment.config import TrainConfig
from tff_agg.experiment.run import ledger, run_folder
from tff_agg.experiment.task import Task
from tff_agg.recycling.metrics import Metric


class AnyTask(Task):
    """A task that is never made: only what its runs say is read."""

    package = "any"
    Config = TrainConfig
    metrics = (Metric("loss", higher_is_better=False),)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_whole(tmp_path_factory.mktemp("runs") / "run")


def write_whole(folder):
    book = ledger.Ledger(folder)
    book.create({"plan": {"clip_norm": 1.0, "rounds": 2}}, {"numpy": "1.26"})
    for number in range(3):
        book.add_round({"round": number, "cohort": "ab", "metrics": {"loss": 0.5}})
        scores = {"aggregate": {"all": {"loss": 0.25}}} if number else {}
        book.add_reported(number, {"loss": 0.5, "validation": scores})
    book.add_tested({"aggregate": {"all": {"loss": 0.25}}})
    book.add_segment(3, {"numpy": "2"})
    (folder / "config.json").write_text(
        json.dumps(
            TrainConfig(rounds=2, noise_multiplier=1.0).to_json()
            | {"data_fingerprint": "f" * 64}
        )
    )
    report = {"guarantee": {"epsilon": 8.5, "delta": 1e-6}}
    (folder / "privacy_report.json").write_text(json.dumps(report))
    return folder


NAMES = (
    ledger.NAME,
    "config.json",
    "privacy_report.json",
)


def copied(whole, folder):
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    return folder


def check(folder, whole, *, same_only=True):
    """Reads a run; whatever comes is what was written, or an error."""
    try:
        run_list.find(folder)
        found = run_list.summary(AnyTask, folder)
        run_list.rows(AnyTask, [found], folder)
    except (ValueError, OSError, ledger.ResumeError) as error:
        assert any(str(folder / name) in str(error) for name in NAMES), str(error)
    try:
        history = ledger.Ledger(folder).read()
    except ledger.ResumeError as error:
        assert str(folder) in str(error)
        history = None
    if history is not None and same_only:
        saved = ledger.Ledger(whole).read()
        # A last line that is not whole counts as never written.
        assert history.identity == saved.identity
        assert saved.rounds.items() >= history.rounds.items()
    try:
        history = ledger.Ledger(folder).open()
        history.surroundings_of(history.last + 1)
    except (ledger.ResumeError, OSError) as error:
        assert str(folder) in str(error)


@fuzzing.examples(150)
@given(name=st.sampled_from(NAMES), edits=fuzzing.EDITS)
def test_bytes_of_any_file(whole, tmp_path, name, edits):
    folder = copied(whole, tmp_path / "run")
    path = folder / name
    path.write_bytes(fuzzing.edited(path.read_bytes(), edits))
    with fuzzing.no_hang():
        check(folder, whole)


@fuzzing.examples(150)
@given(name=st.sampled_from(NAMES), line=st.integers(0, 9), edits=fuzzing.JSON_EDITS)
# Scores that are null.
@example(name="ledger.jsonl", line=8, edits=[(0.75, [None])])
def test_other_values(whole, tmp_path, name, line, edits):
    """As somebody edits who makes checksums right again."""
    folder = copied(whole, tmp_path / "run")
    path = folder / name
    lines = path.read_text().splitlines()
    number = line % len(lines)
    value = json.loads(lines[number])
    if name == ledger.NAME:
        entry = fuzzing.edited_json(value["entry"], edits)
        try:
            lines[number] = ledger._line(entry).decode().rstrip("\n")
        except UnicodeEncodeError:
            return
    else:
        lines[number] = json.dumps(fuzzing.edited_json(value, edits))
    path.write_text("\n".join(lines) + "\n")
    with fuzzing.no_hang():
        check(folder, whole, same_only=False)


def test_a_configuration_without_end_is_refused(whole, tmp_path):
    folder = copied(whole, tmp_path / "run")
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"config\.json"):
        run_folder.RunFolder(folder).saved_config()
