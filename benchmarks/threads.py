"""Times a round under different lanes and thread pools.

    python -m benchmarks.threads --repeats=2 --rounds=4

The same round as in `benchmarks.round_time`, on the local runtime. The combinations
run one after the other, each in a fresh process, and the best round of each counts.
`lanes=1 intra=2` is what TensorFlow does by itself: one client after the other, all
cores inside each operation.
"""

import dataclasses
import operator
import statistics
import sys
from typing import Any

from benchmarks import programs, turns
from tff_agg.fields import described

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


@dataclasses.dataclass(frozen=True)
class Options:
    """The sizes of a round, and how often it is timed."""

    users: int = described(16, "clients in a round", at_least=1)
    sentences: int = described(64, "sentences each", at_least=1)
    rounds: int = described(3, "rounds in one turn", at_least=2)
    repeats: int = described(1, "turns", at_least=1)
    out: str = described("results/threads", "folder for JSON")


def run(options: Options, lanes: int, intra: int, inter: int) -> list[float]:
    """Returns the seconds of the rounds after the first, which compiles."""
    command = [sys.executable, "-m", "benchmarks.round_local"]
    command += [f"--lanes={lanes}", f"--intra_op={intra}", f"--inter_op={inter}"]
    command += [f"--users={options.users}", f"--sentences={options.sentences}"]
    command += [f"--rounds={options.rounds}"]
    return turns.run(command, onednn=True)["rounds"][1:]


def main(options: Options) -> None:
    """Times all combinations, prints and writes."""
    found: dict[tuple[int, int, int], list[float]] = {c: [] for c in COMBINATIONS}
    for _ in range(options.repeats):
        for combination, seconds in found.items():
            seconds.extend(run(options, *combination))
    rows: list[dict[str, Any]] = [
        {"lanes": lanes, "intra_op": intra, "inter_op": inter,
         "best_seconds": min(seconds), "median_seconds": statistics.median(seconds)}
        for (lanes, intra, inter), seconds in found.items()
    ]  # fmt: skip
    programs.tell(
        "lanes | intra | inter | best s | median s",
        "{lanes} | {intra_op} | {inter_op} | {best_seconds:.2f} | {median_seconds:.2f}",
        sorted(rows, key=operator.itemgetter("best_seconds")),
    )
    programs.write(options.out, "threads", {**turns.circumstances(), "rows": rows})


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)
