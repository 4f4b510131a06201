"""Prepares a token store: vocabulary, ids, and where each user's sentences are.

  python -m stackoverflow.prepare --source=synthetic --out=data/synthetic
  python -m stackoverflow.prepare --source=parquet --path=rows.parquet --out=data/rows
  python -m stackoverflow.prepare --source=text --path=posts.csv --out=data/posts
  python -m stackoverflow.prepare --source=official --download --out=data/official

`text` is CSV or JSON lines with user, text and perhaps time and type; it is cut into
sentences and tokens, and users into splits, by the rules of docs/data.md.
Killed? The same command goes on where it stopped.
"""

import os
import sys
import time

from absl import app, flags

from stackoverflow.data import preparation
from stackoverflow.data.download import download
from stackoverflow.data.sources import KINDS, SPLITS
from stackoverflow.data.token_store import TokenStore
from tff_agg.experiment import progress
from tff_agg.experiment.commands import interruption
from tff_agg.privacy import KeySelection


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines the flags of this binary, which others have under the same names."""
    flags.DEFINE_enum(
        "source",
        "synthetic",
        KINDS,
        "What to read.",
        flag_values=values,
    )
    for name, text in (
        ("path", "The file or folder to read; with --download, where to put it."),
        ("out", "The folder of the store to make."),
    ):
        flags.DEFINE_string(name, None, text, flag_values=values)
    for name, default, text in (
        ("vocab_size", 10_000, "Words kept: the most frequent of the train split."),
        ("max_tokens", 20, "Words kept of a sentence."),
        (
            "vocab_user_cap",
            None,
            "Choose the vocabulary with privacy: the most words one user votes for. "
            "Needs --vocab_noise_multiplier.",
        ),
        ("workers", None, "Processes; the number of cores by default."),
        ("users", 2000, "Synthetic source: how many users."),
        ("words", 256, "Synthetic source: how many different words."),
        ("seed", 0, "Synthetic source: its seed."),
    ):
        flags.DEFINE_integer(name, default, text, flag_values=values)
    flags.DEFINE_float(
        "vocab_noise_multiplier",
        None,
        "Noise on the votes, relative to √vocab_user_cap; ρ = 1/(2·multiplier²) is "
        "counted by every run on the store.",
        flag_values=values,
    )
    flags.DEFINE_float(
        "vocab_delta",
        1e-7,
        "With privacy: the probability that a word of one user alone gets in; part of "
        "the runs' δ.",
        flag_values=values,
    )
    for name, text in (
        ("download", "Official source: fetch the published file first."),
        ("restart", "Start over, and replace a store that is in --out."),
    ):
        flags.DEFINE_boolean(name, False, text, flag_values=values)
    flags.mark_flag_as_required("out", flag_values=values)


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


def _selection(values: flags.FlagValues) -> KeySelection | None:
    """Returns how the vocabulary is chosen with privacy, if it is."""
    given = (values.vocab_user_cap, values.vocab_noise_multiplier)
    if given == (None, None):
        return None
    if None in given:
        raise ValueError(
            "--vocab_user_cap and --vocab_noise_multiplier belong together; got "
            f"{given[0]} and {given[1]}"
        )
    return KeySelection(*given, delta=values.vocab_delta)


def _refuse_idle(values: flags.FlagValues) -> None:
    """Raises where a flag was given that changes nothing."""
    needs = {name: "--source=synthetic" for name in ("users", "words", "seed")}
    if values.source == "synthetic":
        needs = {}
    if values.vocab_user_cap is None:
        needs["vocab_delta"] = "--vocab_user_cap"
    if idle := [
        f"--{n} needs {what}" for n, what in needs.items() if values[n].present
    ]:
        raise ValueError(f"flags that have no effect: {'; '.join(idle)}")


def run(values: flags.FlagValues) -> int:
    """Runs the preparation that the flags describe; returns the exit code."""
    bar = progress.StageBar()
    began = time.monotonic()
    try:
        _refuse_idle(values)
        path = values.path
        if values.download:
            if values.source != "official":
                raise ValueError("--download: only the official source has a download")
            path = download(path, progress=bar)
        source = preparation.make_source(
            values.source,
            path,
            users=values.users,
            words=values.words,
            seed=values.seed,
        )
        store = preparation.prepare_store(
            source,
            values.out,
            vocab_size=values.vocab_size,
            max_tokens=values.max_tokens,
            selection=_selection(values),
            workers=values.workers or os.cpu_count() or 1,
            progress=bar,
            restart=values.restart,
        )
    except (ValueError, OSError) as error:
        bar.close()
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        bar.close()
    print(_table(store))
    print(_about_people(store))
    print(
        f"{store.vocabulary.size:,} words and 4 special tokens; {store.path} "
        f"({time.monotonic() - began:.1f} s)"
    )
    return 0


def main(argv: list[str]) -> int:
    """Refuses stray arguments and runs."""
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments {argv[1:]}")
    again = "Run the same command again to go on where it stopped."
    with interruption.plain_ending(lambda: again):
        return run(flags.FLAGS)


def entry_point() -> None:
    """Runs as the console command `tff-agg-prepare`."""
    interruption.install()
    define_flags()
    app.run(main)


if __name__ == "__main__":
    entry_point()
