"""Input that nobody should have: an error that names the file, and nothing slow."""

import contextlib
import json
import os
import pathlib
import sqlite3
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stackoverflow.data.official import OfficialSource
from stackoverflow.data.parquet import ParquetSource
from stackoverflow.data.preparation import prepare_store
from stackoverflow.data.text import TextSource

GOOD = b'{"user": "ann", "text": "fine"}\n'
SECRET = "secret"
# tf.train.Example with the features `tokens` and `type`.
EXAMPLE = (
    b"\n*\n\x14\n\x06tokens\x12\n\n\x08\n\x06a loop"
    b"\n\x12\n\x04type\x12\n\n\x08\n\x06answer"
)
LARGEST = 2**63 - 1


def refusal(source, tmp_path):
    """Returns the error of a preparation, which has left nothing behind."""
    with pytest.raises(ValueError) as caught:
        prepare_store(source(), tmp_path / "store")
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "store.partial").exists()
    assert SECRET not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "line, message",
    [
        (b'{"user": "ann", "text": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"user": "secret\\ud800", "text": "x"}', "'user' holds half a character"),
        (
            b'{"user": "a", "text": "x", "time": "secret\\udfff"}',
            "'time' holds half a character",
        ),
        (b'{"user": ' + b"9" * 6000 + b', "text": "x"}', "a number of more than 4300"),
        (b'{"user": "a", "text": "x", "n": ' + b"9" * 6000 + b"}", "a number of more"),
        (b'{"user": "secret\xff", "text": "x"}', "bytes that are not UTF-8"),
    ],
    ids=["deep", "user", "time", "digits", "other digits", "bytes"],
)
def test_json_that_no_reader_likes_is_refused_by_file_and_line(tmp_path, line, message):
    path = tmp_path / "x.jsonl"
    path.write_bytes(GOOD + line + b"\n")
    said = refusal(lambda: TextSource(os.fspath(path)), tmp_path)
    assert f"{path}, line 2: " in said and message in said


