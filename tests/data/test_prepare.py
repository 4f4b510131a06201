"""What the preparation promises: the same store always, and nothing half-written."""

import dataclasses
import errno
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import traceback

import pytest

from stackoverflow.data import encode, preparation, word_choice
from stackoverflow.data.preparation import prepare_store
from stackoverflow.data.sources import make_source
from stackoverflow.data.store_manifest import read_manifest
from stackoverflow.data.synthetic import SyntheticSource
from stackoverflow.data.token_store import TokenStore
from tests import command_lines
from tests.data import rows_by_hand

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Several parts and pieces also for little data."""
    monkeypatch.setattr(preparation, "_PART_SENTENCES", 700)
    monkeypatch.setattr(encode, "_MAX_BATCH_ROWS", 1000)
    monkeypatch.setattr(word_choice, "_MERGE_BYTES", 1)


SOURCE = SyntheticSource(users=200, words=80, seed=4)


def files(path):
    return read_manifest(os.fspath(path))["files"]


def texts(store, split):
    return {
        store.user_name(user): [
            store.vocabulary.decode(row) for row in store.rows(user, seed=1)
        ]
        for user in store.users(split)
    }


def test_several_parts_hold_every_sentence_once(tmp_path):
    store = prepare_store(SOURCE, tmp_path / "store")
    assert len([name for name in files(store.path) if name.startswith("part-")]) > 3
    total = sum(store.summary[split]["sentences"] for split in store.summary)
    assert total == SOURCE.num_sentences()
    expected: dict = {}
    for batch in SOURCE.read(0):
        for row in batch.to_pylist():
            key = (row["split"], row["client_id"], row["type"])
            ids = rows_by_hand.row(store.vocabulary, row["tokens"])
            expected.setdefault(key, []).append(ids.tolist())
    numbers = {
        (split, store.user_name(user)): user
        for split in store.summary
        for user in store.users(split)
    }
    for (split, name, type), rows in expected.items():
        user = numbers[split, name]
        found = store.rows(user, type=type, max_sentences=None).tolist()
        assert sorted(found) == sorted(rows)
    assert len({(s, n) for s, n, _ in expected}) == sum(
        len(store.users(split)) for split in store.summary
    )


def test_processes_make_the_same_store_as_none(tmp_path):
    one = prepare_store(SOURCE, tmp_path / "one")
    several = prepare_store(SOURCE, tmp_path / "several", workers=2)
    assert files(one.path) == files(several.path)


def test_the_order_of_the_input_does_not_matter_to_who_wrote_what(
    list_source, tmp_path
):
    rows = [tuple(row.values()) for b in SOURCE.read(0) for row in b.to_pylist()][:900]
    shuffled = rows[:]
    random.Random(1).shuffle(shuffled)
    sorted_store = prepare_store(list_source(tuple(rows), 100, 60), tmp_path / "a")
    mixed_store = prepare_store(list_source(tuple(shuffled), 100, 60), tmp_path / "b")
    for split in ("train", "heldout", "test"):
        first, second = texts(sorted_store, split), texts(mixed_store, split)
        assert first.keys() == second.keys() and first
        assert all(sorted(first[name]) == sorted(second[name]) for name in first)


def test_preparing_again_does_nothing(tmp_path):
    store = prepare_store(SOURCE, tmp_path / "store")
    stamp = os.stat(tmp_path / "store" / "manifest.json").st_mtime_ns
    again = prepare_store(SOURCE, tmp_path / "store")
    assert again.fingerprint == store.fingerprint
    assert os.stat(tmp_path / "store" / "manifest.json").st_mtime_ns == stamp


def test_other_settings_are_refused_with_what_differs(tmp_path):
    prepare_store(SOURCE, tmp_path / "store", vocab_size=50)
    with pytest.raises(ValueError, match="vocab_size: 50 there, 60 now"):
        prepare_store(SOURCE, tmp_path / "store", vocab_size=60)
    other = dataclasses.replace(SOURCE, seed=9)
    with pytest.raises(ValueError, match=r"source\.seed: 4 there, 9 now"):
        prepare_store(other, tmp_path / "store", vocab_size=50)
    store = prepare_store(SOURCE, tmp_path / "store", vocab_size=60, restart=True)
    assert store.vocabulary.vocab_size == 60
    assert os.listdir(tmp_path) == ["store"]


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    for restart in (False, True):
        with pytest.raises(ValueError, match="no token store"):
            prepare_store(SOURCE, tmp_path / "mine", restart=restart)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep me"


class Killed(Exception):
    """Stands for the end of the process."""


def test_a_run_stopped_after_any_write_goes_on_to_the_same_store(tmp_path, monkeypatch):
    expected = files(prepare_store(SOURCE, tmp_path / "whole").path)
    real = os.replace
    budget = [0]

    def stop_at(source, target):
        if budget[0] == 0:
            raise Killed
        budget[0] -= 1
        real(source, target)

    monkeypatch.setattr(os, "replace", stop_at)
    stops = 0
    out = tmp_path / "broken"
    while True:
        budget[0] = 3  # three files further each time
        try:
            store = prepare_store(SOURCE, out)
        except Killed:
            stops += 1
            assert not out.exists()
            assert stops < 200
        else:
            break
    assert stops > 5
    assert files(store.path) == expected
    assert sorted(os.listdir(tmp_path)) == ["broken", "whole"]


def test_finished_pieces_are_not_made_again(tmp_path, monkeypatch):
    real = encode.gather_bucket

    def stop(bucket, vocabulary, work):
        if bucket == 2:
            raise Killed
        return real(bucket, vocabulary, work)

    monkeypatch.setattr(encode, "gather_bucket", stop)
    with pytest.raises(Killed):
        prepare_store(SOURCE, tmp_path / "store")
    monkeypatch.setattr(encode, "gather_bucket", real)

    def refuse(*args):
        raise AssertionError("made again")

    monkeypatch.setattr(encode, "_encode_piece", refuse)
    prepare_store(SOURCE, tmp_path / "store")


def test_a_full_disk_leaves_no_store_and_can_go_on(tmp_path, monkeypatch):
    calls = [0]

    def full(descriptor):
        calls[0] += 1
        if calls[0] > 6:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        prepare_store(SOURCE, tmp_path / "store")
    assert os.listdir(tmp_path) == ["store.partial"]
    assert not list(tmp_path.rglob("*.new"))
    monkeypatch.undo()
    prepare_store(SOURCE, tmp_path / "store")
    assert os.listdir(tmp_path) == ["store"]


def test_a_kill_between_the_rename_and_the_clearing_is_cleared_up(
    tmp_path, monkeypatch
):
    def stop(folder):
        raise Killed

    monkeypatch.setattr(preparation, "_remove", stop)
    with pytest.raises(Killed):
        prepare_store(SOURCE, tmp_path / "store")
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == ["store", "store.partial"]
    shutil.copytree(tmp_path / "store.partial", tmp_path / "other.partial")
    prepare_store(SOURCE, tmp_path / "store")
    # Had the store been removed meanwhile, its parts are made again.
    prepare_store(SOURCE, tmp_path / "other")
    assert files(tmp_path / "other") == files(tmp_path / "store")
    assert sorted(os.listdir(tmp_path)) == ["other", "store"]


# The binary as it is, killed in the middle of a stage.
KILLED = """
import os, runpy, signal, sys
from tff_agg.experiment import progress

