"""What a search has found: table, files, picture, and what it means for privacy."""

import csv
import io
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from tff_agg import blobs, privacy, tuning


def privacy_of(
    folder: pathlib.Path, runs: int, compared: int
) -> tuning.TuningPrivacy | None:
    """Says what the search means for the guarantee, if the run's report has a ρ."""
    path = folder / "privacy_report.json"
    report = json.loads(path.read_text()) if path.exists() else {}
    rho, delta = _find(report, "rho"), _find(report, "delta")
    if rho is None or delta is None:
        return None
    return tuning.tuning_privacy(rho, delta, runs, compared, epsilon_of=_epsilon)


def _epsilon(rho: float, delta: float) -> float:
    """Converts as the plan does: all runs together are one Gaussian mechanism."""
    return privacy.gaussian_epsilon(1 / math.sqrt(2 * rho), delta) if rho else 0.0


def _find(report: Any, key: str) -> Any:
    """Finds a key anywhere in nested dicts, the outermost first."""
    if not isinstance(report, dict):
        return None
    if report.get(key) is not None and not isinstance(report[key], dict):
        return report[key]
    found = (_find(value, key) for value in report.values())
    return next((value for value in found if value is not None), None)


def write(
    out: str,
    choices: Sequence[tuning.Choice],
    cost: tuning.TuningPrivacy | None,
) -> None:
    """Writes trials.csv, choice.json, tuning.png and, where known, the privacy."""
    folder = pathlib.Path(out)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "parameter", "start", "validation", "chosen", "test"])
    for choice in choices:
        for (method, parameter, start), validation in choice.trials:
            chosen = (method, parameter, start) == choice.best
            shown = "" if parameter is None else parameter
            test = choice.test if chosen else ""
            writer.writerow([method, shown, start, validation, int(chosen), test])
    blobs.write_file(folder / "trials.csv", text.getvalue().encode())
    summary: dict[str, Any] = {
        "choices": [
            {
                **choice.best._asdict(),
                "validation": choice.validation,
                "test": choice.test,
                "trials": len(choice.trials),
                "failed": len(choice.failed),
            }
            for choice in choices
        ]
    }
    if cost is not None:
        summary |= cost.fields()
        note = f"# What the search means for the guarantee\n\n{cost.paragraph}\n"
        blobs.write_file(folder / "privacy_of_tuning.md", note.encode())
    content = json.dumps(_json_safe(summary), indent=2) + "\n"
    blobs.write_file(folder / "choice.json", content.encode())
    draw(choices, folder / "tuning.png")


def _json_safe(value: Any) -> Any:
    """Writes infinities as text."""
    if isinstance(value, dict):
        return {key: _json_safe(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_json_safe(inner) for inner in value]
    return str(value) if value == float("inf") else value


def table(choices: Sequence[tuning.Choice]) -> str:
    """Formats the choices for the terminal."""
    from stackoverflow import terminal

    rows = [
        [
            choice.best.method,
            "" if choice.best.parameter is None else f"{choice.best.parameter:g}",
            choice.best.start,
            terminal.percent(choice.validation, 3),
            terminal.percent(choice.test, 3),
            len(choice.trials),
        ]
        for choice in choices
    ]
    header = ["method", "parameter", "start", "validation %", "test %", "tried"]
    return terminal.table(header, rows)


def draw(choices: Sequence[tuning.Choice], path: pathlib.Path) -> None:
    """Draws validation accuracy over the parameter, the chosen one marked."""
    from stackoverflow import figures

    tuned = [c for c in choices if len(c.trials) > 1]
    fixed = [c for c in choices if len(c.trials) == 1]
    figure, axes = figures.new_figure(max(len(tuned), 1), width=3.4, height=3.6)
    for axis, choice in zip(axes, tuned, strict=False):
        for start in dict.fromkeys(t.candidate.start for t in choice.trials):
            trials = [t for t in choice.trials if t.candidate.start == start]
            names = [f"{t.candidate.parameter:g}" for t in trials]
            values = [100 * t.validation for t in trials]
            axis.plot(names, values, "o-", ms=3, label=f"τ = {start}")
            if choice.best.start == start:
                name = f"{choice.best.parameter:g}"
                best = 100 * choice.validation
                axis.plot([name], [best], "*", ms=14, mec="black", mew=0.6, mfc="gold")
        axis.set_title(choice.best.method)
        axis.tick_params(axis="x", rotation=90, labelsize=7)
        axis.grid(alpha=0.3)
        if choice.best.start or len({t.candidate.start for t in choice.trials}) > 1:
            axis.legend(fontsize=7)
    for axis in axes:
        for colour, choice in zip(("0.4", "C3", "C4"), fixed, strict=False):
            level = 100 * choice.validation
            label = str(choice.best)
            axis.axhline(level, color=colour, ls="--", lw=1, label=label)
    if fixed:
        axes[0].legend(fontsize=7)
    axes[0].set_ylabel("validation accuracy (%)")
    figures.save(figure, path)
