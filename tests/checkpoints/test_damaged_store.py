"""Damaged checkpoints: an error that names the file, or what was saved; never more."""

import logging
import pathlib
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import fuzzing
from tff_agg.checkpoints import CheckpointStore, StoreError, manifests

_LARGE = np.arange(20_000, dtype=np.float64)
SAVED = {
    1: {"iterate": [np.arange(6.0).reshape(2, 3), np.zeros((0, 3), "<i4")]},
    2: {"iterate": [_LARGE, _LARGE * 2], "state": {"seed": np.arange(2), "x": "y"}},
}


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL)


def write_whole(folder):
    for number, items in SAVED.items():
        CheckpointStore(folder).save(number, items)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_whole(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def names(whole):
    return sorted(str(p.relative_to(whole)) for p in whole.rglob("*") if p.is_file())


def same(first, second):
    if isinstance(first, dict | list):
        keys = first if isinstance(first, dict) else range(len(first))
        return (
            type(first) is type(second)
            and len(first) == len(second)
            and all(same(first[key], second[key]) for key in keys)
        )
    if isinstance(first, np.ndarray):
        return (first.dtype, first.shape) == (second.dtype, second.shape) and (
            first.tobytes() == second.tobytes()
        )
    return first == second


def check_readers(folder, *, same_only=True):
    """Reads all that can be read; whatever comes is what was saved, or an error."""
    store = CheckpointStore(folder)
    for number, items in SAVED.items():
        for name, saved in items.items():
            try:
                found = store.load(number, name)
            except StoreError as error:
                assert str(folder) in str(error)
            else:
                assert not same_only or same(found, saved)
    rounds = store.rounds()
    assert all(type(number) is int for number in rounds)
    for name in ("iterate", "state", "nothing"):
        try:
            restored = store.latest_valid(name)
        except StoreError as error:
            assert str(folder) in str(error)
            continue
        if restored is not None and same_only:
            assert same(restored.value, SAVED[restored.round][name])


def check_writer(folder):
    """A writer goes on, or says which file is in its way."""
    store = CheckpointStore(folder, keep_last=2)
    try:
        store.save(3, SAVED[1])
        store.collect_garbage()
    except StoreError as error:
        assert str(folder) in str(error)
    else:
        assert same(CheckpointStore(folder).load(3, "iterate"), SAVED[1]["iterate"])


def copied(whole, folder):
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    return folder


@fuzzing.examples(100)
@given(which=st.integers(0, 100), edits=fuzzing.EDITS)
def test_bytes_of_any_file(whole, names, tmp_path, which, edits):
    folder = copied(whole, tmp_path / "store")
    path = folder / names[which % len(names)]
    path.write_bytes(fuzzing.edited(path.read_bytes(), edits))
    with fuzzing.no_hang():
        check_readers(folder)
        check_writer(folder)


def write_edited(folder, number, edits):
    """Edits a manifest as somebody would who makes its checksum right again."""
    path = manifests.manifest_path(folder / "manifests", number)
    found = manifests.read_manifest(path)
    items = fuzzing.edited_json(found.items, edits)
    try:
        manifests.write_manifest(path, manifests.Manifest(number, items, found.body))
    except ValueError:  # NaN and the like cannot be written at all
        return


@fuzzing.examples(100)
@given(number=st.sampled_from([1, 2]), edits=fuzzing.JSON_EDITS)
def test_manifests_with_a_right_checksum(whole, tmp_path, number, edits):
    folder = copied(whole, tmp_path / "store")
    write_edited(folder, number, edits)
    with fuzzing.no_hang():
        check_readers(folder, same_only=False)
        check_writer(folder)


@pytest.mark.parametrize("dtype", ["O", "|O", "O,i4", [["a", "O"]], "V8"])
@pytest.mark.parametrize("number", [1, 2])
def test_no_array_of_objects_is_made_of_bytes(whole, tmp_path, dtype, number):
    """Their bytes would be taken for addresses."""
    folder = copied(whole, tmp_path / "store")
    path = manifests.manifest_path(folder / "manifests", number)
    found = manifests.read_manifest(path)
    entry = found.items["iterate"]["list"][0]["array"]
    entry["dtype"], entry["shape"] = dtype, [int(np.prod(entry["shape"]))]
    manifests.write_manifest(path, found)
    with pytest.raises(StoreError, match=f"{number:09d}.json"):
        CheckpointStore(folder).load(number, "iterate")


@pytest.mark.parametrize("name", ["../../mine", "../manifests/000000001.json"])
def test_no_file_outside_the_blobs_is_read_or_removed(whole, tmp_path, name):
    folder = copied(whole, tmp_path / "store")
    (tmp_path / "mine").write_bytes(bytes(160_000))
    path = manifests.manifest_path(folder / "manifests", 2)
    found = manifests.read_manifest(path)
    found.items["iterate"]["list"][0]["array"]["blob"] = name
    manifests.write_manifest(path, found)
    with pytest.raises(StoreError, match=r"000000002\.json"):
        CheckpointStore(folder).load(2, "iterate")
    CheckpointStore(folder, keep_last=1).save(3, SAVED[1])
    CheckpointStore(folder, keep_last=1).save(4, SAVED[1])
    assert (tmp_path / "mine").exists()


@pytest.mark.parametrize("name", ["1.txt", ".json", "²³.json", "x.json", "1.json"])
def test_other_files_are_no_rounds(whole, tmp_path, name):
    folder = copied(whole, tmp_path / "store")
    pathlib.Path(folder / "manifests" / name).write_text("x")
    assert CheckpointStore(folder).rounds() == [1, 2]
