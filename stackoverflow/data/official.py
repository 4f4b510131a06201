"""Sentences from the SQLite files that TFF publishes and writes.

Table `examples` holds one serialized `tf.train.Example` a sentence, next to its
`split_name` and `client_id`; table `client_metadata` the number of sentences of each
client. The messages are decoded here, without TensorFlow: a worker stays small.
"""

import contextlib
import dataclasses
import functools
import os
import sqlite3
import urllib.parse
from collections.abc import Iterator

import pyarrow as pa

from stackoverflow.data.example_message import first_texts
from stackoverflow.data.sources import SCHEMA, SPLITS, file_fingerprint
from tff_agg.aliases import JsonObject

_SHARD_ROWS = 1 << 17
_BATCH_ROWS = 1 << 16
_COLUMNS = {
    "examples": ("split_name", "client_id", "serialized_example_proto"),
    "client_metadata": ("client_id", "split_name", "num_examples"),
}
# In the order of the columns of `SCHEMA`.
_FEATURES = ("type", "creation_date", "tokens")
_MAX_SHARDS = 4096
_LARGEST_ROW = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class OfficialSource:
    """A SQLite file of TFF's layout, or a folder of them.

    A file is read as TFF reads it: `split_name` is `train`, `heldout` or `test`. In a
    folder with `train.sqlite`, `heldout.sqlite` and `test.sqlite` the names of the
    files say the split, whatever `split_name` holds.

    Attributes:
      path: The file or folder.

    Example:
      OfficialSource('stackoverflow.sqlite').num_sentences()  # 168895995
    """

    path: str
    name: str = dataclasses.field(default="official", init=False)

    def __post_init__(self):
        for file, _ in self._files:
            _check_layout(file)

    @functools.cached_property
    def _files(self) -> list[tuple[str, str | None]]:
        """Each file, and its split if the name of the file says it."""
        path = os.fspath(self.path)
        if os.path.isfile(path):
            return [(path, None)]
        if not os.path.isdir(path):
            raise ValueError(f"path={path!r}: there is no such file or folder")
        whole = os.path.join(path, "stackoverflow.sqlite")
        if os.path.isfile(whole):
            return [(whole, None)]
        named = [(os.path.join(path, f"{split}.sqlite"), split) for split in SPLITS]
        files = [(file, split) for file, split in named if os.path.isfile(file)]
        if not files:
            raise ValueError(
                f"path={path!r}: neither stackoverflow.sqlite nor any of "
                f"{[f'{split}.sqlite' for split in SPLITS]} is in it"
            )
        return list(files)

    @functools.cached_property
    def _shards(self) -> list[tuple[str, str | None, int, int]]:
        """File, split, and first and last row number of each shard."""
        return [
            (file, split, first, last)
            for file, split in self._files
            for first, last in _ranges(file)
        ]

    def fingerprint(self) -> JsonObject:
        """Returns what identifies each file."""
        return {"files": [file_fingerprint(file) for file, _ in self._files]}

    def num_shards(self) -> int:
        """Returns the number of ranges of rows."""
        return len(self._shards)

    @functools.cached_property
    def _num_sentences(self) -> int:
        """The number of sentences by the clients' metadata."""
        total = 0
        for file, _ in self._files:
            with _connect(file) as connection:
                query = "SELECT SUM(num_examples) FROM client_metadata"
                (examples,) = connection.execute(query).fetchone()
            # A row takes more than a byte: what says otherwise is not believed.
            if isinstance(examples, int):
                total += min(max(examples, 0), os.path.getsize(file))
        return total

    def num_sentences(self) -> int:
        """Returns the number of sentences by the clients' metadata."""
        return self._num_sentences

    def where(self, shard: int) -> str:
        """Names the file and the rows."""
        file, _, first, last = self._shards[shard]
        return f"{file}, rows {first} to {last} of table 'examples'"

    def read(self, shard: int) -> Iterator[pa.RecordBatch]:
        """Yields the sentences of one range of rows."""
        file, split, first, last = self._shards[shard]
        with _connect(file) as connection:
            cursor = connection.execute(
                "SELECT rowid, split_name, client_id, serialized_example_proto "
                "FROM examples WHERE rowid BETWEEN ? AND ? ORDER BY rowid",
                (first, last),
            )
            while rows := cursor.fetchmany(_BATCH_ROWS):
                yield _batch(rows, split, file)


