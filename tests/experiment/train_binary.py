"""Tiny runs: of `python -m stackoverflow train`, and configurations of the library."""

import pathlib
import subprocess
import sys

from stackoverflow.task import StackOverflowConfig
from tests import command_lines, forked
from tff_agg.experiment import presets

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAGS = [
    "--preset=paper_baseline",
    "--rounds=8",
    "--clients_per_round=4",
    "--max_sentences=20",
    "--embedding_size=4",
    "--lstm_size=6",
    "--averager=uta",
    "--k=2",
    "--epsilon=8",
    "--evaluate_every=4",
    "--validation_examples=60",
    "--test_examples=60",
    "--insecure_noise_seed=7",
    "--group_users=1",
]


# Tests of the machinery look at what a tree and momentum do.
TINY = dict(presets.PRESETS["paper_baseline"].settings) | {
    "rounds": 6,
    "clients_per_round": 4,
    "max_sentences": 20,
    "embedding_size": 4,
    "lstm_size": 6,
    "averager": "uta",
    "k": 2,
    "noise_multiplier": 0.5,
    "evaluate_every": 2,
    "validation_examples": 60,
    "test_examples": 60,
}


def tiny_config(store, **changes):
    """Returns a configuration; what is alike in all tests is compiled once."""
    return StackOverflowConfig(**({"store": store} | TINY | changes))


# The binary as it is, killed before its n-th call that makes something durable. It
# prints its children first.
KILLED = """
import os, psutil, runpy, signal, sys

left, fsync = int(sys.argv.pop(1)), os.fsync

def dying(descriptor):
    global left
    left -= 1
    if not left:
        print(*[child.pid for child in psutil.Process().children(recursive=True)])
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)

os.fsync = dying
sys.argv.insert(1, "train")
runpy.run_module("stackoverflow", run_name="__main__", alter_sys=True)
"""


def flags(store, out, *more):
    """Returns the flags of a run."""
    return [f"--store={store}", f"--out={out}", *FLAGS, *more]


def run(store, out, *more):
    """Runs it to its end from nothing."""
    binary = [sys.executable, "-m", "stackoverflow", "train"]
    return subprocess.run(
        [*binary, *flags(store, out, *more)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def run_forked(store, out, *more):
    """Runs it to its end, with TensorFlow loaded already."""
    return forked.run(command_lines.program("train"), *flags(store, out, *more))
