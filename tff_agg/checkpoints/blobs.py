"""Content-addressed files: arrays stored once, found by the digest of their bytes.

A blob's name is the BLAKE2b digest of the array's plain bytes, so that equal arrays
share one file, and every read is checked against the name. On disk the bytes may be
compressed: they are split into planes (all first bytes of the items, all second bytes,
...) and each plane is compressed only where that pays. The exponents of floating-point
weights repeat and shrink well; their mantissas are noise and are copied as they are.
"""

import contextlib
import hashlib
import itertools
import os
import pathlib
import struct
from collections.abc import Iterator

import numpy as np

from tff_agg import files

_MAGIC = b"TAB1"
_HEAD = struct.Struct("<4sBQ")  # magic, number of planes, plain length
_PLANE = struct.Struct("<BQ")  # codec, stored length
_RAW, _ZSTD = 0, 1
_SAMPLE_BYTES = 1 << 16
_LEAST_BYTES = 1 << 12
_LEAST_GAIN = 0.10
_TEMPORARY = ".tmp-"
_counter = itertools.count()


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
        raise StoreError(
            f"Cannot {what} in {folder}: {files.reason_of(error)} ({where}). "
            "Everything saved before is intact; free space or make the folder "
            "writable and run again."
        ) from error


def make_folder(path: pathlib.Path) -> None:
    """Makes a folder (and its parents) that only its owner may look into."""
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)


def sync_folder(path: pathlib.Path) -> None:
    """Makes renames and removals inside a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_temporary(folder: pathlib.Path, parts: list, sync: bool) -> pathlib.Path:
    """Writes `parts` to a new owner-only file under a temporary name."""
    path = folder / f"{_TEMPORARY}{os.getpid()}-{next(_counter)}"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        for part in parts:
            rest = memoryview(part).cast("B")
            while rest.nbytes:
                rest = rest[os.write(descriptor, rest) :]
        if sync:
            os.fsync(descriptor)
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    os.close(descriptor)
    return path


def sync_file(path: pathlib.Path) -> None:
    """Waits until a file's bytes are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: pathlib.Path, content: bytes) -> None:
    """Replaces a file as a whole: a reader sees the old content or the new."""
    temporary = write_temporary(path.parent, [content], sync=True)
    try:
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def remove_temporaries(folder: pathlib.Path) -> None:
    """Removes what interrupted writes left behind."""
    for name in os.listdir(folder):
        if name.startswith(_TEMPORARY):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(folder / name)


def digest_of(content) -> str:
    """Returns the digest that names `content`."""
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def encode(array: np.ndarray, compress: bool) -> list:
    """Returns the parts of the file that holds a C-ordered array's bytes."""
    plain = array.reshape(-1).view(np.uint8)
    if compress and plain.nbytes >= _LEAST_BYTES:
        planes = _shuffle(plain, array.dtype.itemsize)
        codecs = _choose_codecs(planes)
        if codecs is not None:
            stored = [_compress(p, c) for p, c in zip(planes, codecs, strict=True)]
            if sum(len(s) for s in stored) < plain.nbytes:
                return [_header(plain.nbytes, codecs, stored), *stored]
    return [_header(plain.nbytes, [_RAW], [plain]), plain]