def test_half_a_character_in_a_text_is_no_token(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(GOOD + b'{"user": "ann", "text": "cut\\ud83d off"}\n')
    store = prepare_store(TextSource(os.fspath(path)), tmp_path / "store")
    assert set(store.vocabulary.words) == {"fine", "cut", "off"}


def test_a_field_of_a_million_characters_is_read(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("user,text\nann," + "loop " * 200_000 + "\n")
    store = prepare_store(TextSource(os.fspath(path)), tmp_path / "store")
    assert store.vocabulary.words == ("loop",)


def test_a_quote_that_never_ends_does_not_take_the_whole_file(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('user,text\nann,"' + "secret loop\n" * 3_000_000)
    said = refusal(lambda: TextSource(os.fspath(path)), tmp_path)
    assert f"{path}, line 2: " in said and "more than 16,777,216 characters" in said


def test_a_line_without_end_is_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    with open(path, "wb") as file:
        file.write(GOOD)
        file.seek(1 << 30)  # a hole, which takes no room on the disk
        file.write(b"x")
    said = refusal(lambda: TextSource(os.fspath(path)), tmp_path)
    assert f"{path}, line 2: " in said and "longer than" in said


def database(path, *rows):
    """Writes TFF's layout; a row is (split, client, message) or begins with a rowid."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TABLE examples (split_name TEXT, client_id, "
            "serialized_example_proto)"
        )
        connection.execute(
            "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, "
            "num_examples INTEGER)"
        )
        for row in rows:
            names = "rowid, " if len(row) == 4 else ""
            connection.execute(
                f"INSERT INTO examples ({names}split_name, client_id, "
                f"serialized_example_proto) VALUES ({', '.join('?' * len(row))})",
                row,
            )
        connection.commit()
    return os.fspath(path)


@pytest.mark.parametrize(
    "row, message",
    [
        (("train", "ann", None), "serialized_example_proto is missing"),
        (("train", "ann", 7), "serialized_example_proto is int"),
        (("train", None, EXAMPLE), "client_id is missing"),
        (("train", 1.5, EXAMPLE), "client_id is float"),
        (("train", b"secret\xff", EXAMPLE), "client_id is not UTF-8"),
        (("train", "ann", "secret"), "no message with tokens and type"),
        ((None, "ann", EXAMPLE), "split_name is missing"),
    ],
    ids=["null", "number", "nobody", "1.5", "bytes", "text", "no split"],
)
def test_rows_of_sqlite_that_are_none_are_refused_by_file_and_row(
    tmp_path, row, message
):
    path = database(tmp_path / "x.sqlite", ("train", "ann", EXAMPLE), row)
    said = refusal(lambda: OfficialSource(path), tmp_path)
    assert f"{path}: row 2 of table 'examples'" in said and message in said


def test_an_id_of_sqlite_that_is_not_utf8_is_refused_by_file_and_row(tmp_path):
    path = database(tmp_path / "x.sqlite", ("train", "ann", EXAMPLE))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "UPDATE examples SET client_id = CAST(? AS TEXT)", (b"secret\xff",)
        )
        connection.commit()
    said = refusal(lambda: OfficialSource(path), tmp_path)
    assert f"{path}: row 1 of table 'examples'" in said


def test_a_schema_of_sqlite_that_is_not_utf8_is_refused_by_file(tmp_path):
    path = database(tmp_path / "x.sqlite", ("train", "ann", EXAMPLE))
    whole = pathlib.Path(path).read_bytes()
    damaged = whole.replace(b"CREATE TABLE examples", b"CREATE\x80TABLE examples")
    assert damaged != whole
    pathlib.Path(path).write_bytes(damaged)
    with pytest.raises(ValueError, match="cannot be read") as error:
        OfficialSource(path)
    assert path in str(error.value)


def test_numbers_of_clients_are_their_names(tmp_path):
    path = database(tmp_path / "x.sqlite", ("train", 12, EXAMPLE))
    store = prepare_store(OfficialSource(path), tmp_path / "store")
    assert store.user_name(0) == "12"


@pytest.mark.parametrize(
    "numbers",
    [
        (1, 10**15),
        (LARGEST,),
        (-LARGEST, 0, 5, LARGEST),
        tuple(10**9 * n for n in range(20_000)),
    ],
    ids=["gap", "largest", "all", "many gaps"],
)
def test_gaps_between_row_numbers_are_not_walked(tmp_path, numbers):
    rows = [(number, "train", "ann", EXAMPLE) for number in numbers]
    source = OfficialSource(database(tmp_path / "x.sqlite", *rows))
    began = time.process_time()
    assert source.num_shards() <= min(len(numbers), 4096)
    read = sum(b.num_rows for i in range(source.num_shards()) for b in source.read(i))
    assert read == len(numbers)
    assert time.process_time() - began < 20


def test_a_view_is_no_table(tmp_path):
    path = database(tmp_path / "x.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE examples")
        connection.execute(
            "CREATE VIEW examples AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL "
            "SELECT i + 1 FROM n) SELECT 'train' AS split_name, i AS client_id, "
            "x'00' AS serialized_example_proto, i AS rowid FROM n"
        )
        connection.commit()
    said = refusal(lambda: OfficialSource(path), tmp_path)
    assert path in said and "'examples' is a view" in said


def test_a_date_that_is_none_is_refused_by_file(tmp_path):
    path = os.fspath(tmp_path / "x.parquet")
    columns = {
        "client_id": ["ann", "ben"],
        "type": ["answer", "answer"],
        "creation_date": ["2010-01-02", SECRET],
        "tokens": ["a", "b"],
        "split": ["train", "train"],
    }
    pq.write_table(pa.table(columns), path)
    said = refusal(lambda: ParquetSource(path), tmp_path)
    assert path in said and "creation_date" in said


def test_a_column_whose_name_is_not_utf8_is_refused_by_file(tmp_path):
    path = tmp_path / "x.parquet"
    table = pa.table({name: ["a"] for name in ("client_id", "type", "split", "tokens")})
    pq.write_table(table, path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"tokens", b"tok\xfens"))
    said = refusal(lambda: ParquetSource(os.fspath(path)), tmp_path)
    assert f"path={os.fspath(path)!r}" in said


def test_a_list_that_is_no_row_is_refused_by_file_and_line(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"user": "ann", "text": ["secret"]}) + "\n")
    said = refusal(lambda: TextSource(os.fspath(path)), tmp_path)
    assert f"{path}, line 1: 'text' is list" in said
