"""Compares small rounds, where overhead decides: this library, stock TFF, pfl-research.

    python -m benchmarks.small_rounds --pfl_python=…/bin/python

Three tasks: the next-word LSTM with 40,000 parameters (100 users × 8 sentences),
logistic regression 784 → 10 and a convolutional net for 62 classes (100 users × 20
pictures each). Ours is the whole DP-FTRL process on the local runtime, one by one and
grouped; stock TFF runs with each of its two loops, and the better one counts. Systems
take turns, each time in a fresh process; a round's best and median and its processor
seconds count without the first round of a process, which compiles.
"""

import dataclasses
import statistics
import sys
from typing import Any

from benchmarks import programs, turns
from tff_agg.fields import described

EXAMPLES = {"lstm": 8, "logistic": 20, "cnn": 20}
_NAMES = {
    "one_by_one": "this library, one by one",
    "grouped": "this library, grouped",
    "DATASET_ITERATOR": "stock TFF, iterator loop",
    "DATASET_REDUCE": "stock TFF, reduce loop",
    "pfl": "pfl-research",
}
_TFF = ("DATASET_ITERATOR", "DATASET_REDUCE")

Times = dict[str, dict[str, list[float]]]


@dataclasses.dataclass(frozen=True)
class Options:
    """What is run."""

    tasks: tuple[str, ...] = described(tuple(EXAMPLES), "what to run", EXAMPLES)
    users: int = described(100, "users per round", at_least=1)
    rounds: int = described(6, "rounds per turn", at_least=2)
    repeats: int = described(1, "turns", at_least=1)
    pfl_python: str = described("", "Python with pfl-research; none: skip")
    out: str = described("results/small_rounds", "folder for JSON")


def main(options: Options) -> None:
    """Lets systems take turns, prints and writes."""
    pfl = turns.peer(options.pfl_python, "pfl-research")
    found: dict[str, Times] = {task: {} for task in options.tasks}
    for turn in range(options.repeats):
        for task, times in found.items():
            for name, kinds in _turn(options, pfl, task).items():
                into = times.setdefault(name, {"rounds": [], "cpu": []})
                for kind, seconds in kinds.items():
                    into[kind].extend(seconds[1:])
                print(
                    f"turn {turn + 1}  {task:9}{_NAMES[name]:26}"
                    + ", ".join(f"{s:.3f}" for s in kinds["rounds"][1:]),
                    flush=True,
                )
    result = {
        **turns.circumstances(),
        "users": options.users,
        "seconds": found,
        "ratios": {task: ratios(times) for task, times in found.items()},
    }
    programs.write(options.out, "small_rounds", result)
    _report(result)


def _turn(options: Options, pfl: str | None, task: str) -> Times:
    """Runs each system once."""
    sizes = {"task": task, "users": options.users, "examples": EXAMPLES[task]}
    words = [f"--{name}={size}" for name, size in sizes.items()]
    words.append(f"--rounds={options.rounds}")
    ours = [sys.executable, "-m", "benchmarks.small_local", *words]
    times: Times = turns.run(ours, onednn=True)
    times |= turns.run([sys.executable, "-m", "benchmarks.peers.tff", *words])
    if pfl is not None:
        times |= turns.run([pfl, "-m", "benchmarks.peers.pfl", *words])
    return times


def ratios(times: Times) -> dict[str, float]:
    """Says how many times faster the library is, by the best round of each.

    Where its rule does not group, one by one is what a user gets, and what counts.
    """
    best = {name: min(kinds["rounds"]) for name, kinds in times.items()}
    ours = best.get("grouped", best["one_by_one"])
    compared = {"tff": min(best[name] for name in _TFF if name in best)}
    if "grouped" in best:
        compared["one by one"] = best["one_by_one"]
    if "pfl" in best:
        compared["pfl"] = best["pfl"]
    return {name: seconds / ours for name, seconds in compared.items()}


def _report(result: dict[str, Any]) -> None:
    """Prints a table for each task and the ratios, those of the LSTM last."""
    order = sorted(result["seconds"], key=lambda task: task == "lstm")
    for task in order:
        times = result["seconds"][task]
        programs.tell(
            " | best s | median s | CPU s",
            "{name} | {best:.3f} | {median:.3f} | {cpu:.3f}",
            [
                {
                    "name": _NAMES[name],
                    "best": min(kinds["rounds"]),
                    "median": statistics.median(kinds["rounds"]),
                    "cpu": min(kinds["cpu"]),
                }
                for name, kinds in times.items()
            ],
            f"{task}: {result['users']} users × {EXAMPLES[task]} examples",
        )
        how = "grouped" if "grouped" in times else "one by one, as the rule has it,"
        of_task = "" if task == "lstm" else f"{task}: "
        for name in ("one by one", "tff", "pfl"):
            if name in result["ratios"][task]:
                ratio = result["ratios"][task][name]
                print(f"{of_task}{how} vs {name}: {ratio:.1f}x")


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)
