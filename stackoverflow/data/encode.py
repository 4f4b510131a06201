"""The steps from sentences to a token store, each one file in and one file out.

Every step writes its result under a temporary name and renames it, so a file that is
there is complete and a killed run can go on from the files that are there:

1. `encode_shard`: batches of a source become pieces. A piece holds its sentences as
   numbers into its own sorted word list, ordered by bucket (a hash of the user).
2. `merge_counts`: word counts of several pieces are added up.
3. `map_words`: a piece's own word numbers become ids of the vocabulary.
4. `gather_bucket`: one bucket of all pieces becomes a part of the store, by user.
"""

import contextlib
import dataclasses
import glob
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stackoverflow.data.sources import SPLITS, TYPES, Source, checked
from stackoverflow.data.store_manifest import file_sha256, part_name
from stackoverflow.data.vocabulary import Vocabulary
from tff_agg import files

# A batch above this is cut, so that memory does not depend on how a source batches.
_MAX_BATCH_BYTES = 1 << 24
_MAX_BATCH_ROWS = 1 << 17


@dataclasses.dataclass(frozen=True)
class Work:
    """The folder of an unfinished preparation, and what all its steps share."""

    folder: str
    buckets: int
    max_tokens: int

    def path(self, *names: str) -> str:
        """Returns a path inside the folder."""
        return os.path.join(self.folder, *names)

    def pieces(self) -> list[str]:
        """Returns the names of all pieces, in the order of the source."""
        files = glob.glob(self.path("pieces", "*.sentences.arrow"))
        return sorted(
            os.path.basename(f).removesuffix(".sentences.arrow") for f in files
        )


def atomic(path: str) -> contextlib.AbstractContextManager[BinaryIO]:
    """Opens a binary file that appears under `path` only when all is written."""
    # Others may read the store, whatever the mask of who prepares it.
    return files.replacing(path, mode=0o644, many_writers=True)


def write_json(path: str, value: object) -> None:
    """Writes a JSON file atomically."""
    with atomic(path) as file:
        file.write(json.dumps(value, indent=1, sort_keys=True).encode())


