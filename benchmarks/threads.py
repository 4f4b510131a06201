"""Times a round under different lanes and thread pools.

    python -m benchmarks.threads --repeats=2 --rounds=4

The same round as in `benchmarks.round_time`, on the local runtime. The combinations
run one after the other, each in a fresh process, and the best round of each counts.
`lanes=1 intra=2` is what TensorFlow does by itself: one client after the other, all
cores inside each operation.
"""

import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
from typing import Any

from absl import app, flags

from tff_agg import processes

# (lanes, threads inside an operation, operations at once)
COMBINATIONS = (
    (2, 1, 2),
    (2, 1, 1),
    (2, 1, 4),
    (2, 2, 2),
    (1, 2, 2),
    (1, 2, 1),
    (1, 1, 2),
    (3, 1, 3),
    (4, 1, 4),
)

_USERS = flags.DEFINE_integer("users", 16, "Clients in a round.", lower_bound=1)
_SENTENCES = flags.DEFINE_integer("sentences", 64, "Sentences each.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds in one turn.", lower_bound=2)
_REPEATS = flags.DEFINE_integer("repeats", 1, "Turns.", lower_bound=1)
_OUT = flags.DEFINE_string("out", "results/threads", "Folder for JSON.")


def run(lanes: int, intra: int, inter: int, rounds: int) -> list[float]:
    """Returns the seconds of the rounds after the first, which compiles."""
    command = [sys.executable, "-m", "benchmarks.round_local", f"--rounds={rounds}"]
    command += [f"--lanes={lanes}", f"--intra_op={intra}", f"--inter_op={inter}"]
    command += [f"--users={_USERS.value}", f"--sentences={_SENTENCES.value}"]
    environment = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = processes.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
        check=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])["rounds"][1:]


def main(argv: list[str]) -> None:
    del argv
    found: dict[tuple[int, int, int], list[float]] = {c: [] for c in COMBINATIONS}
    for _ in range(_REPEATS.value):
        for combination, seconds in found.items():
            seconds.extend(run(*combination, _ROUNDS.value))
    rows: list[dict[str, Any]] = [
        {"lanes": lanes, "intra_op": intra, "inter_op": inter,
         "best_seconds": min(seconds), "median_seconds": statistics.median(seconds)}
        for (lanes, intra, inter), seconds in found.items()
    ]  # fmt: skip
    print(f"{'lanes':>5} {'intra':>5} {'inter':>5} {'best s':>8} {'median s':>9}")
    for row in sorted(rows, key=lambda row: row["best_seconds"]):
        print(
            f"{row['lanes']:5} {row['intra_op']:5} {row['inter_op']:5} "
            f"{row['best_seconds']:8.2f} {row['median_seconds']:9.2f}"
        )
    out = pathlib.Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "rows": rows,
    }
    (out / "threads.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    app.run(main)
