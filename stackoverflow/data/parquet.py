"""Sentences from Parquet files with the columns of `sources.SCHEMA`."""

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from stackoverflow.data.sources import (
    OPTIONAL,
    SCHEMA,
    checked,
    file_fingerprint,
    files_in,
)
from tff_agg.aliases import JsonObject

_BATCH_ROWS = 1 << 16
# A large row group is read by several workers. Each has to decode what comes before its
# own rows, so it is cut into few slices.
_SLICE_ROWS = 1 << 19
_MAX_SLICES = 8


@dataclasses.dataclass(frozen=True)
class ParquetSource:
    """One Parquet file, or all of a folder; the sentences may be in any order.

    Attributes:
      path: A file, or a folder with files called `*.parquet`.

    Example:
      ParquetSource('sentences.parquet').num_sentences()  # 1060883
    """

    path: str
    name: str = dataclasses.field(default="parquet", init=False)

    def __post_init__(self):
        for file in self._files:
            _open(file)

    @functools.cached_property
    def _files(self) -> list[str]:
        """The files, in the order of their names."""
        return files_in(os.fspath(self.path), (".parquet",))

    @functools.cached_property
    def _shards(self) -> list[tuple[str, int, int, int]]:
        """File, row group, and first and last row in it, of each shard."""
        shards = []
        for file in self._files:
            metadata = _open(file).metadata
            for group in range(metadata.num_row_groups):
                rows = metadata.row_group(group).num_rows
                slices = min(_MAX_SLICES, max(1, rows // _SLICE_ROWS))
                bounds = [rows * i // slices for i in range(slices + 1)]
                shards += [
                    (file, group, low, high) for low, high in itertools.pairwise(bounds)
                ]
        return shards

    def fingerprint(self) -> JsonObject:
        """Returns what identifies each file."""
        return {"files": [file_fingerprint(file) for file in self._files]}

    def num_shards(self) -> int:
        """Returns the number of slices of row groups."""
        return len(self._shards)

    def num_sentences(self) -> int:
        """Returns the number of rows."""
        return sum(_open(file).metadata.num_rows for file in self._files)

    def where(self, shard: int) -> str:
        """Names the file and the row group."""
        file, group, _, _ = self._shards[shard]
        return f"{file}, row group {group}"

    def read(self, shard: int) -> Iterator[pa.RecordBatch]:
        """Yields a slice of a row group in batches."""
        file, group, low, high = self._shards[shard]
        position = 0
        where = self.where(shard)
        opened = _open(file)
        columns = [name for name in SCHEMA.names if name in opened.schema_arrow.names]
        try:
            for batch in opened.iter_batches(
                batch_size=_BATCH_ROWS,
                row_groups=[group],
                columns=columns,
                use_threads=False,
            ):
                start, position = position, position + batch.num_rows
                if position > low:
                    cut = max(0, low - start)
                    inside = batch.slice(cut, min(high, position) - start - cut)
                    yield checked(inside, where)
                if position >= high:
                    return
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{where}: damaged ({error})") from error


def _open(file: str) -> pq.ParquetFile:
    """Opens a file and checks that it has the columns."""
    try:
        # Buffered, or a whole column of a row group would be read into memory at once.
        opened = pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
        names = opened.schema_arrow.names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"path={file!r}: not a Parquet file ({error})") from error
    needed = [name for name in SCHEMA.names if name not in OPTIONAL]
    missing = [name for name in needed if name not in names]
    if missing:
        raise ValueError(f"path={file!r}: missing columns {missing}; there are {names}")
    return opened
