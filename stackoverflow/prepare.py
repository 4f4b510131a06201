"""Prepares a token store: vocabulary, ids, and where each user's sentences are.

  python -m stackoverflow prepare --source=synthetic --out=data/synthetic
  python -m stackoverflow prepare --source=parquet --path=rows.parquet --out=data/rows
  python -m stackoverflow prepare --source=text --path=posts.csv --out=data/posts
  python -m stackoverflow prepare --source=official --download --out=data/official

`text` is CSV or JSON lines with user, text and perhaps time and type; it is cut into
sentences and tokens, and users into splits, by the rules of docs/data.md.
Killed? The same command goes on where it stopped.
"""

import contextlib
import dataclasses
import time
from collections.abc import Collection

from stackoverflow.data import preparation
from stackoverflow.data.download import download
from stackoverflow.data.sources import KINDS, SPLITS, make_source
from stackoverflow.data.token_store import TokenStore
from tff_agg import fields
from tff_agg.experiment import progress
from tff_agg.experiment.commands import Command, interruption
from tff_agg.fields import described
from tff_agg.privacy import KeySelection
from tff_agg.processes import usable_cores

_SYNTHETIC = ("source", ("synthetic",))


@dataclasses.dataclass(frozen=True)
class PrepareOptions:
    """What a token store is made from, and how."""

    source: str = described("synthetic", "what to read", KINDS)
    path: str | None = described(
        None, "the file or folder to read; with --download, where to put it"
    )
    out: str = described("", "the folder of the store to make")
    vocab_size: int = described(
        10_000, "words kept: the most frequent of the train split", at_least=1
    )
    max_tokens: int = described(20, "words kept of a sentence", at_least=1)
    vocab_user_cap: int | None = described(
        None,
        "choose the vocabulary with privacy: the most words one user votes for; needs "
        "--vocab_noise_multiplier",
        at_least=1,
    )
    vocab_noise_multiplier: float | None = described(
        None,
        "noise on the votes, relative to √vocab_user_cap; ρ = 1/(2·multiplier²) is "
        "counted by every run on the store",
    )
    vocab_delta: float = described(
        1e-7,
        "with privacy: the probability that a word of one user alone gets in; part of "
        "the runs' δ",
    )
    workers: int | None = described(
        None, "processes; the number of cores by default", at_least=1
    )
    users: int = described(
        2000, "synthetic source: how many users", at_least=1, only_with=_SYNTHETIC
    )
    words: int = described(
        256, "synthetic source: how many different words", at_least=1,
        only_with=_SYNTHETIC,
    )  # fmt: skip
    seed: int = described(0, "synthetic source: its seed", only_with=_SYNTHETIC)
    download: bool = described(
        False, "official source: fetch the published file first",
        only_with=("source", ("official",)),
    )  # fmt: skip
    restart: bool = described(False, "start over, and replace a store that is in --out")

    def __post_init__(self) -> None:
        fields.check(self)
        if not self.out:
            raise ValueError("--out must name the folder of the store; it is empty")
        given = (self.vocab_user_cap, self.vocab_noise_multiplier)
        if None in given and given != (None, None):
            raise ValueError(
                "--vocab_user_cap and --vocab_noise_multiplier belong together; got "
                f"{given[0]} and {given[1]}"
            )

    def without_effect(self, given: Collection[str]) -> list[str]:
        """Returns which of the given fields change nothing; a text for each."""
        idle = fields.without_effect(self, given)
        if "vocab_delta" in given and self.vocab_user_cap is None:
            idle.append("vocab_delta needs --vocab_user_cap")
        return idle

    @property
    def selection(self) -> KeySelection | None:
        """How the vocabulary is chosen with privacy, if it is."""
        if self.vocab_user_cap is None or self.vocab_noise_multiplier is None:
            return None
        return KeySelection(
            self.vocab_user_cap, self.vocab_noise_multiplier, delta=self.vocab_delta
        )


def _table(store: TokenStore) -> str:
    """Returns the figures of a store as a table."""
    from tff_agg.experiment.study import show

    columns = ("users", "questions", "answers", "sentences", "tokens")
    rows = []
    for split in SPLITS:
        figures = store.summary[split]
        counts = [f"{figures[column]:,}" for column in columns]
        rows.append([split, *counts, f"{100 * figures['oov_share']:.2f}"])
    return show.render(show.Table(["split", *columns, "OOV share %"], rows))


def _about_people(store: TokenStore) -> str:
    """Returns what the store means for privacy: shared users, and the vocabulary."""
    shared = store.users_shared_with_train
    counts = ", ".join(f"{number:,} in {split}" for split, number in shared.items())
    lines = [f"train users who are in other splits as well: {counts}"]
    if any(shared.values()):
        lines.append("  scores on those splits are computed on training users' data")
    for release in store.releases:
        lines.append(
            f"{release.name}: ρ = {release.rho:.4g}, δ = {release.delta:g}, counted by "
            f"every run on this store ({release.method})"
        )
    if not store.releases:
        lines.append(
            "vocabulary: counted without noise and without a limit for one user; no "
            "run's guarantee covers it"
        )
    return "\n".join(lines)


def prepare(options: PrepareOptions) -> int:
    """Prepares a store, and shows what is in it."""
    again = "Run the same command again to go on where it stopped."
    began = time.monotonic()
    with (
        interruption.plain_ending(lambda: again),
        contextlib.closing(progress.StageBar()) as bar,
    ):
        path = options.path
        if options.download:
            path = download(path, progress=bar)
        source = make_source(
            options.source,
            path,
            users=options.users,
            words=options.words,
            seed=options.seed,
        )
        store = preparation.prepare_store(
            source,
            options.out,
            vocab_size=options.vocab_size,
            max_tokens=options.max_tokens,
            selection=options.selection,
            workers=options.workers or usable_cores(),
            progress=bar,
            restart=options.restart,
        )
    print(_table(store))
    print(_about_people(store))
    print(
        f"{store.vocabulary.vocab_size:,} words and 4 special tokens; {store.path} "
        f"({time.monotonic() - began:.1f} s)"
    )
    return 0


def command(task: object) -> Command:
    """Returns the command."""
    del task
    return Command(prepare, (PrepareOptions,), tensorflow=False)