stage = sys.argv.pop(1)

class Strike(progress.StageBar):
    def __call__(self, now, done, total):
        if now == stage and done:
            os.kill(os.getpid(), signal.SIGKILL)

progress.StageBar = Strike
sys.argv.insert(1, "prepare")
runpy.run_module("stackoverflow", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_killed_processes_go_on(tmp_path):
    out = tmp_path / "store"
    arguments = [
        *("--source=synthetic", "--users=5000", "--words=80", "--workers=2"),
        f"--out={out}",
    ]
    for stage in ("read", "map words", "write"):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, stage, *arguments],
            cwd=ROOT,
            capture_output=True,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert not out.exists()
    done = subprocess.run(
        [sys.executable, "-m", "stackoverflow", "prepare", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "OOV share" in done.stdout
    store = TokenStore.open(out, verify=True)
    source = SyntheticSource(users=5000, words=80)
    total = sum(store.summary[split]["sentences"] for split in store.summary)
    assert total == source.num_sentences()
    assert os.listdir(tmp_path) == ["store"]


def test_an_unfinished_preparation_of_something_else_is_not_mixed_in(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(encode, "gather_bucket", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare_store(SOURCE, tmp_path / "store")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="max_tokens: 20 there, 10 now"):
        prepare_store(SOURCE, tmp_path / "store", max_tokens=10)
    store = prepare_store(SOURCE, tmp_path / "store", max_tokens=10, restart=True)
    assert store.rows(0).shape[1] == 11


def test_two_preparations_of_one_store_are_refused(tmp_path):
    with (
        preparation._locked(os.fspath(tmp_path / "store.partial")),
        pytest.raises(ValueError, match=f"in use by pid {os.getpid()} "),
    ):
        prepare_store(SOURCE, tmp_path / "store")


def test_empty_words_and_sentences_are_dropped(list_source, tmp_path):
    rows = (
        ("ann", "question", "", "  two  spaces ", "train"),
        ("ann", "question", "", "", "train"),
        ("ann", "answer", "", "   ", "train"),
    )
    store = prepare_store(list_source(rows), tmp_path / "store")
    assert store.summary["train"]["sentences"] == 1
    assert store.vocabulary.decode(store.rows(0)[0]) == "<bos> two spaces <eos>"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("a", "comment", "", "x", "train"), "'type' holds other values than .*row 0"),
        (("a", "answer", "", "x", "dev"), "'split' holds other values than"),
        (("a", "answer", "yesterday", "x", "train"), "creation_date.* YYYY-MM-DD"),
        ((None, "answer", "", "x", "train"), "'client_id' has 1 missing"),
        (("", "answer", "", "x", "train"), "'client_id' is empty in 1 of 1 rows"),
        (("a", "answer", "", None, "train"), "'tokens' has 1 missing"),
    ],
)
def test_bad_input_is_named_and_leaves_no_store(list_source, tmp_path, row, message):
    rows = (("ok", "answer", "", "fine", "train"),) * 3
    with pytest.raises(ValueError, match=message) as caught:
        prepare_store(list_source((*rows, row)), tmp_path / "store")
    assert os.listdir(tmp_path) == [], "mended, it would be another input"
    # What the user wrote is nobody's business who reads the log.
    shown = "".join(traceback.format_exception(caught.value))
    told = shown.partition("\nValueError: ")[2]
    assert told
    for value in ("comment", "dev", "yesterday"):
        assert value not in told


