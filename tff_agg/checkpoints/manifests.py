"""The file of a round: its structures as a line of JSON, then its smaller arrays.

Large arrays are files of their own, named by their digest. All others stand behind the
JSON, one after the other: a small model's round is one file, and making one file
durable takes a fraction of the time of twenty.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tff_agg import digests, files
from tff_agg.checkpoints import blobs, encoding
from tff_agg.checkpoints.encoding import ArrayEntry, Encoded

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_FORMAT = 1
_DIGEST = re.compile("[0-9a-f]{64}")
_NAME = re.compile("([0-9]{9}|[1-9][0-9]{9,})[.]json")
#: Larger arrays are blobs: a window of large checkpoints is not written twice.
LARGEST_IN_FILE = 1 << 17


class Body:
    """The arrays that stand behind the JSON, each name's once."""

    def __init__(self) -> None:
        self._offsets: dict[Hashable, int] = {}
        self._parts: list[ReadableBuffer] = []
        self._size = 0

    def add(self, name: Hashable, content: "ReadableBuffer", size: int) -> int:
        """Returns the offset at which the content of a name stands."""
        if name not in self._offsets:
            self._offsets[name] = self._size
            self._parts.append(content)
            self._size += size
        return self._offsets[name]

    def content(self) -> bytes:
        """Returns all of it."""
        return b"".join(self._parts)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A round.

    Attributes:
      round: Its number.
      items: By name, encoded structures.
      body: The arrays that they find by offset.
    """

    round: int
    items: Mapping[str, Encoded]
    body: bytes = b""

    @classmethod
    def of(
        cls, number: int, prepared: encoding.Prepared, there: "Manifest | None" = None
    ) -> "Manifest":
        """Returns a round that holds what was prepared.

        Args:
          number: The round.
          prepared: What to hold.
          there: The round as it was; its names that are not prepared stay.
        """
        body = Body()

        def place(array: ArrayEntry) -> ArrayEntry:
            content = prepared.arrays[array["blob"]]
            if content.nbytes > LARGEST_IN_FILE:
                return array
            plain = digests.plain(content)
            offset = body.add(array["blob"], plain, content.nbytes)
            return {"dtype": array["dtype"], "shape": array["shape"], "at": offset}

        items = {
            name: encoding.map_arrays(encoded, place)
            for name, encoded in prepared.items.items()
        }
        if there is not None:
            others = [name for name in there.items if name not in items]
            items = {**there.only(others, body).items, **items}
        return cls(number, items, body.content())

    def without(self, names: Iterable[str]) -> "Manifest":
        """Returns the round without these names, and without their arrays."""
        gone = set(names)
        return self.only(n for n in self.items if n not in gone)

    def only(self, names: Iterable[str], body: Body | None = None) -> "Manifest":
        """Returns the round with these names only, their arrays added to `body`."""
        body = body or Body()

        def move(array: ArrayEntry) -> ArrayEntry:
            if "at" not in array:
                return array
            content = self._bytes_of(array)
            # An empty array stands where another begins.
            name = array["at"], len(content)
            return {**array, "at": body.add(name, content, len(content))}

        items = {name: encoding.map_arrays(self.items[name], move) for name in names}
        return Manifest(self.round, items, body.content())

    def blobs(self) -> dict[str, frozenset[str]]:
        """Returns, by name, the digests of the blobs that a structure consists of."""
        return {
            name: frozenset(
                entry["blob"] for entry in encoding.array_entries(e) if "blob" in entry
            )
            for name, e in self.items.items()
        }

    def array_in_body(self, entry: ArrayEntry) -> np.ndarray:
        """Returns an array that stands in the body."""
        plain = np.frombuffer(bytearray(self._bytes_of(entry)), np.uint8)
        return blobs.shaped(plain, encoding.dtype_of(entry), entry["shape"])

    def _bytes_of(self, entry: ArrayEntry) -> bytes:
        size = blobs.size_of(encoding.dtype_of(entry), entry["shape"])
        return self.body[entry["at"] : entry["at"] + size]


def write_manifest(
    path: pathlib.Path, manifest: Manifest, *, sync_folder: bool = True
) -> None:
    """Writes a manifest with its checksum, as a whole or not at all.

    Args:
      path: Its file.
      manifest: What to write.
      sync_folder: As for `files.write_bytes`.
    """
    text = encoding.canonical(
        {"format": _FORMAT, "round": manifest.round, "items": manifest.items}
    )
    checksum = digests.of_bytes(text.encode(), manifest.body)
    line = f'{{"checksum":"{checksum}","manifest":{text}}}\n'.encode()
    files.write_bytes(path, line, manifest.body, mode=0o600, sync_folder=sync_folder)


def read_manifest(path: pathlib.Path) -> Manifest:
    """Reads a manifest and checks it.

    Raises:
      CorruptCheckpointError: It is damaged.
      StoreError: It was written by a later version of this module.
    """
    line, _, body = path.read_bytes().partition(b"\n")
    try:
        outer = json.loads(line)
        found, checksum = outer["manifest"], outer["checksum"]
        digest = digests.of_bytes(encoding.canonical(found).encode(), body)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = "is not a manifest: truncated or damaged"
        raise blobs.CorruptCheckpointError(path, reason) from error
    if digest != checksum:
        raise blobs.CorruptCheckpointError(path, "does not match its checksum")
    # Anybody can make a checksum: what decoding relies on is checked as well.
    try:
        if found["format"] != _FORMAT:
            raise blobs.StoreError(
                f"{path} has format {found['format']}; this version reads {_FORMAT}."
            )
        if path != manifest_path(path.parent, found["round"]):
            raise ValueError(f"it is of round {found['round']}")
        manifest = Manifest(found["round"], dict(found["items"]), body)
        for encoded in manifest.items.values():
            for entry in encoding.array_entries(encoded):
                _check_entry(entry, body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise blobs.CorruptCheckpointError(path, f"is damaged: {error}") from error
    return manifest


def _check_entry(entry: ArrayEntry, body: bytes) -> None:
    """Raises unless it describes an array that is in the body or among the blobs."""
    dtype, shape = encoding.dtype_of(entry), entry["shape"]
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"an array has the shape {shape!r}")
    if "blob" in entry:
        # Another name could be that of any file.
        if not _DIGEST.fullmatch(entry["blob"]):
            raise ValueError(f"{entry['blob']!r} is no digest")
        return
    at = entry["at"]
    if type(at) is not int or not 0 <= at <= len(body) - blobs.size_of(dtype, shape):
        raise ValueError(f"an array begins at {at!r}")


def manifest_path(folder: pathlib.Path, round_number: int) -> pathlib.Path:
    """Returns the path of a round's manifest."""
    return folder / f"{round_number:09d}.json"


def manifest_rounds(folder: pathlib.Path) -> list[int]:
    """Lists the rounds that have a manifest, damaged ones included."""
    if not folder.is_dir():
        return []
    found = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(name[1]) for name in found if name)
