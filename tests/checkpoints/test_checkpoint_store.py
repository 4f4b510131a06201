"""What the checkpoint store promises: bit-exact, checked, shared, owner-only."""

import collections
import logging
import os
import stat
from typing import NamedTuple

import numpy as np
import pytest

from tests.identical import assert_identical
from tff_agg import checkpoints, digests
from tff_agg.checkpoints import CheckpointStore, manifests


def weights(seed: int, size: int = 20_000) -> list[np.ndarray]:
    """One array that stands in the manifest, one that is a blob."""
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(size).astype(np.float32),
        rng.standard_normal((size, 2)).astype(np.float32),
    ]


class Point(NamedTuple):
    x: int


def files(folder):
    return [p for p in folder.rglob("*") if p.is_file()]


def test_what_is_prepared_is_told_apart_by_all_that_comes_back(tmp_path):
    array = np.arange(6, dtype=np.int32)
    others = [
        array,
        array.reshape(2, 3),
        array.view(np.float32),
        [array],
        (array,),
        {"a": array},
        {"b": array},
        collections.OrderedDict(a=array),
        np.int32(1),
        np.array(1, np.int32),
        "1",
    ]
    items = {str(number): value for number, value in enumerate(others)}
    store = CheckpointStore(tmp_path)
    assert len(set(store.prepare(items).digests.values())) == len(others)
    again = store.prepare({"x": array.copy(), "y": array[::-1][::-1]}).digests
    assert again["x"] == again["y"] == store.prepare(items).digests["0"]
    assert not list(tmp_path.iterdir())


def test_each_array_is_digested_once(tmp_path, monkeypatch):
    digested = []
    real = digests.of_array
    monkeypatch.setattr(
        digests, "of_array", lambda array: digested.append(array) or real(array)
    )
    iterate, average = weights(0), weights(1)
    store = CheckpointStore(tmp_path)
    prepared = store.prepare(
        {"iterate": iterate, "aggregate": average, "state": [*iterate, *average]}
    )
    store.commit(1, prepared | store.prepare({"record": "1"}))
    large = [array for array in digested if array.nbytes > 1 << 17]
    assert len(large) == 2
    assert_identical(store.load(1, "state"), [*iterate, *average])


def test_a_manifest_is_not_read_back_to_lose_its_state(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep_last={"iterate": 3})
    monkeypatch.setattr(manifests, "read_manifest", None)
    for number in range(6):
        store.save(number, {"iterate": weights(number, 10), "state": weights(9, 10)})
        store.discard({"state": 2}, durable=False)
    monkeypatch.undo()
    assert store.rounds("state") == [4, 5]
    assert store.rounds("iterate") == [3, 4, 5]
    assert_identical(store.load(3, "iterate"), weights(3, 10))