def test_input_without_sentences_or_train_words_is_refused(list_source, tmp_path):
    with pytest.raises(ValueError, match="no sentences"):
        prepare_store(list_source(()), tmp_path / "none")
    rows = (("a", "answer", "", "x", "test"),)
    with pytest.raises(ValueError, match="train split has no words"):
        prepare_store(list_source(rows), tmp_path / "test_only")


@pytest.mark.parametrize("name", ["vocab_size", "max_tokens", "workers"])
def test_wrong_settings_are_named(tmp_path, name):
    with pytest.raises(ValueError, match=f"{name}=0"):
        prepare_store(SOURCE, tmp_path / "store", **{name: 0})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("csv", "x"), "kind='csv'"),
        (("parquet",), "path=None"),
        (("synthetic", "x"), "path='x'"),
    ],
)
def test_sources_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_source(*arguments)


def test_progress_is_reported_for_every_stage(tmp_path):
    seen: dict = {}
    prepare_store(
        SOURCE,
        tmp_path / "store",
        progress=lambda stage, done, total: seen.update({stage: (done, total)}),
    )
    assert list(seen) == ["read", "map words", "write"]
    assert seen["read"] == seen["write"] == (SOURCE.num_sentences(),) * 2


def run_binary(*arguments):
    return command_lines.run(None, "stackoverflow.prepare", *arguments)


def test_the_binary_prints_what_it_made(tmp_path, capsys):
    out = tmp_path / "store"
    assert run_binary("--users=60", "--words=40", f"--out={out}", "--workers=1") == 0
    printed = capsys.readouterr().out
    store = TokenStore.open(out)
    assert len(store.users("train")) > 30
    assert f"{store.summary['train']['sentences']:,}" in printed
    assert "OOV share" in printed


def test_the_command_says_what_is_wrong_and_makes_nothing(tmp_path):
    out = tmp_path / "store"
    with pytest.raises(ValueError, match="/nowhere"):
        run_binary("--source=parquet", "--path=/nowhere", f"--out={out}")
    with pytest.raises(ValueError, match="--download=True needs source=official"):
        run_binary("--download", f"--out={out}")
    assert not out.exists()


def test_reading_data_does_not_load_tensorflow():
    # Workers stay small, and so does everything that only samples or reads.
    code = (
        "import sys, pds, stackoverflow.prepare, stackoverflow.data.official\n"
        "print(sorted({'tensorflow', 'jax', 'tensorflow_federated'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
