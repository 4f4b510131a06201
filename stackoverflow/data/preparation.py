"""From any source of sentences to a token store.

`prepare_store` is what `python -m stackoverflow prepare` runs: it reads a source once,
counts words, chooses the vocabulary and writes the store, with several processes and
in bounded memory. All it has finished stays in `<out>.partial` until the store is
complete; only then does the store appear, in one rename.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from stackoverflow.data import encode, store_manifest, votes, word_choice
from stackoverflow.data.encode import Work
from stackoverflow.data.sources import SPLITS, TYPES, Source, make_source
from stackoverflow.data.token_store import TokenStore
from stackoverflow.data.vocabulary import Vocabulary
from tff_agg import checkpoints, files
from tff_agg.aliases import JsonObject
from tff_agg.privacy.selection import KeySelection
from tff_agg.processes import usable_cores
from tff_agg.runtime.job_processes import Processes

_log = logging.getLogger(__name__)

# Sentences in a part, about: small enough to sort in memory, large enough to be few.
_PART_SENTENCES = 1 << 18
# A sentence in a file of text, about: for sources that do not know how many they have.
_SENTENCE_BYTES = 64

_Item = TypeVar("_Item")
Progress = Callable[[str, int, int], None]
#: What a store is made from and how, as JSON values.
Settings: TypeAlias = dict[str, Any]


def prepare_store(
    source: Source,
    out: str | os.PathLike,
    *,
    vocab_size: int = 10_000,
    max_tokens: int = 20,
    selection: KeySelection | None = None,
    workers: int = 1,
    progress: Progress | None = None,
    restart: bool = False,
) -> TokenStore:
    """Writes the token store of a source, or goes on where a killed run stopped.

    If `out` already holds the store of this source and these settings, it is opened
    and nothing is done.

    Args:
      source: Where the sentences come from.
      out: The folder to make. `<out>.partial` is used meanwhile.
      vocab_size: The most words that the vocabulary may have.
      max_tokens: The words of a sentence that count; those behind them are cut.
      selection: Choose the vocabulary with noise, from at most `selection.cap` words
        per user. The store then names its ρ and δ, and every run on it counts them.
        None takes the most frequent words as they are, which no guarantee covers.
      workers: Processes; 1 works in this one.
      progress: Called with (stage, done, total) as the work goes on.
      restart: Drop an unfinished preparation instead of going on with it, and replace
        a store that is in `out`. A vocabulary with noise is then drawn anew, and what
        the one before had spent is added to its ρ and δ.

    Returns:
      The store, opened.

    Raises:
      ValueError: If an argument or the input is wrong, or `out` holds something else.

    Example:
      >>> source = make_source('synthetic', None, users=100)
      >>> store = prepare_store(source, folder / 'store')
      >>> store.vocabulary.num_ids
      256
    """
    for name, value in (
        ("vocab_size", vocab_size),
        ("max_tokens", max_tokens),
        ("workers", workers),
    ):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    out = os.path.abspath(os.fspath(out))
    config = {
        "source": {"name": source.name, **source.fingerprint()},
        "vocab_size": vocab_size,
        "max_tokens": max_tokens,
        "version": store_manifest.VERSION,
    }
    if selection is not None:
        config["vocabulary_selection"] = dataclasses.asdict(selection)
    if os.path.lexists(out) and not restart:
        return _existing(out, config)
    folder = out + ".partial"
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with _locked(folder):
        if restart:
            spent = word_choice.spent_before(folder, out)
            _clear(folder)
            word_choice.note_spent(folder, spent)
        work = _plan(folder, source, config)
        try:
            # One core each: there are as many as cores.
            with Processes(workers, functools.partial(pa.set_cpu_count, 1)) as crew:
                vocabulary = _run_stages(
                    source, work, vocab_size, selection, crew, progress
                )
        except ValueError:
            # The input is wrong. Once it is mended it is another input, and nothing of
            # this is of use, but for the account of noise that was drawn.
            if word_choice.spent_before(folder, out) is None:
                _remove(folder)
            raise
        _finish(work, vocabulary, config)
        if restart and os.path.lexists(out):
            _replace_store(work.path("store"), out, work.path("replaced"))
        else:
            os.rename(work.path("store"), out)
        files.sync_folder(os.path.dirname(out))
        _remove(folder)
    return TokenStore.open(out)


def ensure_store(
    source: str,
    path: str | None,
    folder: str | os.PathLike,
    *,
    vocab_size: int = 10_000,
    users: int = 2000,
    words: int = 256,
    workers: int | None = None,
) -> str:
    """Returns the path of a source's token store, prepared once and then reused.

    Args:
      source: One of `sources.KINDS`.
      path: The file to read; not for the synthetic source.
      folder: The folder that holds the stores.
      vocab_size: Words of the vocabulary, at most.
      users: Users of the synthetic source.
      words: Different words of the synthetic source.
      workers: Processes that prepare; one per core if not given.

    Example:
      >>> ensure_store('synthetic', None, 'data', users=100)
      'data/synthetic-100users-256words'
    """
    sentences = make_source(source, path, users=users, words=words)
    if source == "synthetic":
        name = f"synthetic-{users}users-{words}words"
        vocab_size = min(vocab_size, words)
    else:
        stem = re.sub(r"[^\w.-]+", "_", pathlib.Path(str(path)).stem)
        name = f"{source}-{stem}-{vocab_size}words"
    out = os.path.join(os.fspath(folder), name)
    workers = workers or usable_cores()
    prepare_store(sentences, out, vocab_size=vocab_size, workers=workers)
    return out


def _existing(out: str, config: Settings) -> TokenStore:
    """Opens the store in `out` if it is the one asked for."""
    if not os.path.exists(os.path.join(out, store_manifest.MANIFEST)):
        raise ValueError(
            f"out={out!r}: exists and is no token store; name another folder"
        )
    store = TokenStore.open(out)
    stored = store_manifest.read_manifest(out)["config"]
    if stored != config:
        raise ValueError(
            f"out={out!r}: holds a store made with other settings "
            f"({_difference(stored, config)}); name another folder or restart"
        )
    if os.path.isdir(out + ".partial"):  # killed between the rename and the clearing
        with _locked(out + ".partial"):
            _remove(out + ".partial")
    return store


def _remove(folder: str) -> None:
    """Removes a folder that is no longer needed; says so if it cannot be."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        _log.warning("%s: could not be removed (%s)", folder, error)


