"""Raw text by user, from CSV files or JSON lines.

A row holds what somebody wrote: `user` and `text`, and perhaps `time` and `type`. It
is cut into sentences of tokens by the rule of `tokenisation`. A hash of the user alone
decides the split: 80 % of the users train, 10 % are held out, 10 % test.
"""

import csv
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from stackoverflow.data import tokenisation
from stackoverflow.data.sources import (
    SCHEMA,
    SPLITS,
    TYPES,
    ending,
    file_fingerprint,
    files_in,
)
from tff_agg.aliases import JsonObject

NEEDED = ("user", "text")
COLUMNS = (*NEEDED, "time", "type")
_BATCH_ROWS = 1 << 13
# Nobody posts longer lines or fields: there, a quote or a line never ends.
_LONGEST_LINE = 1 << 26
_LONGEST_FIELD = 1 << 24
# Users of a hundred who train, and who train or are held out.
_TRAIN, _NOT_TEST = 80, 90

# Where a row stands in its file, and its values.
Row = tuple[int, dict[str, object]]


def split_of(user: str) -> str:
    """Returns the split of a user: a hash of the name, and of nothing else.

    Example:
      >>> [split_of(name) for name in ('ann', 'ben', 'cat')]
      ['train', 'train', 'train']
    """
    digest = hashlib.blake2b(user.encode(), digest_size=8, person=b"split").digest()
    place = int.from_bytes(digest, "big") % 100
    return SPLITS[(place >= _TRAIN) + (place >= _NOT_TEST)]


@dataclasses.dataclass(frozen=True)
class TextSource:
    """A file `*.csv` or `*.jsonl`, or all of a folder.

    Attributes:
      path: The file or folder. Several files are read by several processes.

    Example:
      TextSource('posts.csv').num_shards()  # 1
    """

    path: str
    name: str = dataclasses.field(default="text", init=False)

    def __post_init__(self):
        for file in self._files:
            next(_rows(file), None)  # refuses at once what has no such rows

    @functools.cached_property
    def _files(self) -> list[str]:
        """The files, in the order of their names."""
        files = files_in(os.fspath(self.path), _READERS)
        if ending(files[0]) not in _READERS:
            names = " or ".join(f"*{known}" for known in _READERS)
            raise ValueError(f"path={files[0]!r}: must be called {names}")
        return files

    def fingerprint(self) -> JsonObject:
        """Returns what identifies each file, and the rule."""
        files = [file_fingerprint(file) for file in self._files]
        return {"files": files, "tokenisation": tokenisation.VERSION}

    def num_shards(self) -> int:
        """Returns the number of files."""
        return len(self._files)

    def num_sentences(self) -> None:
        """Returns None: counting them means reading all."""

    def where(self, shard: int) -> str:
        """Names the file."""
        return self._files[shard]

    def read(self, shard: int) -> Iterator[pa.RecordBatch]:
        """Yields the sentences of a file, in its order."""
        file = self._files[shard]
        rows = _rows(file)
        while some := list(itertools.islice(rows, _BATCH_ROWS)):
            sentences = [
                sentence
                for number, row in some
                for sentence in _sentences(row, f"{file}, line {number}")
            ]
            yield pa.RecordBatch.from_pylist(sentences, schema=SCHEMA)


def _sentences(row: dict[str, object], where: str) -> Iterator[dict[str, str]]:
    """Yields the sentences of a row in the form of `SCHEMA`; quotes nothing of it."""
    values: dict[str, Any] = {name: row.get(name) for name in COLUMNS}
    if isinstance(values["user"], int) and not isinstance(values["user"], bool):
        values["user"] = str(values["user"])
    for name, value in values.items():
        if value is None and name not in NEEDED:
            values[name] = ""
        elif not isinstance(value, str):
            kind = "missing" if value is None else type(value).__name__
            raise ValueError(f"{where}: {name!r} is {kind}, expected text")
        elif name != "text" and _is_broken(value):  # in a text it separates tokens
            raise ValueError(f"{where}: {name!r} holds half a character (a surrogate)")
    user, text, time, kind = (values[name].strip() for name in COLUMNS)
    if not user:
        raise ValueError(
            f"{where}: 'user' is empty; all such rows would count as one user"
        )
    if kind not in ("", *TYPES):
        raise ValueError(f"{where}: 'type' must be one of {TYPES} or empty")
    if time and not _is_day(time[:10]):
        raise ValueError(f"{where}: 'time' must start with YYYY-MM-DD or be empty")
    known = {
        "client_id": user,
        "type": kind or TYPES[0],
        "creation_date": time,
        "split": split_of(user),
    }
    for sentence in tokenisation.sentences(text):
        yield known | {"tokens": sentence}


