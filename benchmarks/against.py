r"""Runs one benchmark alternately in this checkout and in another; compares figures.

The benchmark must print JSON as its last line, and be there in both checkouts under the
same name. Each run is a fresh process. The smallest figure of all runs counts: what
else the machine does can only add to it.

    git worktree add --detach ../old 20cb2bc
    python -m benchmarks.against --other=../old --figure=rounds -- \
        benchmarks.round_local --window=10
    python -m benchmarks.against --other=../old --figure=best_cpu_seconds -- \
        benchmarks.server_step --one=tree:uta10
"""

import json
import os
import pathlib
import subprocess
import sys

from absl import app, flags

_OTHER = flags.DEFINE_string("other", None, "The other checkout.", required=True)
_FIGURE = flags.DEFINE_string(
    "figure", "rounds", "Which figure of the JSON; of a list the smallest counts."
)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Runs of each checkout.", lower_bound=1)


def figure_of(module: str, arguments: list[str], folder: pathlib.Path) -> float:
    """Runs a benchmark in a checkout and returns its figure."""
    # With -m and the folder as the working directory, Python imports from there.
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={"TF_ENABLE_ONEDNN_OPTS": "1", **os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])[_FIGURE.value]
    return min(found) if isinstance(found, list) else found


def main(argv: list[str]) -> None:
    if len(argv) < 2:
        raise app.UsageError("which benchmark? Give its module after --")
    here = pathlib.Path(__file__).resolve().parents[1]
    folders = {"this": here, "other": pathlib.Path(_OTHER.value).resolve()}
    best = dict.fromkeys(folders, float("inf"))
    for _ in range(_REPEATS.value):
        for name, folder in folders.items():
            found = figure_of(argv[1], argv[2:], folder)
            best[name] = min(best[name], found)
            print(f"{name:6} {_FIGURE.value} {found:.4f}", flush=True)
    ratio = best["this"] / best["other"]
    print(
        f"this {best['this']:.4f}, other {best['other']:.4f}: "
        f"this / other = {ratio:.3f} ({' '.join(argv[1:])})"
    )


if __name__ == "__main__":
    app.run(main)