def _difference(stored: Settings, wanted: Settings) -> str:
    """Returns in words which settings differ."""
    flat = [
        {
            **{f"source.{k}": v for k, v in c.get("source", {}).items()},
            **{k: v for k, v in c.items() if k != "source"},
        }
        for c in (stored, wanted)
    ]
    keys = sorted(k for k in {*flat[0], *flat[1]} if flat[0].get(k) != flat[1].get(k))
    return ", ".join(f"{k}: {flat[0].get(k)} there, {flat[1].get(k)} now" for k in keys)


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Makes `folder` and holds it against a second preparation."""
    os.makedirs(folder, exist_ok=True)
    try:
        lock = checkpoints.RunLock(folder).acquire()
    except (checkpoints.RunLockedError, checkpoints.StoreError) as error:
        raise ValueError(f"Cannot prepare a store: {error}") from error
    try:
        yield
    finally:
        lock.release()


def _clear(folder: str) -> None:
    """Removes everything but the lock."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif name != checkpoints.RunLock.FILE:
            os.unlink(path)


def _plan(folder: str, source: Source, config: Settings) -> Work:
    """Returns the work to do, the same that a killed run of it had planned."""
    file = os.path.join(folder, "plan.json")
    if not os.path.exists(file):
        sentences = source.num_sentences()
        if sentences is None:
            read = config["source"].get("files", [])
            sentences = sum(file["bytes"] for file in read) // _SENTENCE_BYTES
        buckets = -(-sentences // _PART_SENTENCES)
        encode.write_json(file, {"config": config, "buckets": max(1, buckets)})
    plan = encode.read_json(file)
    if plan["config"] != config:
        raise ValueError(
            f"{folder}: an unfinished preparation with other settings is here "
            f"({_difference(plan['config'], config)}); restart, or remove the folder"
        )
    for name in ("shards", "pieces", "counts", "parts", "store"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    return Work(folder, plan["buckets"], config["max_tokens"])


def _run_stages(
    source: Source,
    work: Work,
    vocab_size: int,
    selection: KeySelection | None,
    crew: Processes,
    progress: Progress | None,
) -> Vocabulary:
    """Runs all stages up to the parts of the store."""
    report = progress or (lambda stage, done, total: None)

    def stage(
        name: str,
        function: Callable[[_Item], int | None],
        items: Sequence[_Item],
        total: int | None = None,
    ) -> int:
        """Calls the function with each item, which is so much of the total; or 1."""
        total = len(items) if total is None else total
        done = 0
        report(name, 0, total)
        for ended in crew.spread(function, items):
            of_item = ended.result()
            done += 1 if of_item is None else of_item
            report(name, done, total)
        return done

    encoded = functools.partial(encode.encode_shard, source=source, work=work)
    expected = source.num_sentences() or 0
    read = stage("read", encoded, range(source.num_shards()), expected)
    if not read:
        raise ValueError(f"{source.name} source: there are no sentences in it")

    buckets = range(work.buckets)
    file = work.path("vocabulary.json")
    if not os.path.exists(file):
        if selection is not None:
            cap = selection.cap
            counted = functools.partial(votes.count_votes, cap=cap, work=work)
            stage("count votes", counted, buckets)
        chosen = word_choice.choose(work, vocab_size, selection, crew)
        encode.write_json(file, chosen)
    vocabulary = Vocabulary(tuple(encode.read_json(file)["words"]))

    mapped = functools.partial(encode.map_words, vocabulary=vocabulary, work=work)
    stage("map words", mapped, work.pieces())
    part = functools.partial(encode.gather_bucket, vocabulary=vocabulary, work=work)
    stage("write", part, buckets, read)
    return vocabulary


def _finish(work: Work, vocabulary: Vocabulary, config: Settings) -> None:
    """Writes the table of users, the vocabulary and the manifest."""
    stats = [
        encode.read_json(work.path("parts", f"{b:06d}.json"))
        for b in range(work.buckets)
    ]
    users = pa.Table.from_batches(
        [
            encode.read_batch(work.path("parts", f"{b:06d}.users.arrow"))
            for b in range(work.buckets)
        ]
    )
    users = users.sort_by([("split", "ascending"), ("name", "ascending")])
    encode.write_batch(
        work.path("store", store_manifest.USERS), users.combine_chunks().to_batches()[0]
    )
    with encode.atomic(work.path("store", store_manifest.VOCABULARY)) as file:
        file.write(json.dumps(vocabulary.words, ensure_ascii=False).encode())
    written = {s["file"]: {"bytes": s["bytes"], "sha256": s["sha256"]} for s in stats}
    for name in (store_manifest.USERS, store_manifest.VOCABULARY):
        path = work.path("store", name)
        written[name] = {
            "bytes": os.path.getsize(path),
            "sha256": store_manifest.file_sha256(path),
        }
    for name in os.listdir(work.path("store")):
        if name not in written:  # a temporary file of a killed run
            os.unlink(work.path("store", name))
    entries = {
        "format": store_manifest.FORMAT,
        "version": store_manifest.VERSION,
        "max_tokens": work.max_tokens,
        "config": config,
        "files": written,
        "summary": _summary(stats, users),
    }
    chosen = encode.read_json(work.path("vocabulary.json"))
    if "release" in chosen:
        entries["vocabulary_release"] = chosen["release"]
    entries["sha256"] = store_manifest.manifest_sha256(entries)
    encode.write_json(work.path("store", store_manifest.MANIFEST), entries)
    files.sync_folder(work.path("store"))


def _summary(stats: list[dict[str, Any]], users: pa.Table) -> JsonObject:
    """Returns users, sentences, tokens and out-of-vocabulary share by split."""
    split = users["split"].to_numpy()
    result: JsonObject = {}
    for index, name in enumerate(SPLITS):
        sums = {
            key: sum(s["by_split"][index][key] for s in stats)
            for key in ("sentences", "tokens", "oov")
        }
        inside = split == index
        result[name] = {
            "users": int(inside.sum()),
            **{f"{t}s": int(users[f"{t}s"].to_numpy()[inside].sum()) for t in TYPES},
            "sentences": sums["sentences"],
            "tokens": sums["tokens"],
            "oov_share": sums["oov"] / sums["tokens"] if sums["tokens"] else 0.0,
        }
    return result


def _replace_store(new: str, out: str, aside: str) -> None:
    """Puts a new store in the place of an old one."""
    if not os.path.exists(os.path.join(out, store_manifest.MANIFEST)):
        raise ValueError(f"out={out!r}: exists and is no token store; not replaced")
    os.rename(out, aside)
    os.rename(new, out)
