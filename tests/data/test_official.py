"""What the reader of TFF's SQLite files promises."""

import contextlib
import os
import sqlite3

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackoverflow.data import official
from stackoverflow.data.example_message import first_texts
from stackoverflow.data.official import OfficialSource
from stackoverflow.data.preparation import prepare_store
from stackoverflow.data.sources import SPLITS
from stackoverflow.data.synthetic import SyntheticSource

SOURCE = SyntheticSource(users=40, words=50, seed=8)


@pytest.fixture(scope="module")
def tff_datasets():
    return pytest.importorskip("tensorflow_federated").simulation.datasets


@pytest.fixture(scope="module")
def clients():
    """The sentences of each client in the features of the published data."""
    found: dict = {}
    for batch in SOURCE.read(0):
        for row in batch.to_pylist():
            client = found.setdefault(row["client_id"], (row["split"], []))
            client[1].append(row)
    return found


def write_sqlite(datasets, clients, path, with_splits=True):
    """Writes clients with TFF's own writer."""
    import tensorflow as tf

    def dataset(client_id):
        rows = clients[client_id][1]
        return tf.data.Dataset.from_tensor_slices(
            {
                "creation_date": [row["creation_date"] for row in rows],
                "score": np.arange(len(rows), dtype=np.int64),
                "tags": ["a|b"] * len(rows),
                "title": ["a title"] * len(rows),
                "tokens": [row["tokens"] for row in rows],
                "type": [row["type"] for row in rows],
            }
        )

    data = datasets.ClientData.from_clients_and_tf_fn(list(clients), dataset)
    datasets.save_to_sql_client_data(
        client_ids=list(clients),
        dataset_fn=data.create_tf_dataset_for_client,
        database_filepath=os.fspath(path),
        split_names_by_client_id=(
            {name: split for name, (split, _) in clients.items()}
            if with_splits
            else None
        ),
    )


@pytest.fixture(scope="module")
def database(tff_datasets, clients, tmp_path_factory):
    path = tmp_path_factory.mktemp("official") / "stackoverflow.sqlite"
    write_sqlite(tff_datasets, clients, path)
    return path


def same(store, expected):
    assert store.summary == expected.summary
    assert store.vocabulary == expected.vocabulary
    for split in SPLITS:
        for a, b in zip(store.users(split), expected.users(split), strict=True):
            assert store.user_name(a) == expected.user_name(b)
            assert np.array_equal(store.rows(a), expected.rows(b))
            assert np.array_equal(store.dates(a), expected.dates(b))


def test_a_file_of_tff_holds_the_same_sentences(database, tmp_path, monkeypatch):
    monkeypatch.setattr(official, "_SHARD_ROWS", 300)
    monkeypatch.setattr(official, "_BATCH_ROWS", 100)
    source = OfficialSource(os.fspath(database))
    assert source.num_sentences() == SOURCE.num_sentences()
    assert source.num_shards() > 2
    store = prepare_store(source, tmp_path / "store")
    same(store, prepare_store(SOURCE, tmp_path / "expected"))


def test_a_folder_is_found_whatever_its_name(database, tmp_path):
    folder = tmp_path / "a#b?c %20"
    folder.mkdir()
    (folder / "stackoverflow.sqlite").write_bytes(database.read_bytes())
    store = prepare_store(OfficialSource(os.fspath(folder)), tmp_path / "s")
    assert len(store.users("train")) > 10


def test_a_file_for_each_split_is_read_by_its_name(tff_datasets, clients, tmp_path):
    folder = tmp_path / "splits"
    folder.mkdir()
    for split in SPLITS:
        some = {k: v for k, v in clients.items() if v[0] == split}
        write_sqlite(tff_datasets, some, folder / f"{split}.sqlite", with_splits=False)
    store = prepare_store(OfficialSource(os.fspath(folder)), tmp_path / "store")
    same(store, prepare_store(SOURCE, tmp_path / "expected"))


def test_a_client_in_two_splits_is_two_users_of_one_name(tmp_path, database):
    path = tmp_path / "x.sqlite"
    path.write_bytes(database.read_bytes())
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "INSERT INTO examples SELECT 'test', client_id, serialized_example_proto "
            "FROM examples WHERE split_name = 'train' LIMIT 30"
        )
        connection.commit()
    store = prepare_store(OfficialSource(os.fspath(path)), tmp_path / "store")
    train = {store.user_name(user) for user in store.users("train")}
    test = {store.user_name(user) for user in store.users("test")}
    assert train & test


def sqlite_file(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(*statement)
        connection.commit()
    return os.fspath(path)


TABLES = [
    (
        "CREATE TABLE examples (split_name TEXT, client_id TEXT, "
        "serialized_example_proto BLOB)",
    ),
    (
        "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, "
        "num_examples INTEGER)",
    ),
]


def test_wrong_layouts_are_named(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        OfficialSource(os.fspath(tmp_path / "nothing"))
    with pytest.raises(ValueError, match=r"neither stackoverflow\.sqlite"):
        OfficialSource(os.fspath(tmp_path))
    (tmp_path / "text").write_text("x" * 5000)
    with pytest.raises(ValueError, match="cannot be read"):
        OfficialSource(os.fspath(tmp_path / "text"))
    path = sqlite_file(tmp_path / "a", ("CREATE TABLE examples (split_name TEXT)",))
    with pytest.raises(ValueError, match="lacks the columns"):
        OfficialSource(path)
    path = sqlite_file(tmp_path / "empty", *TABLES)
    with pytest.raises(ValueError, match="no sentences"):
        prepare_store(OfficialSource(path), tmp_path / "store")


@pytest.mark.parametrize("message", [b"\xff\xff", b"", b"\x0a\x7f\x01"])
def test_messages_that_are_none_are_named_by_row(tmp_path, message):
    path = sqlite_file(
        tmp_path / "a",
        *TABLES,
        ("INSERT INTO examples VALUES ('train', 'me', ?)", (message,)),
        ("INSERT INTO client_metadata VALUES ('me', 'train', 1)",),
    )
    with pytest.raises(ValueError, match="row 1 of table 'examples'"):
        prepare_store(OfficialSource(path), tmp_path / "store")
    assert not (tmp_path / "store").exists()


TEXT = st.binary(max_size=300)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=10),
        st.one_of(
            st.lists(TEXT, max_size=3),
            st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3),
            st.lists(st.floats(width=32), min_size=1, max_size=3),
        ),
        max_size=6,
    )
)
def test_messages_are_decoded_like_tensorflow_encodes_them(tff_datasets, features):
    import tensorflow as tf

    example = tf.train.Example()
    expected = {}
    for name, values in features.items():
        feature = example.features.feature[name]
        if values and isinstance(values[0], int):
            feature.int64_list.value.extend(values)
        elif values and isinstance(values[0], float):
            feature.float_list.value.extend(values)
        else:
            feature.bytes_list.value.extend(values)
            if values:
                expected[name] = values[0]
    message = example.SerializeToString()
    assert first_texts(message, [*features, "no such feature"]) == expected
    for name in list(expected)[:1]:
        assert first_texts(message, [name]) == {name: expected[name]}


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(message):
    with contextlib.suppress(ValueError):
        assert isinstance(first_texts(message, ["tokens"]), dict)
