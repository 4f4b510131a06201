"""Writes one HTML page about a run that a colleague can open.

Settings, the privacy statement with what it covers and what not, curves, a table of
ways to aggregate the checkpoints, and how uncertain predictions and scores are. It
shows released models and scores on evaluation data; what clients measured in training,
which has no noise, is left out.
"""

import contextlib
import dataclasses
import functools
import pathlib
from typing import Any

from tff_agg import files
from tff_agg.experiment import html_page, progress, runs
from tff_agg.experiment.commands import Command, evaluate, uncertainty
from tff_agg.experiment.commands.of_runs import OfRun
from tff_agg.experiment.run.recording import WEIGHTS
from tff_agg.experiment.task import SAMPLE_SEEDS, Task
from tff_agg.fields import described
from tff_agg.recycling import methods
from tff_agg.recycling.methods import Method, Progress, parse_methods

_WEIGHTS_IN_WORDS = {"iterate": "θ", "aggregate": "θ^AGG, as broadcast"}
_SIZES = (2, 3, 5, 10, 20, 50, 100)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig(OfRun):
    """What to report."""

    out: str | None = described(
        None, "the HTML file; report.html in the run's folder if not given"
    )
    methods: tuple[Method, ...] = described(
        parse_methods("uta:3,10,50,200 ema:0.9,0.95,0.99 ema:0.9999"),
        "the rows of the table of inference methods",
    )
    split: str = described("heldout", "the data", SAMPLE_SEEDS)
    examples: int = described(2000, "the size of the sample", at_least=1)


def write(
    task_class: type[Task],
    config: ReportConfig,
    on_progress: Progress | None = None,
) -> pathlib.Path:
    """Writes the page, as a whole or not at all, and returns where it is."""
    run = runs.Run.open(task_class, config.run, config.data)
    done, report = run.opened.rounds_done, run.opened.report()
    page = html_page.Page(f"{task_class.package}: {run.folder.resolve().name}")
    page.paragraph(_summary(run, done, report), "lead")
    _privacy(page, report)
    _curves(page, run)
    _scores(page, run)
    _aggregations(page, task_class, config, len(run.rounds()), on_progress)
    _uncertainty(page, task_class, config, on_progress)
    _settings(page, run)
    out = pathlib.Path(config.out or run.folder / "report.html")
    files.write_text(out, page.text())
    return out


def _summary(run: runs.Run, done: int, report: dict[str, Any]) -> str:
    config = run.config
    whole = f"{done:,} of {config.rounds:,} rounds with {config.cohort_words}"
    guarantee = report.get("guarantee", {})
    if guarantee.get("epsilon") is None:
        reason = guarantee.get("statement", "the run has no privacy report")
        return f"{whole} each. Privacy: {reason}."
    return (
        f"{whole} each. {config.privacy_level} differential privacy of the whole run: "
        "ε = "
        f"{guarantee['epsilon']:.4g} at δ = {guarantee['delta']:g}."
    )


def _privacy(page: html_page.Page, report: dict[str, Any]) -> None:
    page.heading("Privacy")
    if not report:
        page.paragraph("The run has no privacy report.")
        return
    page.paragraph(report["guarantee"]["statement"])
    rows = [["setting", report["setting"]], ["unit", report["unit"]]]
    rows += [["adjacency", report["adjacency"]], ["released", report["released"]]]
    rows += [["accounting", report["accounting"]["method"]]]
    rows += [["evaluation data", report["evaluation"]["statement"]]]
    page.table(["", ""], rows)
    for key, title in (
        ("enforced", "Enforced by the code:"),
        ("assumed", "Assumed:"),
        ("not_covered", "Not covered:"),
    ):
        if report.get(key):
            page.paragraph(title)
            page.bullets(report[key])


def _curves(page: html_page.Page, run: runs.Run) -> None:
    from matplotlib import ticker

    from tff_agg.experiment.study import figures

    page.heading("Curves")
    history = run.opened.history
    validated = {} if history is None else history.validated
    if not validated:
        page.paragraph("The run has not been validated yet.")
        return
    shown = run.task.metrics[:3]
    figure, axes = figures.new_figure(len(shown), width=4.2, share_y=False)
    for axis, metric in zip(axes, shown, strict=True):
        for weights in WEIGHTS:
            values = [
                metric.scale * scores[weights]["all"][metric.name]
                for scores in validated.values()
            ]
            label = _WEIGHTS_IN_WORDS[weights]
            axis.plot([*validated], values, "o-", markersize=3, label=label)
        axis.set(xlabel="round", ylabel=f"validation {metric.label}")
        axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    page.picture(figure, "validation scores over rounds")


