"""What a search has found: table, files and picture."""

import csv
import io
import json
import pathlib
from collections.abc import Sequence

from tff_agg import files, privacy
from tff_agg.aliases import JsonObject
from tff_agg.recycling import tuning
from tff_agg.recycling.metrics import Metric

# Splits as tables call them.
_IN_WORDS = {"heldout": "validation", "test": "test"}


def write(
    out: str,
    choices: Sequence[tuning.Choice],
    cost: privacy.SearchCost | None,
    metric: Metric,
    journal: tuning.Journal,
) -> None:
    """Writes trials.csv, choice.json, tuning.png and, where known, the privacy.

    Besides the metric that was tuned, `trials.csv` and `choice.json` have all others
    that the journal knows.
    """
    folder = pathlib.Path(out)
    text = io.StringIO()
    scored = {split: journal.metrics(split) for split in ("heldout", "test")}
    others = [
        (split, name)
        for split, found in scored.items()
        for name in dict.fromkeys(n for values in found.values() for n in values)
        if name != metric.name
    ]
    writer = csv.writer(text, lineterminator="\n")
    header = ["method", "parameter", "start", "validation", "chosen", "test"]
    writer.writerow(
        [*header, *(f"{_IN_WORDS[split]}_{name}" for split, name in others)]
    )
    for choice in choices:
        for candidate, validation in choice.trials:
            chosen = candidate == choice.best
            shown = "" if candidate.parameter is None else candidate.parameter
            test = choice.test if chosen and choice.test is not None else ""
            row = [candidate.method, shown, candidate.start, validation, int(chosen)]
            more = [scored[s].get(candidate, {}).get(name, "") for s, name in others]
            writer.writerow([*row, test, *more])
    files.write_text(folder / "trials.csv", text.getvalue(), mode=0o600)
    summary: JsonObject = {
        "choices": [
            {
                **choice.best._asdict(),
                "validation": choice.validation,
                "test": choice.test,
                "metrics": {
                    _IN_WORDS[split]: found.get(choice.best, {})
                    for split, found in scored.items()
                },
                "looks_at_test": choice.looks,
                "trials": len(choice.trials),
                "failed": len(choice.failed),
            }
            for choice in choices
        ]
    }
    if cost is not None:
        summary["tuning"] = cost.to_json()
        note = f"# What the search means for the guarantee\n\n{cost.paragraph}\n"
        files.write_text(folder / "privacy_of_tuning.md", note, mode=0o600)
    content = json.dumps(summary, indent=2) + "\n"
    files.write_text(folder / "choice.json", content, mode=0o600)
    draw(choices, metric, folder / "tuning.png")


def table(choices: Sequence[tuning.Choice], metric: Metric) -> str:
    """Formats the choices for the terminal."""
    from tff_agg.experiment.study import show

    rows = [
        [
            choice.best.method,
            "" if choice.best.parameter is None else f"{choice.best.parameter:g}",
            choice.best.start,
            metric.show(choice.validation, 3),
            "" if choice.test is None else metric.show(choice.test, 3),
            len(choice.trials),
        ]
        for choice in choices
    ]
    label = metric.label
    header = [
        *("method", "parameter", "start"),
        *(f"validation {label}", f"test {label}", "tried"),
    ]
    return show.render(show.Table(header, rows))


def metrics_table(out: pathlib.Path, metrics: Sequence[Metric]) -> str:
    """Formats all metrics of the choices on test data, as `choice.json` has them."""
    from tff_agg.experiment.study import show

    choices = json.loads((out / "choice.json").read_text("utf-8"))["choices"]
    rows = []
    for choice in choices:
        found = choice["metrics"]["test"]
        shown = [m.show(found[m.name], 3) if m.name in found else "" for m in metrics]
        rows.append([choice["method"], *shown])
    header = ["on test data", *(m.label for m in metrics)]
    return show.render(show.Table(header, rows))


def draw(choices: Sequence[tuning.Choice], metric: Metric, path: pathlib.Path) -> None:
    """Draws the validation value over the parameter, the chosen one marked."""
    from tff_agg.experiment.study import figures

    tuned = [c for c in choices if len(c.trials) > 1]
    fixed = [c for c in choices if len(c.trials) == 1]
    figure, axes = figures.new_figure(max(len(tuned), 1), width=3.4, height=3.6)
    for axis, choice in zip(axes, tuned, strict=False):
        for start in dict.fromkeys(t.candidate.start for t in choice.trials):
            trials = [t for t in choice.trials if t.candidate.start == start]
            names = [f"{t.candidate.parameter:g}" for t in trials]
            values = [metric.scale * t.validation for t in trials]
            axis.plot(names, values, "o-", ms=3, label=f"τ = {start}")
            if choice.best.start == start:
                name = f"{choice.best.parameter:g}"
                best = metric.scale * choice.validation
                axis.plot([name], [best], "*", ms=14, mec="black", mew=0.6, mfc="gold")
        axis.set_title(choice.best.method)
        axis.tick_params(axis="x", rotation=90, labelsize=7)
        axis.set_xlabel(parameter_name(choice.best.method))
        axis.grid(alpha=0.3)
        if choice.best.start or len({t.candidate.start for t in choice.trials}) > 1:
            axis.legend(fontsize=7)
    for axis in axes:
        for colour, choice in zip(("0.4", "C3", "C4"), fixed, strict=False):
            level = metric.scale * choice.validation
            label = str(choice.best)
            axis.axhline(level, color=colour, ls="--", lw=1, label=label)
    if fixed:
        axes[0].legend(fontsize=7)
    axes[0].set_ylabel(f"validation {metric.label}")
    figures.save(figure, path)


def parameter_name(method: str) -> str:
    """Returns what the parameter of a method is called."""
    if method.startswith("EMA"):
        return "β"
    return "γ" if method == "PDA" else "k"
