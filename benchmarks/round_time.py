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

import json
import pathlib
import sys
from typing import Any

from absl import app, flags

from benchmarks import turns

_USERS = flags.DEFINE_integer("users", 16, "Clients in a round.", lower_bound=1)
_SENTENCES = flags.DEFINE_integer("sentences", 64, "Sentences each.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer("rounds", 4, "Rounds in one turn.", lower_bound=2)
_REPEATS = flags.DEFINE_integer("repeats", 1, "Turns.", lower_bound=1)
_PFL = flags.DEFINE_string("pfl_python", None, "Python with pfl-research; none: skip.")
_FAIR = flags.DEFINE_bool("tff_onednn", False, "Also stock TFF with oneDNN on.")
_OUT = flags.DEFINE_string("out", "results/round_time", "Folder for JSON and picture.")

_NAMES = {
    "local": "this library",
    "tff": "stock TFF",
    "tff_onednn": "TFF, oneDNN on",
    "pfl": "pfl-research",
}


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    commands = _commands()
    if "pfl" not in commands:
        print("skipped pfl-research: --pfl_python is not given", flush=True)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in commands}
    for turn in range(_REPEATS.value):
        for name, command in commands.items():
            for kind, seconds in _run(name, command).items():
                found[name].setdefault(kind, []).extend(seconds)
            shown = ", ".join(
                f"{s:.2f}" for s in found[name]["rounds"][-_ROUNDS.value :]
            )
            print(f"turn {turn + 1}  {name:6} {shown} s", flush=True)
    result = _result(found)
    out = pathlib.Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    (out / "round_time.json").write_text(json.dumps(result, indent=2) + "\n")
    _picture(result, out / "round_time.png")
    _report(result)


def _commands() -> dict[str, list[str]]:
    """What to run for each system."""
    given = [f"--users={_USERS.value}", f"--rounds={_ROUNDS.value}"]
    ours = [*given, f"--sentences={_SENTENCES.value}"]
    theirs = [*given, f"--examples={_SENTENCES.value}", "--task=large_lstm"]
    commands = {
        "local": [sys.executable, "-m", "benchmarks.round_local", *ours],
        "tff": [sys.executable, "-m", "benchmarks.peers.tff", *theirs],
    }
    if _FAIR.value:
        commands["tff_onednn"] = commands["tff"]
    if _PFL.value:
        python = pathlib.Path(_PFL.value).absolute()
        if not python.is_file():
            raise app.UsageError(f"--pfl_python={_PFL.value} does not exist")
        commands["pfl"] = [str(python), "-m", "benchmarks.peers.pfl", *theirs]
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


def _result(found: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """Puts times, ratios and the circumstances together."""
    best = {name: min(kinds["rounds"]) for name, kinds in found.items()}
    peers = [name for name in ("tff_onednn", "tff", "pfl") if name in best]
    server = min(found["local"]["server"])
    return {
        **turns.circumstances(),
        "users": _USERS.value,
        "sentences": _SENTENCES.value,
        "seconds": found,
        "best": best,
        "ratios": {name: best[name] / best["local"] for name in peers},
        "floor_share": best["floor"] / best["local"],
        "server_share": server / best["local"],
        "peak_memory_gb": max(found["local"]["peak_memory_gb"]),
    }


def _report(result: dict[str, Any]) -> None:
    """Prints the table and, last, the ratios."""
    print(f"\n{'':14}{'best':>8}{'median':>9}")
    for name, best in result["best"].items():
        times = sorted(result["seconds"][name]["rounds"])
        median = times[len(times) // 2]
        print(f"{_NAMES.get(name, name):14}{best:7.2f}s{median:8.2f}s")
    print(
        f"\nserver share: {result['server_share']:.3f}"
        f"\npeak memory: {result['peak_memory_gb']:.2f} GB"
    )
    for name, ratio in result["ratios"].items():
        print(f"local vs {name}: {ratio:.1f}x")
    print(f"floor share: {result['floor_share']:.2f}")


def _picture(result: dict[str, Any], path: pathlib.Path) -> None:
    """Draws the best round of each system as a bar, every round as a dot."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = [
        name for name in ("tff", "tff_onednn", "pfl", "local") if name in result["best"]
    ]
    figure, axes = plt.subplots(figsize=(7, 0.9 + 0.7 * len(names)))
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
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    app.run(main)