def _scores(page: html_page.Page, run: runs.Run) -> None:
    history = run.opened.history
    if history is None or history.tested is None:
        return
    page.heading("Test scores of the last round")
    metrics = run.task.metrics
    page.table(
        ["weights", "test on", *(metric.label for metric in metrics)],
        [
            [_WEIGHTS_IN_WORDS[weights], group]
            + [metric.show(scores[metric.name]) for metric in metrics]
            for weights, by_group in history.tested.items()
            for group, scores in by_group.items()
        ],
    )


def _aggregations(
    page: html_page.Page,
    task_class: type[Task],
    config: ReportConfig,
    checkpoints: int,
    on_progress: Progress | None,
) -> None:
    page.heading("Aggregated checkpoints")
    usable = methods.without_windows_beyond(config.methods, checkpoints)
    made = evaluate.EvaluateConfig(
        runs=(config.run,),
        out="",
        grid=evaluate.grid_of(usable),
        split=config.split,
        examples=config.examples,
        data=config.data,
    )
    found = evaluate.evaluate_runs(task_class, made, on_progress)
    metrics = task_class.metrics
    rows = []
    for row in evaluate.summarise(found, metrics):
        values = [row[metric.name] for metric in metrics]
        parameter = "" if row["parameter"] is None else f"{row['parameter']:g}"
        cells = [
            "" if value is None else metric.show(value[0])
            for metric, value in zip(metrics, values, strict=True)
        ]
        rows.append([row["method"], parameter, *cells])
    page.table(["method", "parameter", *(metric.label for metric in metrics)], rows)
    page.paragraph(
        f"On {config.examples:,} examples of the split '{config.split}', at the last "
        "round. Aggregating checkpoints is post-processing and costs no privacy. The "
        "best of many on one sample looks better than it is: choose on validation "
        "data, report on test data.",
        "small",
    )


def _uncertainty(
    page: html_page.Page,
    task_class: type[Task],
    config: ReportConfig,
    on_progress: Progress | None,
) -> None:
    page.heading("Uncertainty")
    made = uncertainty.UncertaintyConfig(
        runs=(config.run,),
        out="",
        sizes=_SIZES,
        split=config.split,
        examples=min(config.examples, 500),
        data=config.data,
    )
    try:
        found = uncertainty.compare(task_class, made, on_progress)
    except ValueError as error:
        page.paragraph(f"Not estimated: {error}.")
        return
    page.table(
        ["metric", "last checkpoint", "± standard deviation"],
        [
            [s.metric.label, s.metric.show(s.last), s.metric.show(s.deviation)]
            for s in found.spreads
        ],
    )
    widths = found.widths
    page.table(
        ["checkpoints", "mean width of the 95 % interval of a prediction"],
        [
            [n, f"{width:.5f}"]
            for n, width in zip(widths.sizes, widths.checkpoints[0], strict=True)
        ],
    )
    page.paragraph(f"On {made.examples} examples. {' '.join(found.notes)}", "small")


def _settings(page: html_page.Page, run: runs.Run) -> None:
    page.heading("Settings")
    config = run.config
    rows = []
    for field in dataclasses.fields(config):
        if field.metadata["role"] != "place":
            value = getattr(config, field.name)
            shown = "" if value is None else value
            changed = "" if value == field.default else "given"
            rows.append([field.name, shown, changed, field.metadata["help"]])
    page.table(["setting", "value", "", "meaning"], rows)
    page.paragraph(f"Fingerprint of the data: {run.task.fingerprint}", "small")
    if environment := run.opened.environment():
        text = ", ".join(f"{name} {value}" for name, value in environment.items())
        page.paragraph(f"Trained with {text}.", "small")


def report(task_class: type[Task], config: ReportConfig) -> int:
    """Writes the page and says where it is."""
    with contextlib.closing(progress.StageBar()) as bar:
        out = write(task_class, config, bar)
    print(f"The report is {out}")
    return 0


def command(task: type[Task]) -> Command:
    """Returns the command of a task."""
    return Command(functools.partial(report, task), (ReportConfig,))
