"""The files of a token store, opened and checked; sentences stay mapped."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from stackoverflow.data.sources import SPLITS
from stackoverflow.data.store_manifest import TokenStoreError
from stackoverflow.data.vocabulary import Vocabulary
from stackoverflow.token_ids import PAD

_USER_COLUMNS = {
    "name": (pa.string(),),
    "split": (pa.int8(),),
    **{n: (pa.int32(),) for n in ("part", "start", "questions", "answers")},
}
_PART_COLUMNS = {
    "words": tuple(map(pa.list_, (pa.uint16(), pa.uint32()))),
    "day": (pa.date32(),),
}


class Part(NamedTuple):
    """Views into one memory-mapped part."""

    offsets: np.ndarray
    words: np.ndarray
    days: pa.Array
    owner: object


@dataclasses.dataclass(frozen=True)
class Users:
    """The columns of the table of users, as arrays over user numbers."""

    names: pa.Array
    part: np.ndarray
    start: np.ndarray
    counts: np.ndarray  # [2, users]: questions, answers
    ranges: Mapping[str, tuple[int, int]]


def open_vocabulary(path: str) -> Vocabulary:
    """Reads the vocabulary."""
    try:
        with open(path, encoding="utf-8") as text:
            words = json.load(text)
        if not isinstance(words, list) or not all(type(w) is str for w in words):
            raise ValueError("it is no list of words")
        return Vocabulary(tuple(words))
    except (ValueError, RecursionError) as error:
        raise TokenStoreError(f"{path}: damaged ({error})") from error


def open_users(path: str, parts: int) -> Users:
    """Maps the table of users, who are in `parts` parts."""
    batch = _map_batch(path, _USER_COLUMNS)
    column = {name: batch.column(name) for name in _USER_COLUMNS}
    split, part = column["split"].to_numpy(), column["part"].to_numpy()
    places = [column[n].to_numpy() for n in ("start", "questions", "answers")]
    if (
        np.any(np.diff(split) < 0)
        or any(np.any(numbers < 0) for numbers in places)
        or not np.all((part >= 0) & (part < parts))
        or not np.all((split >= 0) & (split < len(SPLITS)))
    ):
        raise TokenStoreError(f"{path}: damaged (users are where no user can be)")
    bounds = np.searchsorted(split, np.arange(len(SPLITS) + 1))
    return Users(
        names=column["name"],
        part=part,
        start=places[0],
        counts=np.stack(places[1:]),
        ranges={
            name: (int(bounds[i]), int(bounds[i + 1])) for i, name in enumerate(SPLITS)
        },
    )


def open_part(path: str, sentences: int, max_tokens: int, num_ids: int) -> Part:
    """Maps a part without copying it.

    Args:
      path: The file.
      sentences: How many its users have, at least.
      max_tokens: How long a sentence may be.
      num_ids: Above all ids.
    """
    batch = _map_batch(path, _PART_COLUMNS)
    words = batch.column("words")
    part = Part(
        offsets=words.offsets.to_numpy(),
        words=words.values.to_numpy(),
        days=batch.column("day"),
        owner=batch,
    )
    if (
        batch.num_rows < sentences
        or np.diff(part.offsets).max(initial=0) > max_tokens
        or words.values.null_count
        or not part.words.min(initial=1) > PAD
        or not part.words.max(initial=1) < num_ids
    ):
        raise TokenStoreError(
            f"{path}: damaged (sentences are missing or too long, or words are none)"
        )
    return part


def _map_batch(path: str, types: Mapping[str, tuple[pa.DataType, ...]]) -> Any:
    """Memory-maps an Arrow file of one batch with these columns, and nothing missing.

    Args:
      path: The file.
      types: Which types each column may have; `day` alone may have missing values.
    """
    try:
        batch = pa.ipc.open_file(pa.memory_map(path)).get_batch(0)
        # Offsets that point elsewhere would end the process when they are followed.
        batch.validate(full=True)
        for name, allowed in types.items():
            column = batch.column(name)
            if column.type not in allowed:
                raise ValueError(f"column {name!r} has the type {column.type}")
            if name != "day" and column.null_count:
                raise ValueError(f"column {name!r} has missing values")
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise TokenStoreError(f"{path}: damaged ({error})") from error
    return batch
