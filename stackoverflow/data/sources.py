"""The one schema that every source of sentences is read into.

A source cuts its input into shards that can be read independently, in any order and in
any process. Reading a shard yields Arrow batches of the columns in `SCHEMA`; the same
shard always yields the same batches, which is what lets a killed preparation go on.
"""

import hashlib
import os
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tff_agg.aliases import JsonObject

# The names that flags have for sources.
KINDS = ("synthetic", "parquet", "text", "official")
SPLITS = ("train", "heldout", "test")
TYPES = ("question", "answer")

SCHEMA = pa.schema(
    [
        ("client_id", pa.string()),
        ("type", pa.string()),
        ("creation_date", pa.string()),
        ("tokens", pa.string()),
        ("split", pa.string()),
    ]
)


# May be left out, or hold missing values.
OPTIONAL = ("creation_date",)


class Source(Protocol):
    """Where sentences come from."""

    @property
    def name(self) -> str:
        """A short name of the kind of source, such as `'parquet'`."""
        ...

    def fingerprint(self) -> JsonObject:
        """Returns JSON values that change whenever the sentences may have changed."""
        ...

    def num_shards(self) -> int:
        """Returns how many shards the input is cut into."""
        ...

    def num_sentences(self) -> int | None:
        """Returns the number of sentences, or None where counting means reading."""
        ...

    def where(self, shard: int) -> str:
        """Names the place that a shard is read from, for errors: its file."""
        ...

    def read(self, shard: int) -> Iterator[pa.RecordBatch]:
        """Yields the sentences of a shard in a fixed order, in the form of `SCHEMA`."""
        ...


def file_fingerprint(path: str) -> JsonObject:
    """Returns size, modification time and a hash of both ends of a file."""
    if not os.path.isfile(path):
        raise ValueError(f"path={path!r}: there is no such file")
    size = os.path.getsize(path)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        digest.update(file.read(1 << 20))
        file.seek(max(0, size - (1 << 20)))
        digest.update(file.read(1 << 20))
    return {
        "path": os.path.abspath(path),
        "bytes": size,
        "modified": os.stat(path).st_mtime_ns,
        "ends_sha256": digest.hexdigest(),
    }


def checked(batch: pa.RecordBatch, where: str) -> pa.RecordBatch:
    """Returns `batch` cast to `SCHEMA`, or raises a ValueError saying what is wrong.

    A column of `OPTIONAL` may be missing; its values are then, too.
    """
    for name in OPTIONAL:
        if name not in batch.schema.names:
            nothing = pa.nulls(batch.num_rows, pa.string())
            batch = batch.append_column(name, nothing)
    missing = [name for name in SCHEMA.names if name not in batch.schema.names]
    if missing:
        raise ValueError(
            f"{where}: missing columns {missing}; found {batch.schema.names}"
        )
    columns = []
    for field in SCHEMA:
        column = batch.column(batch.schema.get_field_index(field.name))
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        columns.append(_text(column, field.name, where))
    empty = pc.sum(pc.equal(columns[0], "")).as_py()
    if empty:
        raise ValueError(
            f"{where}: column 'client_id' is empty in {empty:,} of "
            f"{batch.num_rows:,} rows; they would all count as one user"
        )
    _check_values(columns[1], TYPES, "type", where)
    _check_values(columns[4], SPLITS, "split", where)
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _text(column: pa.Array, name: str, where: str) -> pa.Array:
    """Returns a column as text; raises where it is none or has missing values."""
    try:
        # A cast of text to text looks at nothing: bad bytes would fail much later.
        text = column.cast(pa.string())
        text.validate(full=True)
    except pa.ArrowNotImplementedError:
        raise ValueError(
            f"{where}: column {name!r} has type {column.type}, expected text"
        ) from None
    except pa.ArrowInvalid:  # whose message may quote the value
        raise ValueError(
            f"{where}: column {name!r} holds bytes that are not UTF-8"
        ) from None
    if text.null_count and name not in OPTIONAL:
        raise ValueError(
            f"{where}: column {name!r} has {text.null_count:,} missing values"
        )
    return text


def _check_values(
    column: pa.Array, allowed: tuple[str, ...], name: str, where: str
) -> None:
    """Raises unless every value of `column` is one of `allowed`."""
    known = pc.is_in(column, value_set=pa.array(allowed))
    if not pc.all(known, min_count=0).as_py():
        # Neither here nor elsewhere is a user's data quoted.
        wrong = known.to_pylist()
        raise ValueError(
            f"{where}: column {name!r} holds other values than {allowed} in "
            f"{wrong.count(False)} of {len(wrong)} rows, the first of them row "
            f"{wrong.index(False)} of this portion"
        )
