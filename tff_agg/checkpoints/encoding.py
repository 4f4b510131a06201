"""Structures as JSON and arrays: what a checkpoint's file says, and what it points to.

A structure is made of dicts, lists, tuples, strings, numpy arrays and numpy scalars.
All of them come back as they were, arrays with dtype, byte order and shape.
"""

import collections
import concurrent.futures
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NotRequired, TypeAlias, TypedDict

import numpy as np

from tff_agg import digests
from tff_agg.aliases import Stored

_ARRAY_KINDS = "?biufcSUMm"
# Bytes: smaller arrays are digested sooner than a thread is told to.
_WORTH_A_THREAD = 1 << 17

#: A structure in JSON: one key and what belongs to it: 'dict' or 'ordered' with pairs
#: of key and structure, 'list' or 'tuple' with structures, 'array' or 'scalar' with an
#: `ArrayEntry`, 'value' with a string.
Encoded: TypeAlias = dict[str, Any]


class ArrayEntry(TypedDict):
    """An array in JSON.

    Attributes:
      dtype: As numpy writes it, with the byte order.
      shape: Its shape.
      blob: The digest of the array, which names its file.
      at: The offset of the bytes behind the JSON, in place of a file.
    """

    dtype: str
    shape: list[int]
    blob: NotRequired[str]
    at: NotRequired[int]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Structures that can be saved, each of their arrays digested once.

    Attributes:
      items: By name, encoded structures, their arrays as blobs.
      arrays: By digest, the arrays.
      digests: By name, the digest of a structure: its form and its arrays.

    Example:
      >>> prepared = prepare({'iterate': np.ones(2), 'aggregate': np.ones(2)})
      >>> prepared.digests['iterate'] == prepared.digests['aggregate']
      True
    """

    items: Mapping[str, Encoded]
    arrays: Mapping[str, np.ndarray]
    digests: Mapping[str, str]

    def __or__(self, other: "Prepared") -> "Prepared":
        """Returns both, to be saved together."""
        return Prepared(
            {**self.items, **other.items},
            {**self.arrays, **other.arrays},
            {**self.digests, **other.digests},
        )


def prepare(items: Mapping[str, Stored], threads: int = 1) -> Prepared:
    """Encodes structures and digests their arrays.

    Args:
      items: By name, structures.
      threads: How many threads digest.

    Raises:
      TypeError: A value cannot be stored; the message says where it is.
    """
    leaves = (array for structure in items.values() for array in _arrays(structure))
    large = {id(array): array for array in leaves if array.nbytes > _WORTH_A_THREAD}
    names: dict[int, str] = {}
    if large:
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            found = pool.map(digests.of_array, large.values())
            names = dict(zip(large, found, strict=True))
    arrays: dict[str, np.ndarray] = {}

    def add(array: np.ndarray) -> ArrayEntry:
        digest = names[id(array)] if id(array) in names else digests.of_array(array)
        arrays.setdefault(digest, array)
        return {"dtype": array.dtype.str, "shape": list(array.shape), "blob": digest}

    encoded = {name: _encode(s, add, f" {name!r}") for name, s in items.items()}
    of_items = {
        name: digests.of_bytes(canonical(e).encode()) for name, e in encoded.items()
    }
    return Prepared(encoded, arrays, of_items)


def canonical(value: object) -> str:
    """Writes a JSON value, always in the same way."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def decode(encoded: Encoded, get: Callable[[ArrayEntry], np.ndarray]) -> Stored:
    """Rebuilds a structure; `get` returns an array.

    Raises:
      ValueError: It is no encoded structure.
    """
    ((kind, content),) = encoded.items()
    match kind:
        case "dict":
            return {key: decode(value, get) for key, value in content}
        case "ordered":
            pairs = ((key, decode(value, get)) for key, value in content)
            return collections.OrderedDict(pairs)
        case "list":
            return [decode(value, get) for value in content]
        case "tuple":
            return tuple(decode(value, get) for value in content)
        case "array":
            return get(content)
        case "scalar":
            return get(content)[()]
        case "value":
            return content
    raise ValueError(f"a value of kind {kind!r} is not known")


def dtype_of(entry: ArrayEntry) -> np.dtype:
    """Returns the dtype of an array.

    Raises:
      ValueError: It is none that a checkpoint holds.
    """
    name = entry["dtype"]
    # No other may come from a file: the bytes of objects would be taken for addresses.
    if type(name) is not str or np.dtype(name).kind not in _ARRAY_KINDS:
        raise ValueError(f"an array has the dtype {name!r}")
    return np.dtype(name)


def array_entries(encoded: Encoded) -> list[ArrayEntry]:
    """Returns the arrays of an encoded structure, repeats included."""
    found: list[ArrayEntry] = []

    def note(array: ArrayEntry) -> ArrayEntry:
        found.append(array)
        return array

    map_arrays(encoded, note)
    return found


def map_arrays(encoded: Encoded, change: Callable[[ArrayEntry], ArrayEntry]) -> Encoded:
    """Returns an encoded structure whose descriptions of arrays are changed."""
    ((kind, content),) = encoded.items()
    match kind:
        case "dict" | "ordered":
            pairs = [[_check_key(k, ""), map_arrays(v, change)] for k, v in content]
            return {kind: pairs}
        case "list" | "tuple":
            return {kind: [map_arrays(v, change) for v in content]}
        case "array" | "scalar":
            return {kind: change(content)}
        case "value" if type(content) is str:
            return encoded
    raise ValueError(f"a value of kind {kind!r} is not known")


def _arrays(structure: object) -> Iterator[np.ndarray]:
    """Yields the arrays of a structure that can be stored."""
    if isinstance(structure, Mapping):
        structure = list(structure.values())
    if isinstance(structure, list | tuple):
        for value in structure:
            yield from _arrays(value)
    elif isinstance(structure, np.ndarray) and structure.dtype.kind in _ARRAY_KINDS:
        yield structure


def _encode(
    structure: object, add: Callable[[np.ndarray], ArrayEntry], where: str
) -> Encoded:
    """Describes a structure; `where` is what errors call it."""
    kind = type(structure)
    if isinstance(structure, dict) and kind in (dict, collections.OrderedDict):
        pairs = [
            [_check_key(key, where), _encode(value, add, f"{where}[{key!r}]")]
            for key, value in structure.items()
        ]
        return {"dict" if kind is dict else "ordered": pairs}
    if isinstance(structure, list | tuple) and kind in (list, tuple):
        values = [_encode(v, add, f"{where}[{i}]") for i, v in enumerate(structure)]
        return {kind.__name__: values}
    if isinstance(structure, np.ndarray | np.generic):
        if structure.dtype.kind not in _ARRAY_KINDS:
            raise TypeError(
                f"structure{where} has the dtype {structure.dtype}; convert it to a "
                "plain numeric, boolean or string dtype first."
            )
        if isinstance(structure, np.ndarray):
            return {"array": add(structure)}
        return {"scalar": add(np.asarray(structure))}
    if kind is str:
        return {"value": structure}
    raise TypeError(
        f"structure{where} is a {kind.__module__}.{kind.__qualname__}: a checkpoint "
        "holds dicts, lists and tuples of numpy arrays, numpy scalars and strings."
    )


def _check_key(key: object, where: str) -> str:
    if type(key) is str:
        return key
    raise TypeError(f"structure{where} has the key {key!r}; keys are strings.")
