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

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

from benchmarks import programs, turns
from tff_agg.fields import described


@dataclasses.dataclass(frozen=True)
class Options:
    """What is compared."""

    other: str = described("", "the other checkout")
    figure: str = described(
        "rounds", "which figure of the JSON; of a list the smallest counts"
    )
    repeats: int = described(3, "runs of each checkout", at_least=1)


def figure_of(
    figure: str, module: str, arguments: list[str], folder: pathlib.Path
) -> float:
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
    found = json.loads(done.stdout.splitlines()[-1])[figure]
    return min(found) if isinstance(found, list) else found


def main(options: Options, arguments: list[str]) -> None:
    """Compares, and prints every run."""
    if not arguments or not options.other:
        raise ValueError("needs --other, and after -- the module of a benchmark")
    module, *rest = arguments
    folders = {"this": turns.ROOT, "other": pathlib.Path(options.other).resolve()}
    best = dict.fromkeys(folders, float("inf"))
    for _ in range(options.repeats):
        for name, folder in folders.items():
            found = figure_of(options.figure, module, rest, folder)
            best[name] = min(best[name], found)
            print(f"{name:6} {options.figure} {found:.4f}", flush=True)
    ratio = best["this"] / best["other"]
    print(
        f"this {best['this']:.4f}, other {best['other']:.4f}: "
        f"this / other = {ratio:.3f} ({' '.join(arguments)})"
    )


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options, arguments="-- MODULE [flags]")
