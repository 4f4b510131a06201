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
_FEATURES = ("tokens", "type", "creation_date")


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
        found = [(file, split) for file, split in named if os.path.isfile(file)]
        if not found:
            raise ValueError(
                f"path={path!r}: neither stackoverflow.sqlite nor any of "
                f"{[f'{split}.sqlite' for split in SPLITS]} is in it"
            )
        return list(found)

    @functools.cached_property
    def _shards(self) -> list[tuple[str, str | None, int, int]]:
        """File, split, and first and last row number (or client) of each shard."""
        shards = []
        for file, split in self._files:
            with _connect(file) as connection:
                low, high = _extent(connection)
            shards += [
                (file, split, start, min(start + _SHARD_ROWS, high + 1))
                for start in range(low, high + 1, _SHARD_ROWS)
            ]
        return shards

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
                query = "SELECT COALESCE(SUM(num_examples), 0) FROM client_metadata"
                total += connection.execute(query).fetchone()[0]
        return total

    def num_sentences(self) -> int:
        """Returns the number of sentences by the clients' metadata."""
        return self._num_sentences

    def read(self, shard: int) -> Iterator[pa.RecordBatch]:
        """Yields the sentences of one range of rows."""
        file, split, start, stop = self._shards[shard]
        with _connect(file) as connection:
            cursor = connection.execute(
                "SELECT rowid, split_name, client_id, serialized_example_proto "
                "FROM examples WHERE rowid >= ? AND rowid < ? ORDER BY rowid",
                (start, stop),
            )
            while rows := cursor.fetchmany(_BATCH_ROWS):
                yield _batch(rows, split, file)


@contextlib.contextmanager
def _connect(file: str) -> Iterator[sqlite3.Connection]:
    """Opens a database for reading only."""
    uri = f"file:{urllib.parse.quote(os.path.abspath(file))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise ValueError(f"path={file!r}: cannot be read ({error})") from error


def _check_layout(file: str) -> None:
    """Raises unless the file has the tables, columns and row numbers needed."""
    with _connect(file) as connection:
        for table, columns in _COLUMNS.items():
            found = [
                row[1] for row in connection.execute(f"PRAGMA table_info({table})")
            ]
            missing = [column for column in columns if column not in found]
            if missing:
                raise ValueError(
                    f"path={file!r}: table {table!r} lacks the columns {missing} "
                    f"(found {found}); expected the SQLite layout of TFF"
                )
        _extent(connection)


def _extent(connection: sqlite3.Connection) -> tuple[int, int]:
    """Returns the first and last row number of the examples; (0, -1) if none."""
    # Two queries: SQLite finds one end of an index at once, but scans for both.
    low = connection.execute("SELECT MIN(rowid) FROM examples").fetchone()[0]
    high = connection.execute("SELECT MAX(rowid) FROM examples").fetchone()[0]
    return (0, -1) if low is None else (low, high)


def _batch(rows: list[tuple], split: str | None, file: str) -> pa.RecordBatch:
    """Returns rows of the table `examples` in the form of `SCHEMA`."""
    columns: list[list[str]] = [[], [], [], [], []]
    for number, split_name, client_id, message in rows:
        try:
            example = first_texts(message, _FEATURES)
            tokens = example["tokens"].decode()
            kind = example["type"].decode()
            date = example.get("creation_date", b"").decode()
        except (KeyError, ValueError, AttributeError) as error:
            # An error of decoding quotes the whole text.
            decoding = isinstance(error, UnicodeError)
            reason = "its text is not UTF-8" if decoding else repr(error)
            raise ValueError(
                f"{file}: row {number} of table 'examples' is not an example with "
                f"tokens and type ({reason})"
            ) from None
        for column, value in zip(
            columns, (client_id, kind, date, tokens, split or split_name), strict=True
        ):
            column.append(value)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, pa.string()) for column in columns], schema=SCHEMA
    )
