"""The file of a round: its structures as a line of JSON, then its smaller arrays.

A structure is made of dicts, lists, strings and arrays, which keep their dtype, byte
order and shape. Large arrays are files of their own, named by the digest of their
content. All others stand behind the JSON, one after the other: a small model's round is
one file, and making one file durable takes a fraction of the time of twenty.
"""

import base64
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NotRequired, TypeAlias, TypedDict

import numpy as np

from tff_agg import files
from tff_agg.aliases import Stored
from tff_agg.checkpoints import blobs

_FORMAT = 2
_FORMATS = (1, 2)  # the first had no arrays behind the JSON
#: Larger arrays are blobs: a window of large checkpoints is not written twice.
LARGEST_IN_FILE = 1 << 17
_ARRAY_KINDS = "?biufcSUMm"


#: A structure in JSON: one key, 'dict', 'list', 'array' or 'value', and what belongs to
#: it: pairs of key and structure, structures, an `ArrayEntry`, a string.
Encoded: TypeAlias = dict[str, Any]


class ArrayEntry(TypedDict):
    """An array in JSON, and where its bytes are: exactly one of the last three.

    Attributes:
      dtype: As numpy writes it, with the byte order.
      shape: Its shape.
      blob: The digest of the blob that holds them.
      at: Their offset in the body.
      data: The bytes themselves in base 64, in files of format 1.
    """

    dtype: str
    shape: list[int]
    blob: NotRequired[str]
    at: NotRequired[int]
    data: NotRequired[str]


class Body:
    """The arrays that stand behind the JSON, equal ones once."""

    def __init__(self):
        self._offsets: dict[bytes, int] = {}
        self._size = 0

    def add(self, content: bytes) -> int:
        """Returns the offset at which the content stands."""
        if content not in self._offsets:
            self._offsets[content] = self._size
            self._size += len(content)
        return self._offsets[content]

    def content(self) -> bytes:
        """Returns all of it."""
        return b"".join(self._offsets)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A round.

    Attributes:
      round: Its number.
      items: By name, encoded structures.
      body: The arrays that they find by offset.
    """

    round: int
    items: dict[str, Encoded]
    body: bytes = b""

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
            return {**array, "at": body.add(self.part(array))}

        items = {name: _map_arrays(self.items[name], move) for name in names}
        return Manifest(self.round, items, body.content())

    def digests(self) -> dict[str, frozenset[str]]:
        """Returns, by name, the blobs that a structure consists of."""
        return {name: frozenset(blobs_of(tree)) for name, tree in self.items.items()}

    def part(self, array: ArrayEntry) -> bytes:
        """Returns the bytes of an array that stands in the body."""
        return self.body[array["at"] : array["at"] + _size_of(array)]


def encode_structure(
    structure: Stored,
    body: Body,
    add_blob: Callable[[np.ndarray], str],
    where: str = "",
) -> Encoded:
    """Describes a structure.

    Args:
      structure: What to describe.
      body: Receives the smaller arrays.
      add_blob: Takes a large array and returns its digest.
      where: What to call the structure in errors.
    """
    kind = type(structure)
    if type(structure) is dict:
        items = [
            [
                _check_key(k, where),
                encode_structure(v, body, add_blob, f"{where}[{k!r}]"),
            ]
            for k, v in structure.items()
        ]
        return {"dict": items}
    if type(structure) is list:
        values = [
            encode_structure(v, body, add_blob, f"{where}[{i}]")
            for i, v in enumerate(structure)
        ]
        return {"list": values}
    if isinstance(structure, np.ndarray):
        return _encode_array(structure, body, add_blob, where)
    if kind is str:
        return {"value": structure}
    raise TypeError(
        f"structure{where} is a {kind.__module__}.{kind.__qualname__}: a checkpoint "
        "holds dicts and lists of numpy arrays and strings."
    )


def decode_structure(
    manifest: Manifest, name: str, get_blob: Callable[[str], np.ndarray]
) -> Stored:
    """Rebuilds a structure; `get_blob` returns a blob's plain bytes."""

    def decode(encoded: Encoded) -> Stored:
        ((kind, content),) = encoded.items()
        match kind:
            case "dict":
                return {key: decode(v) for key, v in content}
            case "list":
                return [decode(v) for v in content]
            case "array":
                return _decode_array(content, manifest, get_blob)
            case "value":
                return content
        raise ValueError(f"a value of kind {kind!r} is not known")

    return decode(manifest.items[name])


