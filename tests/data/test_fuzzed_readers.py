"""Every reader of sentences under damaged and odd files.

What comes out is sentences in the form of `SCHEMA`, or a ValueError that names the
file: no other exception, and nothing slow.
"""

import contextlib
import csv
import json
import os
import shutil
import sqlite3

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackoverflow.data.preparation import prepare_store
from stackoverflow.data.sources import SCHEMA, SPLITS, TYPES, make_source
from stackoverflow.data.synthetic import SyntheticSource
from tests import fuzzing


def example(tokens, kind):
    """Returns a tf.train.Example of two features."""

    def field(number, content):
        return bytes([number << 3 | 2, len(content)]) + content

    def entry(name, text):
        value = field(1, field(1, text.encode()))
        return field(1, field(1, name.encode()) + field(2, value))

    return field(1, entry("tokens", tokens) + entry("type", kind))


def write_sqlite(path, rows):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(
            "CREATE TABLE examples (split_name, client_id, serialized_example_proto)"
        )
        connection.execute(
            "CREATE TABLE client_metadata (client_id, split_name, num_examples)"
        )
        connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
        connection.execute("INSERT INTO client_metadata VALUES ('a', 'train', 30)")
        connection.commit()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_whole(tmp_path_factory.mktemp("files") / "whole")


def write_whole(folder):
    """Writes a whole file of each kind."""
    folder.mkdir()
    rows = next(SyntheticSource(users=10, words=40, seed=3).read(0)).slice(0, 30)
    pq.write_table(
        pa.Table.from_batches([rows]), folder / "x.parquet", row_group_size=20
    )
    posts = [
        {"user": row["client_id"], "text": row["tokens"], "time": "2020-01-02"}
        for row in rows.to_pylist()
    ]
    (folder / "x.jsonl").write_text("".join(json.dumps(p) + "\n" for p in posts))
    write_csv(folder / "x.csv", list(posts[0]), [list(p.values()) for p in posts])
    write_sqlite(
        folder / "x.sqlite",
        [
            (row["split"], row["client_id"], example(row["tokens"][:90], row["type"]))
            for row in rows.to_pylist()
        ],
    )
    return folder


def write_csv(path, header, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


KINDS = {"x.csv": "text", "x.jsonl": "text", "x.parquet": "parquet"}
KINDS["x.sqlite"] = "official"


def sentences(path):
    """Reads a file; returns its sentences, or None where it is refused."""
    try:
        with fuzzing.no_hang():
            source = make_source(KINDS[path.name], os.fspath(path))
            number = source.num_sentences()
            assert number is None or 0 <= number < 1e6
            batches = [b for i in range(source.num_shards()) for b in source.read(i)]
    except ValueError as error:
        assert os.fspath(path) in str(error), error
        return None
    table = pa.Table.from_batches(batches, SCHEMA)
    table.validate(full=True)
    found = table.to_pylist()
    assert all(row["type"] in TYPES for row in found if path.suffix != ".sqlite")
    return found


def prepare(path, out):
    """Prepares a store of a file, or is refused and leaves nothing behind."""
    try:
        with fuzzing.no_hang():
            source = make_source(KINDS[path.name], os.fspath(path))
            store = prepare_store(source, out, vocab_size=20)
    except ValueError as error:
        named = os.fspath(path) in str(error)
        assert named or "no words" in str(error) or "no sentences" in str(error), error
        assert not out.exists()
    else:
        for split in SPLITS:
            for user in store.users(split):
                store.rows(user)
        shutil.rmtree(out)


@fuzzing.examples(200)
@given(name=st.sampled_from(sorted(KINDS)), edits=fuzzing.EDITS)
def test_bytes_of_any_file(files, tmp_path, name, edits):
    path = tmp_path / name
    path.write_bytes(fuzzing.edited((files / name).read_bytes(), edits))
    sentences(path)


@fuzzing.examples(50)
@given(name=st.sampled_from(sorted(KINDS)), edits=fuzzing.EDITS)
def test_a_store_of_damaged_files(files, tmp_path, name, edits):
    path = tmp_path / name
    path.write_bytes(fuzzing.edited((files / name).read_bytes(), edits))
    prepare(path, tmp_path / "store")


ODD = st.sampled_from(
    ["", " ", "ann", "answer", "2020-02-30", "2020-01-02", "a\x00b", '"', "\u2028"]
)
TEXT = st.one_of(ODD, st.text(max_size=12))
VALUE = st.one_of(TEXT, fuzzing.JSON)


@fuzzing.examples(60)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"user": VALUE, "text": VALUE}, optional={"time": VALUE, "type": VALUE}
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_json(tmp_path, rows):
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sentences(path)


@fuzzing.examples(60)
@given(st.lists(st.tuples(TEXT, TEXT), max_size=4))
def test_the_same_rows_say_the_same_as_csv_and_as_json(tmp_path, rows):
    rows = [tuple(t.replace("\r", "") for t in row) for row in rows]
    write_csv(tmp_path / "x.csv", ["user", "text"], rows)
    lines = [json.dumps(dict(user=user, text=text)) + "\n" for user, text in rows]
    first = json.dumps(dict(user="ann", text="!")) + "\n"
    (tmp_path / "x.jsonl").write_text("".join([first, *lines]))
    from_json = sentences(tmp_path / "x.jsonl")
    assert sentences(tmp_path / "x.csv") == (from_json and from_json[1:])


COLUMN = st.one_of(
    st.lists(TEXT | st.none(), min_size=3, max_size=3).map(pa.array),
    st.lists(st.binary(max_size=5), min_size=3, max_size=3).map(pa.array),
    st.lists(st.integers(0, 9), min_size=3, max_size=3).map(pa.array),
    st.lists(ODD, min_size=3, max_size=3).map(lambda v: pa.array(v, pa.large_string())),
    st.lists(ODD, min_size=3, max_size=3).map(
        lambda v: pa.array(v).dictionary_encode()
    ),
)


@fuzzing.examples(60)
@given(st.dictionaries(st.sampled_from(SCHEMA.names), COLUMN, max_size=2))
def test_any_columns_of_parquet(tmp_path, columns):
    table = {
        "client_id": pa.array(["a", "b", "c"]),
        "type": pa.array([TYPES[0]] * 3),
        "tokens": pa.array(["x y"] * 3),
        "split": pa.array([SPLITS[0]] * 3),
        **columns,
    }
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    sentences(tmp_path / "x.parquet")


CELL = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    TEXT,
    st.binary(max_size=30),
    st.sampled_from([example("a b", "answer"), example("", "question"), "train"]),
)


@fuzzing.examples(60)
@given(st.lists(st.tuples(CELL, CELL, CELL), max_size=3), CELL)
def test_any_rows_of_sqlite(tmp_path, rows, number):
    path = tmp_path / "x.sqlite"
    path.unlink(missing_ok=True)
    try:
        write_sqlite(path, [("train", "ann", example("a b", "answer")), *rows])
    except UnicodeEncodeError:
        return
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("UPDATE client_metadata SET num_examples = ?", (number,))
        connection.commit()
    sentences(path)
