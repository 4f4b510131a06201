"""Damaged token stores: an error that names the folder, or the same sentences."""

import json
import pathlib
import shutil

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackoverflow.data import store_manifest
from stackoverflow.data.preparation import prepare_store
from stackoverflow.data.sources import SPLITS
from stackoverflow.data.store_manifest import TokenStoreError
from stackoverflow.data.synthetic import SyntheticSource
from stackoverflow.data.token_store import TokenStore
from tests import fuzzing
from tff_agg.privacy import KeySelection

NAMES = ("manifest.json", "vocabulary.json", "users.arrow", "part-00000.arrow")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_whole(tmp_path_factory.mktemp("stores") / "store")


def write_whole(folder):
    selection = KeySelection(5, 0.5, delta=1e-3)
    source = SyntheticSource(users=30, words=40, seed=2)
    prepare_store(source, folder, max_tokens=8, selection=selection)
    assert sorted(p.name for p in folder.iterdir()) == sorted(NAMES)
    return folder


@pytest.fixture(scope="module")
def saved(whole):
    return contents(whole)


def contents(folder):
    """Returns everything that a store says."""
    store = TokenStore.open(folder)
    found = [repr(store.releases), store.fingerprint, dict(store.summary)]
    found.append(dict(store.users_shared_with_train))
    for split in SPLITS:
        found.append(store.sample_rows(split, 20, seed=3).tolist())
        for user in store.users(split):
            found.append(store.user_name(user))
            rows = store.rows(user)
            found.append([store.vocabulary.decode(row) for row in rows])
            found.append(store.rows(user, type="answer").tolist())
            found.append(store.dates(user).astype(str).tolist())
    return found


def check(folder, saved=None):
    with fuzzing.no_hang():
        try:
            found = contents(folder)
        except TokenStoreError as error:
            assert str(folder) in str(error)
        else:
            assert saved is None or found == saved


def copied(whole, folder):
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    return folder


@fuzzing.examples(100)
@given(name=st.sampled_from(NAMES), edits=fuzzing.EDITS)
def test_bytes_of_any_file(whole, saved, tmp_path, name, edits):
    folder = copied(whole, tmp_path / "store")
    path = folder / name
    path.write_bytes(fuzzing.edited(path.read_bytes(), edits))
    check(folder, saved)


def sign(folder, manifest=None):
    """Makes all checksums right again, as whoever edits a store can do."""
    manifest = manifest or json.loads((folder / "manifest.json").read_text())
    try:
        for name, entry in manifest["files"].items():
            entry["bytes"] = (folder / name).stat().st_size
            entry["sha256"] = store_manifest.file_sha256(folder / name)
    except (KeyError, TypeError, AttributeError, OSError, ValueError):
        pass  # an edit of the manifest itself
    if isinstance(manifest, dict):
        manifest["sha256"] = store_manifest.manifest_sha256(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


@fuzzing.examples(100)
@given(name=st.sampled_from(NAMES[1:]), edits=fuzzing.EDITS)
def test_bytes_with_right_checksums(whole, tmp_path, name, edits):
    folder = copied(whole, tmp_path / "store")
    path = folder / name
    path.write_bytes(fuzzing.edited(path.read_bytes(), edits))
    sign(folder)
    check(folder)


@fuzzing.examples(80)
@given(name=st.sampled_from(NAMES[:2]), edits=fuzzing.JSON_EDITS)
def test_values_with_right_checksums(whole, tmp_path, name, edits):
    folder = copied(whole, tmp_path / "store")
    path = folder / name
    changed = fuzzing.edited_json(json.loads(path.read_text()), edits)
    if name == "manifest.json":
        sign(folder, changed if changed is not None else [])
    else:
        path.write_text(json.dumps(changed))
        sign(folder)
    check(folder)


def rewritten(path, **columns):
    """Writes an Arrow file anew with other columns."""
    batch = pa.ipc.open_file(path.read_bytes()).get_batch(0)
    for name, column in columns.items():
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, name, pa.array(column))
    with pa.ipc.new_file(path, batch.schema) as writer:
        writer.write_batch(batch)


NUMBERS = st.sampled_from([-1, 0, 1, 7, 2**20, 2**31 - 1])


@fuzzing.examples(100)
@given(
    column=st.sampled_from(["split", "part", "start", "questions", "answers"]),
    place=st.integers(0, 29),
    value=NUMBERS,
)
def test_users_who_point_elsewhere(whole, tmp_path, column, place, value):
    folder = copied(whole, tmp_path / "store")
    path = folder / "users.arrow"
    batch = pa.ipc.open_file(path.read_bytes()).get_batch(0)
    values = batch.column(column).to_numpy().copy()
    values[place] = np.array(value).astype(values.dtype)
    rewritten(path, **{column: values})
    sign(folder)
    check(folder)


@pytest.mark.parametrize("words", [[[65_535]], [[1] * 9], [[0]], [[1]]])
def test_words_that_are_none(whole, tmp_path, words):
    folder = copied(whole, tmp_path / "store")
    path = folder / "part-00000.arrow"
    days = pa.ipc.open_file(path.read_bytes()).get_batch(0).column("day")
    kind = pa.list_(pa.uint16())
    rewritten(path, words=pa.array(words * len(days), kind))
    sign(folder)
    if words == [[1]]:
        assert TokenStore.open(folder).rows(0)[0, 1] == 1
        return
    with pytest.raises(TokenStoreError, match=r"part-00000\.arrow"):
        TokenStore.open(folder).rows(0)


def test_no_file_outside_the_store_is_read(whole, tmp_path):
    folder = copied(whole, tmp_path / "store")
    manifest = json.loads((folder / "manifest.json").read_text())
    pathlib.Path(tmp_path / "mine").write_text("mine")
    manifest["files"]["../mine"] = {}
    sign(folder, manifest)
    with pytest.raises(TokenStoreError, match=r"manifest\.json.*'\.\./mine'"):
        TokenStore.open(folder)
