"""Prepares a token store: vocabulary, ids, and where each user's sentences are.

  python -m stackoverflow.prepare --source=synthetic --out=data/synthetic
  python -m stackoverflow.prepare --source=parquet --path=rows.parquet --out=data/rows
  python -m stackoverflow.prepare --source=official --download --out=data/official

Killed? The same command goes on where it stopped.
"""

import os
import sys
import time
from typing import Any

import tqdm
from absl import app, flags

from stackoverflow import data
from stackoverflow.download import download
from stackoverflow.sources import SPLITS
from stackoverflow.token_store import TokenStore

_SOURCE = flags.DEFINE_enum(
    "source", "synthetic", ["synthetic", "parquet", "official"], "What to read."
)
_PATH = flags.DEFINE_string("path", None, "The file or folder to read.")
_OUT = flags.DEFINE_string("out", None, "The folder of the store to make.")
_VOCAB_SIZE = flags.DEFINE_integer(
    "vocab_size", 10_000, "Words kept: the most frequent ones of the train split."
)
_MAX_TOKENS = flags.DEFINE_integer("max_tokens", 20, "Words kept of a sentence.")
_WORKERS = flags.DEFINE_integer(
    "workers", None, "Processes; the number of cores by default."
)
_DOWNLOAD = flags.DEFINE_boolean(
    "download", False, "Official source: fetch the published file first."
)
_RESTART = flags.DEFINE_boolean(
    "restart", False, "Start over, and replace a store that is in --out."
)
_USERS = flags.DEFINE_integer("users", 2000, "Synthetic source: how many users.")
_WORDS = flags.DEFINE_integer("words", 500, "Synthetic source: different words.")
_SEED = flags.DEFINE_integer("seed", 0, "Synthetic source: its seed.")


class _Bar:
    """A progress bar that starts anew with every stage."""

    def __init__(self):
        self._stage: str | None = None
        self._bar: Any = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self.close()
            self._stage = stage
            self._bar = tqdm.tqdm(desc=stage, total=total or None, unit_scale=True)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Ends the bar of the current stage."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _table(store: TokenStore) -> str:
    """Returns the figures of a store as a table."""
    columns = ("users", "questions", "answers", "sentences", "tokens")
    lines = [f"{'split':8}" + "".join(f"{c:>12}" for c in (*columns, "OOV share"))]
    for split in SPLITS:
        row = store.summary[split]
        lines.append(
            f"{split:8}"
            + "".join(f"{row[c]:>12,}" for c in columns)
            + f"{row['oov_share']:>12.2%}"
        )
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Runs the preparation that the flags describe."""
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments {argv[1:]}")
    bar = _Bar()
    began = time.monotonic()
    try:
        path = _PATH.value
        if _DOWNLOAD.value:
            if _SOURCE.value != "official":
                raise ValueError("--download: only the official source has a download")
            path = download(path, progress=bar)
        source = data.make_source(
            _SOURCE.value,
            path,
            users=_USERS.value,
            words=_WORDS.value,
            seed=_SEED.value,
        )
        store = data.prepare_store(
            source,
            _OUT.value,
            vocab_size=_VOCAB_SIZE.value,
            max_tokens=_MAX_TOKENS.value,
            workers=_WORKERS.value or os.cpu_count() or 1,
            progress=bar,
            restart=_RESTART.value,
        )
    except (ValueError, OSError) as error:
        bar.close()
        print(f"error: {error}", file=sys.stderr)
        return 1
    bar.close()
    print(_table(store))
    print(
        f"{store.vocabulary.size:,} words and 4 special tokens; {store.path} "
        f"({time.monotonic() - began:.1f} s)"
    )
    return 0


if __name__ == "__main__":
    flags.mark_flag_as_required("out")
    app.run(main)