@pytest.mark.parametrize("size", [1000, 20_000], ids=["in the manifest", "blobs"])
def test_restored_arrays_can_be_written_and_are_apart(tmp_path, size):
    same = np.arange(float(size))
    CheckpointStore(tmp_path).save(0, {"x": [same, same.copy(), np.zeros(3)]})
    a, b, small = CheckpointStore(tmp_path).load(0, "x")
    a[0] = 7
    small[0] = 7
    assert b[0] == 0


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (np.array([object()]), "dtype object"),
        (Point(1), "Point"),
        (object(), "builtins.object"),
        ({1: np.zeros(2)}, "key"),
        (1, "builtins.int"),
        (np.void(b"1"), "dtype"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_located(tmp_path, value, what):
    store = CheckpointStore(tmp_path)
    with pytest.raises(TypeError, match=what) as caught:
        store.save(0, {"state": {"a": ["1", value]}})
    assert "'state'['a'][1]" in str(caught.value)
    assert store.rounds() == []


@pytest.mark.parametrize("bad", [-1, 1.5, True, "1"])
def test_a_round_is_a_number_from_zero(tmp_path, bad):
    with pytest.raises(ValueError, match="round must be a whole number"):
        CheckpointStore(tmp_path).save(bad, {"x": "1"})


def test_rounds_names_and_iteration(tmp_path):
    store = CheckpointStore(tmp_path)
    for t in (5, 0, 3):
        store.save(t, {"iterate": weights(t)})
    store.save(3, {"state": {"t": np.array(3)}})
    assert store.rounds() == store.rounds("iterate") == [0, 3, 5]
    assert store.rounds("state") == [3]
    seen = dict(store.iterate("iterate", [5, 0]))
    assert list(seen) == [5, 0]
    assert_identical(seen[0], weights(0))
    assert [t for t, _ in store.iterate("iterate")] == [0, 3, 5]
    with pytest.raises(checkpoints.MissingCheckpointError, match="round 4"):
        store.load(4, "iterate")
    with pytest.raises(checkpoints.MissingCheckpointError, match="'state'"):
        store.load(5, "state")


def test_a_reader_sees_what_a_writer_adds(tmp_path):
    reader = CheckpointStore(tmp_path)
    assert reader.rounds("x") == [] and reader.latest_valid("x") is None
    writer = CheckpointStore(tmp_path, keep_last=1)
    for t in range(3):
        writer.save(t, {"x": weights(t)})
        assert reader.rounds("x") == [t]
        restored = reader.latest_valid("x")
        assert restored is not None and restored.round == t


def test_opening_and_reading_writes_nothing(tmp_path):
    store = CheckpointStore(tmp_path / "absent")
    assert store.rounds() == [] and store.latest_valid("x") is None
    assert not (tmp_path / "absent").exists()


def test_a_window_of_checkpoints_costs_nothing_twice(tmp_path):
    store = CheckpointStore(tmp_path, keep_last={"state": 2})
    window: list = []
    for t in range(8):
        window = [*window, weights(t)][-3:]
        before = {p: p.stat().st_mtime_ns for p in files(tmp_path / "blobs")}
        store.save(t, {"iterate": window[-1], "state": {"window": window}})
        now = {p: p.stat().st_mtime_ns for p in files(tmp_path / "blobs")}
        assert before.items() <= now.items()  # Nothing rewritten, nothing lost.
        assert len(now) - len(before) == 1  # The new round's large array, once.
    assert store.rounds("state") == [6, 7]
    assert store.rounds("iterate") == list(range(8))


@pytest.mark.parametrize(
    ("last", "every", "kept"),
    [
        (None, None, list(range(12))),
        (3, None, [9, 10, 11]),
        (None, 4, [0, 4, 8, 11]),
        (2, 5, [0, 5, 10, 11]),
        ({"y": 1}, None, list(range(12))),
        ({"x": 2, "y": 1}, {"x": 6}, [0, 6, 10, 11]),
    ],
)
def test_policies_keep_what_they_say_and_free_the_rest(tmp_path, last, every, kept):
    store = CheckpointStore(tmp_path, keep_last=last, keep_every=every)
    for t in range(12):
        store.save(t, {"x": weights(t)})
    assert store.rounds("x") == kept
    assert len(files(tmp_path / "blobs")) == len(kept)
    for t in kept:
        assert_identical(store.load(t, "x"), weights(t))


@pytest.mark.parametrize("bad", [0, -1, 1.5, {"x": 0}])
def test_policies_are_checked(tmp_path, bad):
    with pytest.raises(ValueError, match="keep_last"):
        CheckpointStore(tmp_path, keep_last=bad)
    with pytest.raises(ValueError, match="keep_every"):
        CheckpointStore(tmp_path, keep_every=bad)


def test_arrays_shared_with_a_kept_round_survive(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(0, {"x": weights(0)})
    store.save(1, {"x": weights(0)})
    assert store.rounds() == [1]
    assert_identical(CheckpointStore(tmp_path).load(1, "x"), weights(0))


def test_files_belong_to_their_owner_alone(tmp_path):
    old = os.umask(0)
    try:
        CheckpointStore(tmp_path / "run" / "c").save(0, {"x": weights(0)})
    finally:
        os.umask(old)
    root = tmp_path / "run" / "c"
    assert len(files(root)) == 2
    for path in [root, *root.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def damage_by_truncating(path):
    os.truncate(path, path.stat().st_size // 2)


def damage_by_emptying(path):
    os.truncate(path, 0)


def damage_by_flipping(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_by_removing(path):
    path.unlink()


_DAMAGES = [damage_by_truncating, damage_by_emptying, damage_by_flipping]


@pytest.mark.parametrize(
    ("what", "damage"),
    [
        *((what, d) for what in ("blob", "manifest") for d in _DAMAGES),
        # A round without a manifest is absent, not damaged.
        ("blob", damage_by_removing),
    ],
)
def test_damage_is_named_and_the_one_before_used(tmp_path, what, damage, caplog):
    store = CheckpointStore(tmp_path)
    store.save(0, {"x": weights(0)})
    store.save(1, {"x": weights(1)})
    old = set(files(tmp_path))
    store.save(2, {"x": weights(2)})
    kind = "manifests" if what == "manifest" else "blobs"
    victim = sorted(p for p in set(files(tmp_path)) - old if p.parent.name == kind)[0]
    damage(victim)

    reader = CheckpointStore(tmp_path)
    with pytest.raises(checkpoints.CorruptCheckpointError, match=victim.name) as caught:
        reader.load(2, "x")
    assert caught.value.path == victim
    with caplog.at_level(logging.WARNING):
        restored = reader.latest_valid("x")
    assert restored is not None and restored.round == 1
    assert_identical(restored.value, weights(1))
    (warning,) = caplog.messages
    assert "Round 2 is skipped" in warning and str(victim) in warning

    # The next process redoes the round, with the very same content, and heals it.
    writer = CheckpointStore(tmp_path)
    writer.save(2, {"x": weights(2)})
    assert_identical(CheckpointStore(tmp_path).load(2, "x"), weights(2))


def test_every_flipped_byte_is_noticed(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(0, {"x": weights(0), "n": "five"})
    rng = np.random.default_rng(0)
    for path in files(tmp_path):
        good = path.read_bytes()
        for position in rng.choice(len(good), min(150, len(good)), replace=False):
            bad = bytearray(good)
            bad[position] ^= 1 << rng.integers(8)
            path.write_bytes(bad)
            try:
                value = [store.load(0, "x"), store.load(0, "n")]
            except checkpoints.StoreError:
                continue
            pytest.fail(f"byte {position} of {path} was changed: {value}")
        path.write_bytes(good)
    assert_identical(store.load(0, "x"), weights(0))


def test_a_later_format_is_neither_read_nor_collected(tmp_path, monkeypatch):
    monkeypatch.setattr(manifests, "_FORMAT", 99)
    CheckpointStore(tmp_path).save(0, {"x": weights(0)})
    monkeypatch.undo()
    before = files(tmp_path)
    with pytest.raises(checkpoints.StoreError, match="format 99"):
        CheckpointStore(tmp_path).load(0, "x")
    with pytest.raises(checkpoints.StoreError, match="format 99"):
        CheckpointStore(tmp_path).save(1, {"x": weights(1)})
    assert set(before) <= set(files(tmp_path))


def test_garbage_goes_and_nothing_else(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(0, {"x": weights(0)})
    (tmp_path / "blobs" / ("0" * 64)).write_bytes(b"orphan")
    (tmp_path / "blobs" / ".tmp-1-1").write_bytes(b"half")
    (tmp_path / "manifests" / ".tmp-1-2").write_bytes(b"half")
    assert CheckpointStore(tmp_path).collect_garbage() == 1
    assert len(files(tmp_path)) == 2
    assert_identical(store.load(0, "x"), weights(0))


def test_garbage_is_also_what_a_broken_save_did_not_let_go(tmp_path):
    store = CheckpointStore(tmp_path)
    for number in range(3):
        store.save(number, {"x": weights(number), "y": weights(9)})
    kept = CheckpointStore(tmp_path, keep_last={"x": 1})
    kept.collect_garbage()
    assert kept.rounds("x") == [2] and kept.rounds("y") == [0, 1, 2]
    assert_identical(kept.load(0, "y"), weights(9))


def test_what_a_round_loses_is_in_no_file_any_more(tmp_path):
    secret = np.random.default_rng(0).integers(0, 1 << 60, 100)
    store = CheckpointStore(tmp_path)
    for number in range(2):
        state = [secret + number, *weights(number)]
        store.save(number, {"iterate": weights(number), "state": state})
    holding = [p for p in files(tmp_path) if secret.tobytes() in p.read_bytes()]
    assert len(holding) == 1
    store.discard({"state": 1})
    assert not [p for p in files(tmp_path) if secret.tobytes() in p.read_bytes()]
    for number in range(2):
        assert_identical(store.load(number, "iterate"), weights(number))
