"""The one schema that every source of sentences is read into.

A source cuts its input into shards that can be read independently, in any order and in
any process. Reading a shard yields Arrow batches of the columns in `SCHEMA`; the same
shard always yields the same batches, which is what lets a killed preparation go on.
"""

import hashlib
import os
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

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


class Source(Protocol):
    """Where sentences come from."""

    @property
    def name(self) -> str:
        """A short name of the kind of source, such as `'parquet'`."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """Returns JSON values that change whenever the sentences may have changed."""
        ...

    def num_shards(self) -> int:
        """Returns how many shards the input is cut into."""
        ...

    def num_sentences(self) -> int | None:
        """Returns the number of sentences, or None where counting means reading."""
        ...

    def read(self, shard: int) -> Iterator[pa.RecordBatch]:
        """Yields the sentences of a shard in a fixed order, in the form of `SCHEMA`."""
        ...


def file_fingerprint(path: str) -> dict[str, Any]:
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
    """Returns `batch` cast to `SCHEMA`, or raises a ValueError saying what is wrong."""
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
        try:
            column = column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise ValueError(
                f"{where}: column {field.name!r} has type {column.type}, expected text"
            ) from None
        if column.null_count and field.name != "creation_date":
            raise ValueError(
                f"{where}: column {field.name!r} has {column.null_count} missing values"
            )
        columns.append(column)
    _check_values(columns[1], TYPES, "type", where)
    _check_values(columns[4], SPLITS, "split", where)
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


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