def _is_broken(text: str) -> bool:
    """Returns whether a text holds half a character, which UTF-8 cannot write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


@functools.lru_cache(maxsize=1 << 12)
def _is_day(text: str) -> bool:
    """Returns whether a text is YYYY-MM-DD, as the preparation will read it."""
    try:
        pa.array([text]).cast(pa.date32())
    except pa.ArrowInvalid:
        return False
    return True


def _csv_rows(file: str) -> Iterator[Row]:
    """Yields the rows of a CSV file with the number of the line each begins on."""
    reader = csv.reader(_lines(file), strict=True)
    number = 1
    try:
        header = _next_fields(reader) or []
        _check_columns(header, file)
        number = reader.line_num + 1
        while (values := _next_fields(reader)) is not None:
            if len(values) == len(header):
                yield number, dict(zip(header, values, strict=True))
            elif values:
                raise ValueError(
                    f"{file}, line {number}: {len(values)} fields, but the first line "
                    f"names {len(header)}"
                )
            number = reader.line_num + 1
    except csv.Error as error:
        reason = str(error)
        if "field limit" in reason:
            reason = (
                f"a field has more than {_LONGEST_FIELD:,} characters; perhaps its "
                "quote never ends"
            )
        raise ValueError(f"{file}, line {number}: not CSV ({reason})") from None


def _next_fields(reader: Iterator[list[str]]) -> list[str] | None:
    """Returns the next row; None at the end.

    The longest field is a setting of the whole process, 131,072 characters at first. It
    is raised for the time of a row only.
    """
    before = csv.field_size_limit(_LONGEST_FIELD)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(before)


def _json_rows(file: str) -> Iterator[Row]:
    """Yields the rows of a file with one JSON object on each line."""
    for number, line in enumerate(_lines(file), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:  # whose text quotes nothing of the line
            raise ValueError(f"{file}, line {number}: not JSON ({error.msg})") from None
        except RecursionError:
            raise ValueError(
                f"{file}, line {number}: not a row, it is nested too deeply"
            ) from None
        except ValueError:  # Python's own limit
            raise ValueError(
                f"{file}, line {number}: holds a number of more than "
                f"{sys.get_int_max_str_digits()} digits"
            ) from None
        if not isinstance(row, dict):
            raise ValueError(f"{file}, line {number}: not a JSON object")
        if number == 1:
            _check_columns(list(row), file)
        yield number, row


_READERS = {".csv": _csv_rows, ".jsonl": _json_rows, ".ndjson": _json_rows}


def _rows(file: str) -> Iterator[Row]:
    """Yields the rows of a file."""
    return _READERS[ending(file)](file)


def _lines(file: str) -> Iterator[str]:
    """Yields the lines of a file, which must be UTF-8."""
    with open(file, "rb") as opened:
        for number in itertools.count(1):
            line = opened.readline(_LONGEST_LINE + 1)
            if not line:
                return
            if len(line) > _LONGEST_LINE:
                raise ValueError(
                    f"{file}, line {number}: is longer than {_LONGEST_LINE:,} bytes"
                )
            try:
                # Spreadsheets begin a file with a mark of the byte order.
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:  # whose text quotes the line
                raise ValueError(
                    f"{file}, line {number}: holds bytes that are not UTF-8"
                ) from None


def _check_columns(columns: list[str], file: str) -> None:
    """Raises unless the columns that are needed are there, and each once."""
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise ValueError(
            f"{file}: the first line lacks {missing}; needed are {list(NEEDED)}, and "
            f"{list(COLUMNS[len(NEEDED) :])} may be there"
        )
    if len(set(columns)) < len(columns):
        raise ValueError(f"{file}: the first line names a column twice")
