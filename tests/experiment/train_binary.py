"""Runs `python -m stackoverflow.train` on a tiny configuration."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAGS = [
    "--rounds=8",
    "--clients_per_round=4",
    "--max_sentences=20",
    "--embedding_size=4",
    "--lstm_size=6",
    "--averager=uta",
    "--k=2",
    "--epsilon=8",
    "--evaluate_every=4",
    "--validation_sentences=60",
    "--test_sentences=60",
    "--insecure_noise_seed=7",
    "--group_users=1",
]


def command(store, out, *more):
    """Returns the command of a run."""
    return [
        sys.executable, "-m", "stackoverflow.train",
        f"--store={store}", f"--out={out}", *FLAGS, *more,
    ]  # fmt: skip


def run(store, out, *more, before=(), **options):
    """Runs it to its end; `before` comes before the command."""
    return subprocess.run(
        [*before, *command(store, out, *more)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        **options,
    )