@contextlib.contextmanager
def _connect(file: str) -> Iterator[sqlite3.Connection]:
    """Opens a database for reading only."""
    uri = f"file:{urllib.parse.quote(os.path.abspath(file))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            # As bytes: an error of decoding would quote the text, and name no row.
            connection.text_factory = bytes
            yield connection
    # Python decodes SQLite's messages, which quote a damaged schema.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise ValueError(f"path={file!r}: cannot be read ({error})") from error


def _check_layout(file: str) -> None:
    """Raises unless the file has the tables, columns and row numbers needed."""
    with _connect(file) as connection:
        for table, columns in _COLUMNS.items():
            views = "FROM sqlite_master WHERE type = 'view' AND lower(name) = ?"
            if connection.execute(f"SELECT 1 {views}", (table,)).fetchone():
                # It may have rows without end.
                raise ValueError(f"path={file!r}: {table!r} is a view, not a table")
            names = [
                row[1].decode(errors="replace")
                for row in connection.execute(f"PRAGMA table_info({table})")
            ]
            missing = [column for column in columns if column not in names]
            if missing:
                raise ValueError(
                    f"path={file!r}: table {table!r} lacks the columns {missing} "
                    f"(found {names}); expected the SQLite layout of TFF"
                )
        connection.execute("SELECT rowid FROM examples LIMIT 1")


def _ranges(file: str) -> list[tuple[int, int]]:
    """Cuts the examples into ranges of row numbers, without reading the rows.

    Between two ranges SQLite looks for the next row, so that gaps cost nothing. Ranges
    of files with many gaps are joined: nobody wants a shard for each row.
    """
    ranges: list[tuple[int, int]] = []
    with _connect(file) as connection:
        query = "SELECT MIN(rowid) FROM examples"
        (first,) = connection.execute(query).fetchone()
        while first is not None:
            last = min(first + _SHARD_ROWS - 1, _LARGEST_ROW)
            ranges.append((first, last))
            (first,) = connection.execute(
                f"{query} WHERE rowid > ?", (last,)
            ).fetchone()
    together = -(-len(ranges) // _MAX_SHARDS) or 1
    return [
        (ranges[i][0], ranges[i : i + together][-1][1])
        for i in range(0, len(ranges), together)
    ]


def _batch(rows: list[tuple], split: str | None, file: str) -> pa.RecordBatch:
    """Returns rows of the table `examples` in the form of `SCHEMA`."""
    columns: list[list[str]] = [[], [], [], [], []]
    for number, split_name, client_id, message in rows:
        try:
            example = _example(message)
            values = (
                _text(client_id, "client_id"),
                *(_text(example[name], name) for name in _FEATURES),
                split or _text(split_name, "split_name"),
            )
        except ValueError as error:
            raise ValueError(
                f"{file}: row {number} of table 'examples': {error}"
            ) from None
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, pa.string()) for column in columns], schema=SCHEMA
    )


def _example(message: object) -> dict[str, bytes]:
    """Returns the features of a serialized example."""
    if not isinstance(message, bytes):
        raise ValueError(f"serialized_example_proto is {_kind_of(message)}")
    try:
        example = first_texts(message, _FEATURES)
    except ValueError:
        example = {}
    if not {"tokens", "type"} <= example.keys():
        raise ValueError("serialized_example_proto is no message with tokens and type")
    return {"creation_date": b"", **example}


def _text(value: object, name: str) -> str:
    """Returns a value as text, numbers of clients as SQLite itself writes them."""
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, bytes):
        raise ValueError(f"{name} is {_kind_of(value)}, expected text")
    try:
        return value.decode()
    except UnicodeDecodeError:  # whose text quotes the value
        raise ValueError(f"{name} is not UTF-8") from None


def _kind_of(value: object) -> str:
    """Returns what a value is, for an error that does not quote it."""
    return "missing" if value is None else type(value).__name__