def decode(content: bytes | bytearray, path: pathlib.Path) -> np.ndarray:
    """Returns the plain bytes (a writable uint8 array) of a blob file's content."""
    try:
        magic, count, length = _HEAD.unpack_from(content)
        if magic != _MAGIC or not count or length % count:
            raise ValueError("the header is damaged")
        table = [
            _PLANE.unpack_from(content, _HEAD.size + i * _PLANE.size)
            for i in range(count)
        ]
        start = _HEAD.size + count * _PLANE.size
        if start + sum(size for _, size in table) != len(content):
            raise ValueError("the length is wrong: truncated?")
        planes = np.empty((count, length // count), np.uint8)
        for plane, (codec, size) in zip(planes, table, strict=True):
            part = memoryview(content)[start : start + size]
            plane[:] = np.frombuffer(_decompress(part, codec, plane.nbytes), np.uint8)
            start += size
    except (ValueError, struct.error, OSError, MemoryError) as error:
        raise CorruptCheckpointError(path, f"cannot be decoded: {error}") from error
    return planes[0] if count == 1 else np.ascontiguousarray(planes.T).reshape(-1)


def _header(length: int, codecs: list[int], stored: list) -> bytes:
    table = b"".join(
        _PLANE.pack(c, len(s)) for c, s in zip(codecs, stored, strict=True)
    )
    return _HEAD.pack(_MAGIC, len(codecs), length) + table


def _shuffle(plain: np.ndarray, itemsize: int) -> np.ndarray:
    """Groups the first bytes of all items, then the second bytes, and so on."""
    return np.ascontiguousarray(plain.reshape(-1, itemsize).T)


def _choose_codecs(planes: np.ndarray) -> list[int] | None:
    """Chooses a codec for each plane from samples; None where nothing pays."""
    size = max(_SAMPLE_BYTES // len(planes), 1)
    begin = max((planes.shape[1] - size) // 2, 0)
    samples = np.ascontiguousarray(planes[:, begin : begin + size])
    gains = [1 - len(_compress(sample, _ZSTD)) / sample.nbytes for sample in samples]
    codecs = [_ZSTD if gain >= _LEAST_GAIN else _RAW for gain in gains]
    total = sum(g for g, c in zip(gains, codecs, strict=True) if c) / len(planes)
    return codecs if total >= _LEAST_GAIN else None


def _compress(plain: np.ndarray, codec: int):
    if codec == _RAW:
        return plain
    import pyarrow

    return pyarrow.Codec("zstd", compression_level=1).compress(plain, asbytes=True)


def _decompress(stored: memoryview, codec: int, length: int):
    if codec == _RAW:
        if stored.nbytes != length:
            raise ValueError("a part has the wrong length")
        return stored
    if codec != _ZSTD:
        raise ValueError(f"codec {codec} is not known")
    import pyarrow

    return pyarrow.Codec("zstd").decompress(stored, decompressed_size=length)


class BlobFolder:
    """A folder of content-addressed arrays.

    Writing is in two steps, so that the files of one checkpoint go to the disk
    together: `stage` writes a temporary file, `publish` makes all staged files durable
    and gives them their names.

    Example:
      >>> blobs = BlobFolder(pathlib.Path('checkpoints/blobs'))
      >>> staged = blobs.stage(np.ones(10_000, np.float32), digest)
      >>> blobs.publish([staged])
      >>> blobs.read(digest)  # The plain bytes, checked against the digest.
    """

    def __init__(self, folder: pathlib.Path, compress: bool = True):
        self.folder = folder
        self._compress = compress

    def path(self, digest: str) -> pathlib.Path:
        """Returns where the blob of that digest is or would be."""
        return self.folder / digest

    def stage(self, array: np.ndarray, digest: str) -> tuple[pathlib.Path, str]:
        """Writes an array to a temporary file, not yet durable."""
        parts = encode(array, self._compress)
        return write_temporary(self.folder, parts, sync=False), digest

    def publish(self, staged: list[tuple[pathlib.Path, str]]) -> None:
        """Makes staged files durable and visible under their digests."""
        for temporary, _ in staged:
            sync_file(temporary)
        for temporary, digest in staged:
            os.replace(temporary, self.path(digest))
        if staged:
            sync_folder(self.folder)

    def read(self, digest: str) -> np.ndarray:
        """Reads a blob's plain bytes and checks them against its name."""
        path = self.path(digest)
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise CorruptCheckpointError(path, "is missing") from error
        plain = decode(content, path)
        if digest_of(plain) != digest:
            raise CorruptCheckpointError(path, "does not match its checksum")
        return plain

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
