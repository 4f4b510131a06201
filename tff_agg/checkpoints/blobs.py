"""Content-addressed files: arrays stored once, found by their digest.

A blob holds an array's bytes and nothing else. Its name is the digest of the array's
dtype, shape and bytes, so that equal arrays share one file, and every read is checked
against the name.
"""

import contextlib
import math
import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from tff_agg import digests, files


class StoreError(RuntimeError):
    """The store cannot be read or written; what was good before still is."""


class CorruptCheckpointError(StoreError):
    """A stored file is missing, truncated or changed. `path` names it."""

    def __init__(self, path: str | os.PathLike, reason: str):
        super().__init__(f"{path} {reason}")
        self.path = pathlib.Path(path)
        self.reason = reason


@contextlib.contextmanager
def storing(what: str, folder: pathlib.Path) -> Iterator[None]:
    """Turns an OSError inside into a StoreError that says what went wrong."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        cause = files.CAUSES.get(error.errno or 0)
        remedy = cause.remedy if cause else "free space or make the folder writable"
        raise StoreError(
            f"Cannot {what} in {folder}: {files.reason_of(error)} ({where}). "
            f"Everything saved before is intact; {remedy} and run again."
        ) from error


def make_folder(path: pathlib.Path) -> None:
    """Makes a folder (and its parents) that only its owner may look into."""
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)


def shaped(plain: np.ndarray, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
    """Returns the array whose bytes these are, in the same memory.

    Raises:
      ValueError: There are too many or too few.
    """
    size = size_of(dtype, shape)
    if plain.nbytes != size:
        raise ValueError(f"an array holds {plain.nbytes} bytes instead of {size}")
    return np.ndarray(tuple(shape), dtype, plain.data if size else None)


def size_of(dtype: np.dtype, shape: Sequence[int]) -> int:
    """Returns how many bytes an array takes."""
    return math.prod(shape) * dtype.itemsize


class BlobFolder:
    """A folder of content-addressed arrays.

    Writing is in two steps, so that the files of one checkpoint go to the disk
    together: `stage` writes a temporary file, `files.publish` makes all staged files
    durable and gives them their names.

    Example:
      >>> blobs = BlobFolder(folder)
      >>> array = np.ones(10_000, np.float32)
      >>> digest = digests.of_array(array)
      >>> files.publish([blobs.stage(array, digest)])
      >>> blobs.read(digest, array.dtype, array.shape).sum()  # checked
      10000.0
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder

    def path(self, digest: str) -> pathlib.Path:
        """Returns where the blob of that digest is or would be."""
        return self.folder / digest

    def stage(self, array: np.ndarray, digest: str) -> tuple[str, pathlib.Path]:
        """Writes an array to a temporary file, not yet durable."""
        path = self.path(digest)
        content = digests.plain(array)
        return files.stage(path, content, mode=0o600, many_writers=True), path

    def read(self, digest: str, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
        """Reads an array and checks it against its name."""
        path = self.path(digest)
        try:
            array = shaped(np.fromfile(path, np.uint8), dtype, shape)
        except FileNotFoundError as error:
            raise CorruptCheckpointError(path, "is missing") from error
        except ValueError as error:
            raise CorruptCheckpointError(path, f"is damaged: {error}") from error
        if digests.of_array(array) != digest:
            raise CorruptCheckpointError(path, "does not match its checksum")
        return array

    def remove(self, digest: str) -> None:
        """Removes a blob; one that is gone already is no error."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(digest))

    def digests(self) -> list[str]:
        """Lists the blobs that are there."""
        if not self.folder.is_dir():
            return []
        names = os.listdir(self.folder)
        return sorted(name for name in names if not name.startswith("."))
