"""Compares small rounds, where overhead decides: this library, stock TFF, pfl-research.

    python -m benchmarks.small_rounds --pfl_python=…/bin/python

Three tasks: the next-word LSTM with 40,000 parameters (100 users × 8 sentences),
logistic regression 784 → 10 and a convolutional net for 62 classes (100 users × 20
pictures each). Ours is the whole DP-FTRL process on the local runtime, one by one and
grouped; stock TFF runs with each of its two loops, and the better one counts. Systems
take turns, each time in a fresh process; a round's best and median and its processor
seconds count without the first round of a process, which compiles.
"""

import json
import pathlib
import statistics
import sys
from typing import Any

from absl import app

from benchmarks import own_flags, turns

# Flags of its own: tests import this module beside others that have some.
_FLAGS = own_flags.OwnFlags()
_TASKS = _FLAGS.list("tasks", ["lstm", "logistic", "cnn"], "What to run.")
_USERS = _FLAGS.integer("users", 100, "Users per round.", 1)
_ROUNDS = _FLAGS.integer("rounds", 6, "Rounds per turn.", 2)
_REPEATS = _FLAGS.integer("repeats", 1, "Turns.", 1)
_PFL = _FLAGS.string("pfl_python", None, "Python with pfl-research; none: skip.")
_OUT = _FLAGS.string("out", "results/small_rounds", "Folder for JSON.")

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


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    if unknown := set(_TASKS.value) - EXAMPLES.keys():
        raise app.UsageError(f"--tasks: no {unknown}; there are {list(EXAMPLES)}")
    if _PFL.value and not pathlib.Path(_PFL.value).is_file():
        raise app.UsageError(f"--pfl_python={_PFL.value} does not exist")
    if not _PFL.value:
        print("skipped pfl-research: --pfl_python is not given", flush=True)
    found: dict[str, Times] = {task: {} for task in _TASKS.value}
    for turn in range(_REPEATS.value):
        for task, times in found.items():
            for name, kinds in _turn(task).items():
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
        "users": _USERS.value,
        "seconds": found,
        "ratios": {task: ratios(times) for task, times in found.items()},
    }
    out = pathlib.Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    (out / "small_rounds.json").write_text(json.dumps(result, indent=2) + "\n")
    _report(result)


def _turn(task: str) -> Times:
    """Runs each system once."""
    words = [
        f"--task={task}",
        f"--users={_USERS.value}",
        f"--examples={EXAMPLES[task]}",
        f"--rounds={_ROUNDS.value}",
    ]
    times: Times = {}
    ours = [sys.executable, "-m", "benchmarks.small_local", *words]
    times |= turns.run(ours, onednn=True)
    times |= turns.run([sys.executable, "-m", "benchmarks.peers.tff", *words])
    if _PFL.value:
        python = str(pathlib.Path(_PFL.value).absolute())
        times |= turns.run([python, "-m", "benchmarks.peers.pfl", *words])
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
        print(f"\n{task}: {result['users']} users × {EXAMPLES[task]} examples")
        print(f"{'':26}{'best s':>9}{'median s':>10}{'CPU s':>8}")
        for name, kinds in times.items():
            print(
                f"{_NAMES[name]:26}{min(kinds['rounds']):9.3f}"
                f"{statistics.median(kinds['rounds']):10.3f}{min(kinds['cpu']):8.3f}"
            )
        how = "grouped" if "grouped" in times else "one by one, as the rule has it,"
        of_task = "" if task == "lstm" else f"{task}: "
        for name in ("one by one", "tff", "pfl"):
            if name in result["ratios"][task]:
                ratio = result["ratios"][task][name]
                print(f"{of_task}{how} vs {name}: {ratio:.1f}x")


if __name__ == "__main__":
    _FLAGS.run(main)