def large_arrays(structure: object) -> Iterator[np.ndarray]:
    """Yields the arrays of a structure that become blobs."""
    if isinstance(structure, dict | list):
        values = structure.values() if isinstance(structure, dict) else structure
        for value in values:
            yield from large_arrays(value)
    elif isinstance(structure, np.ndarray) and _is_large(structure):
        yield structure


def _is_large(array: np.ndarray) -> bool:
    return array.nbytes > LARGEST_IN_FILE and array.dtype.kind in _ARRAY_KINDS


def blobs_of(encoded: Encoded) -> list[str]:
    """Returns the digests that an encoded structure refers to, repeats included."""
    found = []

    def note(array: ArrayEntry) -> ArrayEntry:
        if "blob" in array:
            found.append(array["blob"])
        return array

    _map_arrays(encoded, note)
    return found


def _map_arrays(
    encoded: Encoded, change: Callable[[ArrayEntry], ArrayEntry]
) -> Encoded:
    """Returns an encoded structure whose descriptions of arrays are changed."""
    ((kind, content),) = encoded.items()
    match kind:
        case "dict":
            return {kind: [[key, _map_arrays(v, change)] for key, v in content]}
        case "list":
            return {kind: [_map_arrays(v, change) for v in content]}
        case "array":
            return {kind: change(content)}
    return encoded


def _check_key(key: object, where: str) -> str:
    if type(key) is str:
        return key
    raise TypeError(f"structure{where} has the key {key!r}; keys are strings.")


def _encode_array(array: np.ndarray, body: Body, add_blob, where: str) -> Encoded:
    if array.dtype.kind not in _ARRAY_KINDS:
        raise TypeError(
            f"structure{where} has the dtype {array.dtype}; convert it to a plain "
            "numeric, boolean or string dtype first."
        )
    entry: ArrayEntry = {"dtype": array.dtype.str, "shape": list(array.shape)}
    if _is_large(array):
        entry["blob"] = add_blob(array)
    else:
        entry["at"] = body.add(array.tobytes())
    return {"array": entry}


def _size_of(entry: ArrayEntry) -> int:
    items = int(np.prod(entry["shape"], dtype=np.int64))
    return items * np.dtype(entry["dtype"]).itemsize


def _decode_array(entry: ArrayEntry, manifest: Manifest, get_blob) -> np.ndarray:
    if "blob" in entry:
        plain = get_blob(entry["blob"])
    elif "at" in entry:
        plain = np.frombuffer(bytearray(manifest.part(entry)), np.uint8)
    else:  # as format 1 wrote arrays of a few bytes
        plain = np.frombuffer(bytearray(base64.b64decode(entry["data"])), np.uint8)
    size = _size_of(entry)
    if plain.nbytes != size:
        raise ValueError(f"an array holds {plain.nbytes} bytes instead of {size}")
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    return np.ndarray(shape, dtype, plain.data if size else None)


def write_manifest(
    path: pathlib.Path, manifest: Manifest, *, sync_folder: bool = True
) -> None:
    """Writes a manifest with its checksum, as a whole or not at all.

    Args:
      path: Its file.
      manifest: What to write.
      sync_folder: As for `files.write_bytes`.
    """
    text = _canonical(
        {"format": _FORMAT, "round": manifest.round, "items": manifest.items}
    )
    checksum = blobs.digest_of(text.encode(), manifest.body)
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
    except (ValueError, KeyError, TypeError) as error:
        reason = "is not a manifest: truncated or damaged"
        raise blobs.CorruptCheckpointError(path, reason) from error
    if blobs.digest_of(_canonical(found).encode(), body) != checksum:
        raise blobs.CorruptCheckpointError(path, "does not match its checksum")
    if found["format"] not in _FORMATS:
        raise blobs.StoreError(
            f"{path} has format {found['format']}; this version reads {_FORMATS}."
        )
    return Manifest(found["round"], found["items"], body)


def manifest_path(folder: pathlib.Path, round_number: int) -> pathlib.Path:
    """Returns the path of a round's manifest."""
    return folder / f"{round_number:09d}.json"


def manifest_rounds(folder: pathlib.Path) -> list[int]:
    """Lists the rounds that have a manifest, damaged ones included."""
    if not folder.is_dir():
        return []
    stems = (os.path.splitext(name) for name in os.listdir(folder))
    return sorted(int(s) for s, ext in stems if ext == ".json" and s.isdigit())


def _canonical(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