def read_json(path: str) -> Any:
    """Reads a JSON file."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write_batch(path: str, batch: pa.RecordBatch) -> None:
    """Writes an Arrow file of one batch atomically."""
    with atomic(path) as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def read_batch(path: str) -> pa.RecordBatch:
    """Memory-maps an Arrow file of one batch."""
    return pa.ipc.open_file(pa.memory_map(path)).get_batch(0)


def encode_shard(shard: int, source: Source, work: Work) -> int:
    """Turns a shard into pieces and returns the number of sentences read."""
    done = work.path("shards", f"{shard:06d}.json")
    if os.path.exists(done):
        return read_json(done)["sentences"]
    sentences = pieces = 0
    for batch in source.read(shard):
        for part in _cut(batch):
            name = f"{shard:06d}-{pieces:06d}"
            where = f"{source.where(shard)}, from its sentence {sentences} on"
            if not os.path.exists(work.path("pieces", f"{name}.sentences.arrow")):
                _encode_piece(checked(part, where), work, name, where)
            pieces += 1
            sentences += part.num_rows
    write_json(done, {"sentences": sentences, "pieces": pieces})
    return sentences


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cuts a batch into slices of bounded size."""
    slices = max(
        -(-batch.nbytes // _MAX_BATCH_BYTES), -(-batch.num_rows // _MAX_BATCH_ROWS)
    )
    rows = max(1, -(-batch.num_rows // max(1, slices)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _encode_piece(batch: pa.RecordBatch, work: Work, name: str, where: str) -> None:
    """Writes one piece: its word counts, then its sentences ordered by bucket."""
    lists = pc.split_pattern(batch.column("tokens"), " ")
    lengths = np.diff(lists.offsets.to_numpy())
    encoded = lists.flatten().dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    words = encoded.dictionary.take(pa.array(order))
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    numbers = rank[encoded.indices.to_numpy()]
    sentence = np.repeat(np.arange(batch.num_rows), lengths)
    if len(words) and words[0].as_py() == "":  # two spaces in a row: no word there
        is_word = numbers != 0
        sentence, numbers, words = sentence[is_word], numbers[is_word] - 1, words[1:]
        lengths = np.bincount(sentence, minlength=batch.num_rows)

    split = _codes(batch.column("split"), SPLITS)
    counts = np.bincount(numbers[(split == 0)[sentence]], minlength=len(words))
    write_batch(
        work.path("pieces", f"{name}.words.arrow"),
        pa.record_batch({"word": words, "count": pa.array(counts, pa.int64())}),
    )

    position = np.arange(len(numbers)) - np.repeat(
        np.cumsum(lengths) - lengths, lengths
    )
    numbers = numbers[position < work.max_tokens]
    lengths = np.minimum(lengths, work.max_tokens)
    users = batch.column("client_id").dictionary_encode()
    bucket = _buckets(users.dictionary, work.buckets)[users.indices.to_numpy()]
    nonempty = np.flatnonzero(lengths)
    rows = nonempty[np.argsort(bucket[nonempty], kind="stable")]
    bounds = np.searchsorted(bucket[rows], np.arange(work.buckets + 1))
    table = pa.record_batch(
        {
            "user": users.take(pa.array(rows)),
            "split": pa.array(split[rows]),
            "type": pa.array(_codes(batch.column("type"), TYPES)[rows]),
            "day": _days(batch.column("creation_date"), where).take(pa.array(rows)),
            "words": _take_lists(lengths, numbers, rows),
        }
    ).replace_schema_metadata({"bounds": json.dumps(bounds.tolist())})
    write_batch(work.path("pieces", f"{name}.sentences.arrow"), table)


def _codes(column: pa.Array, values: tuple[str, ...]) -> np.ndarray:
    """Returns the position of each entry of `column` in `values`."""
    return pc.index_in(column, value_set=pa.array(values)).to_numpy().astype(np.int8)


def _buckets(names: pa.Array, buckets: int) -> np.ndarray:
    """Returns the bucket of each user name."""
    digests = (
        hashlib.blake2b(name.encode(), digest_size=8, person=b"bucket").digest()
        for name in names.to_pylist()
    )
    return np.fromiter(
        (int.from_bytes(digest, "big") % buckets for digest in digests),
        np.int32,
        len(names),
    )


def _days(dates: pa.Array, where: str) -> pa.Array:
    """Returns the day of each date and time written as YYYY-MM-DD…; '' is missing."""
    day = pc.utf8_slice_codeunits(dates, 0, 10)
    day = pc.if_else(pc.equal(day, ""), pa.scalar(None, pa.string()), day)
    try:
        return day.cast(pa.date32())
    except pa.ArrowInvalid:  # whose message quotes the value
        raise ValueError(
            f"{where}: column 'creation_date' must start with YYYY-MM-DD or be empty"
        ) from None


def _take_lists(
    lengths: np.ndarray, values: np.ndarray, rows: np.ndarray
) -> pa.ListArray:
    """Returns the lists `rows` of the lists with these lengths and joined values."""
    begins = np.cumsum(lengths) - lengths
    taken = lengths[rows]
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(taken, out=offsets[1:])
    index = np.arange(offsets[-1]) + np.repeat(begins[rows] - offsets[:-1], taken)
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(values[index])
    )


def merge_counts(paths: Sequence[str], out: str) -> None:
    """Adds up several files of word counts into one sorted by word; drops zeros."""
    if os.path.exists(out):
        return
    table = pa.Table.from_batches([read_batch(path) for path in paths])
    table = table.filter(pc.greater(table["count"], 0))
    merged = table.group_by("word").aggregate([("count", "sum")])
    merged = merged.rename_columns(["word", "count"]).sort_by("word").combine_chunks()
    batches = merged.to_batches()
    write_batch(out, batches[0] if batches else read_batch(paths[0]).slice(0, 0))


def iterate_counts(path: str) -> Iterator[tuple[str, int]]:
    """Streams the (word, count) entries of a file of word counts."""
    batch = read_batch(path)
    for start in range(0, batch.num_rows, 4096):
        part = batch.slice(start, 4096)
        yield from zip(
            part.column("word").to_pylist(),
            part.column("count").to_pylist(),
            strict=True,
        )


def map_words(piece: str, vocabulary: Vocabulary, work: Work) -> None:
    """Writes the vocabulary ids of a piece's own words."""
    out = work.path("pieces", f"{piece}.ids.npy")
    if os.path.exists(out):
        return
    words = read_batch(work.path("pieces", f"{piece}.words.arrow")).column("word")
    place = pc.index_in(words, value_set=pa.array(vocabulary.words, pa.string()))
    ids = pc.fill_null(place, vocabulary.oov - 1).to_numpy(zero_copy_only=False) + 1
    with atomic(out) as file:
        np.save(file, ids.astype(id_dtype(vocabulary)))


def id_dtype(vocabulary: Vocabulary) -> type:
    """Returns the smallest unsigned type that holds every id."""
    return np.uint16 if vocabulary.num_ids <= 1 << 16 else np.uint32


def gather_bucket(bucket: int, vocabulary: Vocabulary, work: Work) -> int:
    """Writes one part of the store and its users; returns its number of sentences."""
    done = work.path("parts", f"{bucket:06d}.json")
    part = part_name(bucket)
    path = work.path("store", part)
    if os.path.exists(done) and os.path.exists(path):
        return read_json(done)["sentences"]
    columns: dict[str, list[pa.Array]] = {name: [] for name in ("user", "day")}
    arrays: dict[str, list[np.ndarray]] = {
        "split": [np.empty(0, np.int8)],
        "type": [np.empty(0, np.int8)],
        "lengths": [np.empty(0, np.int32)],
        "words": [np.empty(0, id_dtype(vocabulary))],
    }
    for piece in work.pieces():
        batch = read_batch(work.path("pieces", f"{piece}.sentences.arrow"))
        low, high = json.loads(batch.schema.metadata[b"bounds"])[bucket : bucket + 2]
        if low == high:
            continue
        ids = np.load(work.path("pieces", f"{piece}.ids.npy"), mmap_mode="r")
        batch = batch.slice(low, high - low)
        # Copies, or every piece would stay mapped until the bucket is written.
        columns["user"].append(batch.column("user").dictionary_decode())
        columns["day"].append(batch.column("day").take(pa.array(range(high - low))))
        arrays["split"].append(batch.column("split").to_numpy().copy())
        arrays["type"].append(batch.column("type").to_numpy().copy())
        arrays["lengths"].append(np.diff(batch.column("words").offsets.to_numpy()))
        arrays["words"].append(ids[batch.column("words").flatten().to_numpy()])
    joined = {name: np.concatenate(values) for name, values in arrays.items()}
    users = pa.concat_arrays([pa.array([], pa.string()), *columns["user"]])
    days = pa.concat_arrays([pa.array([], pa.date32()), *columns["day"]])
    encoded = users.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    name = rank[encoded.indices.to_numpy()] if len(users) else np.empty(0, np.int64)
    rows = np.lexsort((joined["type"], name, joined["split"]))
    words = _take_lists(joined["lengths"], joined["words"], rows)

    write_batch(
        path, pa.record_batch({"words": words, "day": days.take(pa.array(rows))})
    )
    _write_users(
        work.path("parts", f"{bucket:06d}.users.arrow"),
        bucket,
        encoded.dictionary.take(pa.array(order)),
        joined["split"][rows],
        name[rows],
        joined["type"][rows],
    )
    oov = np.repeat(joined["split"], joined["lengths"])[
        joined["words"] == vocabulary.oov
    ]
    write_json(
        done,
        {
            "file": part,
            "bytes": os.path.getsize(path),
            "sha256": file_sha256(path),
            "sentences": len(rows),
            "by_split": [
                {
                    "sentences": int((joined["split"] == split).sum()),
                    "tokens": int(joined["lengths"][joined["split"] == split].sum()),
                    "oov": int((oov == split).sum()),
                }
                for split in range(len(SPLITS))
            ],
        },
    )
    return len(rows)


def _write_users(
    path: str,
    part: int,
    names: pa.Array,
    split: np.ndarray,
    name: np.ndarray,
    type: np.ndarray,
) -> None:
    """Writes the users of a part, given its sentences' sorted split, name and type."""
    changed = (np.diff(split) != 0) | (np.diff(name) != 0)
    first = np.concatenate([np.ones(min(1, len(split)), bool), changed])
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], len(split))[: len(starts)]
    answers = np.concatenate([[0], np.cumsum(type)])
    num_answers = answers[ends] - answers[starts]
    write_batch(
        path,
        pa.record_batch(
            {
                "name": names.take(pa.array(name[starts])),
                "split": pa.array(split[starts], pa.int8()),
                "part": pa.array(np.full(len(starts), part), pa.int32()),
                "start": pa.array(starts, pa.int32()),
                "questions": pa.array(ends - starts - num_answers, pa.int32()),
                "answers": pa.array(num_answers, pa.int32()),
            }
        ),
    )
