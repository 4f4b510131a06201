"""Compares the time of a round: this library, stock TFF and pfl-research.

    python -m benchmarks.round_time --pfl_python=…/bin/python

All train the same cohort (16 users × 64 sentences, the 4,050,748-parameter LSTM) and
add noise. Ours is the whole thing: the DP-FTRL process with clipping, tree noise,
server momentum and UTA over 3 checkpoints, on the local runtime. The systems run in
turn, each time in a fresh process, and the best round of each counts: on a machine that
others use too, that is the figure that can be compared. One turn takes about three
minutes on two cores; `--repeats` adds more. Stock TFF runs with each of its
two loops over a client's data, and the better one counts. The floor is the bare matrix
products of the round. The peers are in `benchmarks/peers`.
"""

import dataclasses
import pathlib
import statistics
import sys
from typing import Any

from benchmarks import programs, turns
from tff_agg.fields import described

_NAMES = {
    "local": "this library",
    "tff": "stock TFF",
    "tff_onednn": "TFF, oneDNN on",
    "pfl": "pfl-research",
}


@dataclasses.dataclass(frozen=True)
class Options:
    """The sizes of a round, and who computes it."""

    users: int = described(16, "clients in a round", at_least=1)
    sentences: int = described(64, "sentences each", at_least=1)
    rounds: int = described(4, "rounds in one turn", at_least=2)
    repeats: int = described(1, "turns", at_least=1)
    pfl_python: str = described("", "Python with pfl-research; none: skip")
    tff_onednn: bool = described(False, "also stock TFF with oneDNN on")
    out: str = described("results/round_time", "folder for JSON and picture")


def main(options: Options) -> None:
    """Lets systems take turns, prints, writes and draws."""
    commands = _commands(options)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in commands}
    for turn in range(options.repeats):
        for name, command in commands.items():
            for kind, seconds in _run(name, command).items():
                found[name].setdefault(kind, []).extend(seconds)
            last = found[name]["rounds"][-options.rounds :]
            shown = ", ".join(f"{s:.2f}" for s in last)
            print(f"turn {turn + 1}  {name:6} {shown} s", flush=True)
    result = _result(options, found)
    out = programs.write(options.out, "round_time", result)
    _picture(result, out / "round_time.png")
    _report(result)


def _commands(options: Options) -> dict[str, list[str]]:
    """What to run for each system."""
    given = [f"--users={options.users}", f"--rounds={options.rounds}"]
    ours = [*given, f"--sentences={options.sentences}"]
    theirs = [*given, f"--examples={options.sentences}", "--task=large_lstm"]
    commands = {
        "local": [sys.executable, "-m", "benchmarks.round_local", *ours],
        "tff": [sys.executable, "-m", "benchmarks.peers.tff", *theirs],
    }
    if options.tff_onednn:
        commands["tff_onednn"] = commands["tff"]
    if pfl := turns.peer(options.pfl_python, "pfl-research"):
        commands["pfl"] = [pfl, "-m", "benchmarks.peers.pfl", *theirs]
    commands["floor"] = [sys.executable, "-m", "benchmarks.round_floor", *ours]
    return commands


def _run(name: str, command: list[str]) -> dict[str, list[float]]:
    """Runs one system once and returns its seconds by kind."""
    # See docs/performance.md.
    onednn = name in ("local", "floor", "tff_onednn")
    parsed = turns.run(command, onednn=onednn)
    if "rounds" not in parsed:
        # A peer, by variant: the better one counts.
        parsed = min(parsed.values(), key=lambda kinds: min(kinds["rounds"]))
    return {k: v if isinstance(v, list) else [v] for k, v in parsed.items()}


def _result(
    options: Options, found: dict[str, dict[str, list[float]]]
) -> dict[str, Any]:
    """Puts times, ratios and the circumstances together."""
    best = {name: min(kinds["rounds"]) for name, kinds in found.items()}
    peers = [name for name in ("tff_onednn", "tff", "pfl") if name in best]
    server = min(found["local"]["server"])
    return {
        **turns.circumstances(),
        "users": options.users,
        "sentences": options.sentences,
        "seconds": found,
        "best": best,
        "ratios": {name: best[name] / best["local"] for name in peers},
        "floor_share": best["floor"] / best["local"],
        "server_share": server / best["local"],
        "peak_memory_gb": max(found["local"]["peak_memory_gb"]),
    }


def _report(result: dict[str, Any]) -> None:
    """Prints the table and, last, the ratios."""
    times = {name: kinds["rounds"] for name, kinds in result["seconds"].items()}
    programs.tell(
        " | best s | median s",
        "{name} | {best:.2f} | {median:.2f}",
        [
            {
                "name": _NAMES.get(name, name),
                "best": best,
                "median": statistics.median_high(times[name]),
            }
            for name, best in result["best"].items()
        ],
    )
    print(
        f"\nserver share: {result['server_share']:.3f}"
        f"\npeak memory: {result['peak_memory_gb']:.2f} GB"
    )
    for name, ratio in result["ratios"].items():
        print(f"local vs {name}: {ratio:.1f}x")
    print(f"floor share: {result['floor_share']:.2f}")


def _picture(result: dict[str, Any], path: pathlib.Path) -> None:
    """Draws the best round of each system as a bar, every round as a dot."""
    from tff_agg.experiment.study import figures

    names = [
        name for name in ("tff", "tff_onednn", "pfl", "local") if name in result["best"]
    ]
    figure, (axes,) = figures.new_figure(1, 7, 0.9 + 0.7 * len(names))
    for row, name in enumerate(names):
        best = result["best"][name]
        color = "tab:green" if name == "local" else "tab:gray"
        axes.barh(row, best, color=color, height=0.6, alpha=0.85)
        times = result["seconds"][name]["rounds"]
        axes.plot(times, [row] * len(times), "k.", markersize=4, alpha=0.5)
        label = f"{best:.2f} s"
        if name in result["ratios"]:
            label += f"  ({result['ratios'][name]:.1f}×)"
        axes.annotate(
            label, (best, row), (4, 12), textcoords="offset points", va="bottom"
        )
    floor = result["best"]["floor"]
    axes.axvline(floor, color="tab:red", linestyle="--", linewidth=1)
    axes.annotate(
        f"products alone {floor:.2f} s",
        (floor, -0.42),
        (4, 0),
        textcoords="offset points",
        color="tab:red",
        fontsize=8,
        va="top",
    )
    axes.set_yticks(range(len(names)), [_NAMES[name] for name in names])
    axes.set_ylim(-0.75, len(names) - 0.4)
    shown = [max(result["seconds"][n]["rounds"][1:] or [0]) for n in names]
    axes.set_xlim(0, 1.15 * max([*shown, *result["best"].values()]))
    axes.set_xlabel(
        f"seconds per round: {result['users']} users × {result['sentences']} "
        f"sentences, {result['machine']['cores']} cores"
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figures.save(figure, path)


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)
