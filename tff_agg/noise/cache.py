"""A folder of optimised matrices, found by what they were optimised for.

A file holds one line of JSON (the inputs and a checksum) and then the numbers. It is
written to a temporary name and moved into place, and checked when it is read. A plan
computes sensitivities from the matrix it really uses, so a forged file could cost
accuracy, never privacy.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Mapping

import numpy as np

from tff_agg import files
from tff_agg.aliases import Json

FORMAT = 1


def default_folder() -> pathlib.Path:
    """Returns the user's cache folder for matrices; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "tff_agg" / "matrices"


def path_of(folder: str | os.PathLike, inputs: Mapping[str, Json]) -> pathlib.Path:
    """Returns the file that holds the result for `inputs`."""
    text = json.dumps({"format": FORMAT, **inputs}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    return pathlib.Path(folder) / f"{inputs['kind']}-{digest}.matrix"


def cached(
    folder: str | os.PathLike | None,
    inputs: Mapping[str, Json],
    compute: Callable[[], np.ndarray],
) -> np.ndarray:
    """Returns `compute()`, from the folder where it has been stored before.

    Args:
      folder: Where results are kept; None keeps nothing.
      inputs: JSON values that determine the result; 'kind' names the file.
      compute: Makes the float64 array.

    Raises:
      ValueError: The stored file is damaged or was made for other inputs.

    Example:
      >>> cached(None, {'kind': 'ones'}, lambda: np.ones(2))
      array([1., 1.])
    """
    if folder is None:
        return compute()
    path = path_of(folder, inputs)
    if path.exists():
        return load(path, inputs)
    value = np.ascontiguousarray(compute(), np.float64)
    store(path, inputs, value)
    return value


def store(path: pathlib.Path, inputs: Mapping[str, Json], value: np.ndarray) -> None:
    """Writes a result so that a reader sees all of it or nothing."""
    payload = value.astype("<f8").tobytes()
    header = {
        "format": FORMAT,
        "inputs": dict(inputs),
        "shape": list(value.shape),
        "sha256": _digest(inputs, value.shape, payload),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several runs may want the same matrix at once.
    with files.replacing(path, mode=0o600, many_writers=True) as file:
        file.write(json.dumps(header, sort_keys=True).encode() + b"\n" + payload)


def load(path: pathlib.Path, inputs: Mapping[str, Json]) -> np.ndarray:
    """Reads a result back and refuses anything that is not what was stored."""

    def damaged(why: str) -> ValueError:
        return ValueError(f"cache file {path} is damaged ({why}); delete it")

    line, _, payload = path.read_bytes().partition(b"\n")
    try:
        header = json.loads(line)
        shape = tuple(int(size) for size in header["shape"])
        version, claimed = header["format"], header["sha256"]
        stored_inputs = header["inputs"]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(f"unreadable header: {error!r}") from None
    if version != FORMAT:
        raise damaged(f"format {version}, expected {FORMAT}")
    if stored_inputs != json.loads(json.dumps(dict(inputs))):
        raise damaged(f"made for {stored_inputs}, wanted {dict(inputs)}")
    if len(payload) != 8 * int(np.prod(shape, dtype=np.int64)):
        raise damaged(f"{len(payload)} bytes do not make the shape {shape}")
    if claimed != _digest(inputs, shape, payload):
        raise damaged("the checksum does not match")
    value = np.frombuffer(payload, "<f8").reshape(shape).astype(np.float64)
    if not np.isfinite(value).all():
        raise damaged("not all numbers are finite")
    return value


def _digest(inputs: Mapping[str, Json], shape: tuple, payload: bytes) -> str:
    """Returns the checksum of everything that a file says."""
    text = json.dumps([FORMAT, dict(inputs), list(shape)], sort_keys=True)
    return hashlib.sha256(text.encode() + payload).hexdigest()
