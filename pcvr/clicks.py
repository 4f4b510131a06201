"""Clicks from a file of anyone's own, Parquet or CSV.

One row is one click. The columns:

| column | type | meaning |
|---|---|---|
| `timestamp` | whole number or timestamp | when: milliseconds since 1970 (UTC) |
| `label` | 0 or 1 | whether a conversion followed |
| `user_id` | anything; may be left out | only counted, never a feature |
| any other | whole number, text or truth value | a categorical feature |

Missing values are allowed in features, where they are a value of their own. `hour` and
`weekday` (UTC) are features as well, made from `timestamp` unless the file has them.
"""

import os
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

TIMESTAMP, LABEL, USER = "timestamp", "label", "user_id"
FROM_TIME = ("hour", "weekday")
_HOUR = 3_600_000
# Milliseconds of the year 1973: times in seconds stay below it until the year 5138.
_LEAST_TIME = 10**11


class Clicks(NamedTuple):
    """Clicks in the order of time.

    Attributes:
      times: [n], milliseconds since 1970, rising.
      labels: [n], 0 or 1.
      features: By column, the values of all clicks; text, or null where missing.
      users: [n], who clicked, as numbers from 0; None where the file does not say.
    """

    times: np.ndarray
    labels: np.ndarray
    features: dict[str, pa.DictionaryArray]
    users: np.ndarray | None


def read(path: str, features: Collection[str]) -> Clicks:
    """Reads a file of clicks.

    Args:
      path: A file whose name ends in .parquet, .csv or .csv.gz.
      features: The columns to read as features.

    Raises:
      ValueError: Says what is wrong with the file; no value of a click is quoted.

    Example:
      clicks = read('clicks.parquet', ['article', 'device', 'hour'])
    """
    return from_table(_table(path), features, path)


def from_table(table: pa.Table, features: Collection[str], where: str) -> Clicks:
    """Checks a table of clicks and puts it into the order of time."""
    names = table.column_names
    derived = [name for name in FROM_TIME if name not in names]
    needed = (TIMESTAMP, LABEL, *features)
    if missing := [name for name in needed if name not in (*names, *derived)]:
        raise ValueError(f"{where}: missing columns {missing}; there are {names}")
    if not table.num_rows:
        raise ValueError(f"{where}: has no clicks")
    times = _times(table[TIMESTAMP], where)
    labels = _labels(table[LABEL], where)
    order = np.argsort(times, kind="stable")
    times = times[order]
    clock = {"hour": times // _HOUR % 24, "weekday": times // (24 * _HOUR) % 7}
    columns = {}
    for name in features:
        if name in derived:
            columns[name] = pa.array(clock[name]).cast(pa.string()).dictionary_encode()
        else:
            columns[name] = _categories(table[name], name, where).take(pa.array(order))
    users = None
    if USER in names:
        codes = table[USER].combine_chunks().dictionary_encode().indices
        users = codes.fill_null(-1).to_numpy(zero_copy_only=False)[order]
    return Clicks(times, labels[order], columns, users)


def _table(path: str) -> pa.Table:
    """Reads a file by the ending of its name."""
    if not os.path.isfile(path):
        raise ValueError(f"path={path!r}: there is no such file")
    try:
        if path.endswith(".parquet"):
            return pq.read_table(path)
        if path.endswith((".csv", ".csv.gz")):
            # An empty cell is a missing value of text, too.
            options = pa.csv.ConvertOptions(strings_can_be_null=True)
            return pa.csv.read_csv(path, convert_options=options)
    except (pa.ArrowException, OSError):  # whose message may quote a value
        kind = path.rpartition(".")[2]
        raise ValueError(f"path={path!r}: cannot be read as {kind}") from None
    raise ValueError(f"path={path!r}: must end in .parquet, .csv or .csv.gz")


def _times(column: pa.ChunkedArray, where: str) -> np.ndarray:
    """Returns the milliseconds of a column of times."""
    _no_nulls(column, TIMESTAMP, where)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms"), safe=False)
    elif not pa.types.is_integer(column.type):
        raise ValueError(
            f"{where}: column {TIMESTAMP!r} has type {column.type}, expected whole "
            "milliseconds since 1970, or timestamps"
        )
    times = column.cast(pa.int64()).to_numpy()
    if times.min() < _LEAST_TIME:
        raise ValueError(
            f"{where}: column {TIMESTAMP!r} holds times before 1973; are they in "
            "seconds? Milliseconds since 1970 are expected"
        )
    return times


def _labels(column: pa.ChunkedArray, where: str) -> np.ndarray:
    """Returns the labels, all of them 0 or 1."""
    _no_nulls(column, LABEL, where)
    if not (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        raise ValueError(
            f"{where}: column {LABEL!r} has type {column.type}, expected 0 or 1"
        )
    labels = column.cast(pa.int64()).to_numpy()
    if wrong := np.count_nonzero((labels != 0) & (labels != 1)):
        raise ValueError(
            f"{where}: column {LABEL!r} holds other values than 0 and 1 in {wrong:,} "
            f"of {len(labels):,} rows"
        )
    return labels.astype(np.int32)


def _categories(column: pa.ChunkedArray, name: str, where: str) -> pa.DictionaryArray:
    """Returns a column's values as text, so that 7 of Parquet is 7 of CSV."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (texts or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise ValueError(
            f"{where}: column {name!r} has type {kind}, expected whole numbers, text "
            "or truth values; put numbers with a fraction into bins first"
        )
    # First the few values, then their text.
    codes = column.combine_chunks().dictionary_encode()
    values = codes.dictionary.cast(pa.string())
    return pa.DictionaryArray.from_arrays(codes.indices, values)


def _no_nulls(column: pa.ChunkedArray, name: str, where: str) -> None:
    if column.null_count:
        raise ValueError(
            f"{where}: column {name!r} has {column.null_count:,} missing values"
        )
