"""The one schema that every source of sentences is read into.

A source cuts its input into shards that can be read independently, in any order and in
any process. Reading a shard yields Arrow batches of the columns in `SCHEMA`; the same
shard always yields the same batches, which is what lets a killed preparation go on.
"""

import glob
import hashlib
import os
from collections.abc import Collection, Iterator
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


def make_source(
    kind: str,
    path: str | None = None,
    *,
    users: int = 2000,
    words: int = 256,
    seed: int = 0,
) -> Source:
    """Returns a source by the name that flags use.

    Args:
      kind: One of `KINDS`.
      path: The file or folder to read; not for the synthetic source.
      users: Users of the synthetic source.
      words: Different words of the synthetic source.
      seed: Seed of the synthetic source.

    Example:
      >>> make_source('synthetic', users=100).num_shards()
      1
    """
    if kind == "synthetic":
        from stackoverflow.data.synthetic import SyntheticSource

        if path:
            raise ValueError(f"path={path!r}: the synthetic source reads no file")
        return SyntheticSource(users=users, words=words, seed=seed)
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: must be one of {KINDS}")
    if not path:
        raise ValueError(f"path={path!r}: the {kind} source needs a file to read")
    if kind == "parquet":
        from stackoverflow.data.parquet import ParquetSource

        return ParquetSource(path)
    if kind == "text":
        from stackoverflow.data.text import TextSource

        return TextSource(path)
    from stackoverflow.data.official import OfficialSource

    return OfficialSource(path)


def files_in(path: str, endings: Collection[str]) -> list[str]:
    """Returns a file, or those files of a folder whose names have one of the endings.

    They are in the order of their names.
    """
    if os.path.isfile(path):
        return [path]
    if not os.path.isdir(path):
        raise ValueError(f"path={path!r}: there is no such file or folder")
    inside = sorted(glob.glob(os.path.join(glob.escape(path), "*")))
    files = [file for file in inside if ending(file) in endings]
    if not files:
        names = " or ".join(f"*{wanted}" for wanted in endings)
        raise ValueError(f"path={path!r}: there are no {names} files in it")
    return files


def ending(file: str) -> str:
    """Returns the ending of a file's name in small letters, such as '.csv'."""
    return os.path.splitext(file)[1].lower()


def file_fingerprint(path: str) -> JsonObject:
    """Returns size, modification time and a hash of both ends of a file."""
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
            f"{where}: missing columns {missing}; there are {batch.schema.names}"
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
