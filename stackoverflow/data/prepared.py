"""Finds the token store of a data source, preparing it where it is not there yet."""

import os
import pathlib
import re

from stackoverflow.data import preparation


def ensure_store(
    source: str,
    path: str | None,
    folder: str | os.PathLike,
    *,
    vocab_size: int = 10_000,
    users: int = 2000,
    words: int = 256,
    seed: int = 0,
    workers: int | None = None,
    progress: preparation.Progress | None = None,
) -> str:
    """Returns the path of a source's token store, prepared once and then reused.

    Args:
      source: One of `sources.KINDS`.
      path: The file to read; not for the synthetic source.
      folder: The folder that holds the stores.
      vocab_size: Words of the vocabulary, at most.
      users: Users of the synthetic source.
      words: Different words of the synthetic source.
      seed: Seed of the synthetic source.
      workers: Processes that prepare; one per core if not given.
      progress: Called with (stage, done, total).

    Example:
      >>> ensure_store('synthetic', None, 'data', users=100)
      'data/synthetic-100users-256words-seed0'
    """
    sentences = preparation.make_source(
        source, path, users=users, words=words, seed=seed
    )
    if source == "synthetic":
        name = f"synthetic-{users}users-{words}words-seed{seed}"
        vocab_size = min(vocab_size, words)
    else:
        stem = re.sub(r"[^\w.-]+", "_", pathlib.Path(str(path)).stem)
        name = f"{source}-{stem}-{vocab_size}words"
    out = os.path.join(os.fspath(folder), name)
    if workers is None:
        workers = os.cpu_count() or 1
    preparation.prepare_store(
        sentences, out, vocab_size=vocab_size, workers=workers, progress=progress
    )
    return out
