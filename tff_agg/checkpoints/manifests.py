"""Nested structures as JSON: what a checkpoint looks like, without its large arrays.

A structure is made of dicts, lists, strings and arrays, which keep their dtype, byte
order and shape. Arrays of more than a few bytes are named by
the digest of their content; smaller ones (counters, seeds) are written in place.
"""

import base64
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tff_agg import files
from tff_agg.checkpoints import blobs

_FORMAT = 1
_IN_PLACE_BYTES = 256
_ARRAY_KINDS = "?biufcSUMm"


def encode_structure(
    structure: Any, add_blob: Callable[[np.ndarray], str], where: str = ""
) -> dict[str, Any]:
    """Describes a structure; `add_blob` takes large arrays and returns digests."""
    kind = type(structure)
    if kind is dict:
        items = [
            [_check_key(k, where), encode_structure(v, add_blob, f"{where}[{k!r}]")]
            for k, v in structure.items()
        ]
        return {"dict": items}
    if kind is list:
        values = [
            encode_structure(v, add_blob, f"{where}[{i}]")
            for i, v in enumerate(structure)
        ]
        return {"list": values}
    if isinstance(structure, np.ndarray):
        return _encode_array(structure, add_blob, where)
    if kind is str:
        return {"value": structure}
    raise TypeError(
        f"structure{where} is a {kind.__module__}.{kind.__qualname__}: a checkpoint "
        "holds dicts and lists of numpy arrays and strings."
    )


def decode_structure(
    encoded: dict[str, Any], get_blob: Callable[[str], np.ndarray]
) -> Any:
    """Rebuilds a structure; `get_blob` returns a blob's plain bytes."""
    ((kind, content),) = encoded.items()
    match kind:
        case "dict":
            return {key: decode_structure(v, get_blob) for key, v in content}
        case "list":
            return [decode_structure(v, get_blob) for v in content]
        case "array":
            return _decode_array(content, get_blob)
        case "value":
            return content
    raise ValueError(f"a value of kind {kind!r} is not known")


def blobs_of(encoded: Any) -> Iterator[str]:
    """Yields the digests that an encoded structure refers to, repeats included."""
    if isinstance(encoded, dict):
        array = encoded.get("array")
        if isinstance(array, dict):
            if "blob" in array:
                yield array["blob"]
            return
        for value in encoded.values():
            yield from blobs_of(value)
    elif isinstance(encoded, list):
        for value in encoded:
            yield from blobs_of(value)


def _check_key(key: Any, where: str) -> str:
    if type(key) is str:
        return key
    raise TypeError(f"structure{where} has the key {key!r}; keys are strings.")


def _encode_array(array: np.ndarray, add_blob, where: str) -> dict[str, Any]:
    if array.dtype.kind not in _ARRAY_KINDS:
        raise TypeError(
            f"structure{where} has the dtype {array.dtype}; convert it to a plain "
            "numeric, boolean or string dtype first."
        )
    entry: dict[str, Any] = {"dtype": array.dtype.str, "shape": list(array.shape)}
    if array.nbytes <= _IN_PLACE_BYTES:
        entry["data"] = base64.b64encode(array.tobytes()).decode()
    else:
        entry["blob"] = add_blob(array)
    return {"array": entry}


def _decode_array(entry: dict[str, Any], get_blob) -> np.ndarray:
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    if "blob" in entry:
        plain = get_blob(entry["blob"])
    else:
        plain = np.frombuffer(bytearray(base64.b64decode(entry["data"])), np.uint8)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if plain.nbytes != size:
        raise ValueError(f"an array holds {plain.nbytes} bytes instead of {size}")
    return np.ndarray(shape, dtype, plain.data if size else None)


def write_manifest(path: pathlib.Path, manifest: dict[str, Any]) -> None:
    """Writes a manifest with its checksum, as a whole or not at all."""
    body = _canonical({"format": _FORMAT, **manifest})
    content = f'{{"checksum":"{blobs.digest_of(body.encode())}","manifest":{body}}}\n'
    files.write_text(path, content, mode=0o600)


def read_manifest(path: pathlib.Path) -> dict[str, Any]:
    """Reads a manifest and checks it.

    Raises:
      CorruptCheckpointError: It is damaged.
      StoreError: It was written by a later version of this module.
    """
    with open(path, "rb") as file:
        content = file.read()
    try:
        outer = json.loads(content)
        manifest, checksum = outer["manifest"], outer["checksum"]
    except (ValueError, KeyError, TypeError) as error:
        reason = "is not a manifest: truncated or damaged"
        raise blobs.CorruptCheckpointError(path, reason) from error
    if blobs.digest_of(_canonical(manifest).encode()) != checksum:
        raise blobs.CorruptCheckpointError(path, "does not match its checksum")
    if manifest["format"] != _FORMAT:
        raise blobs.StoreError(
            f"{path} has format {manifest['format']}; this version reads {_FORMAT}."
        )
    return manifest


def manifest_path(folder: pathlib.Path, round_number: int) -> pathlib.Path:
    """Returns the path of a round's manifest."""
    return folder / f"{round_number:09d}.json"


def manifest_rounds(folder: pathlib.Path) -> list[int]:
    """Lists the rounds that have a manifest, damaged ones included."""
    if not folder.is_dir():
        return []
    stems = (os.path.splitext(name) for name in os.listdir(folder))
    return sorted(int(s) for s, ext in stems if ext == ".json" and s.isdigit())


def _canonical(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
