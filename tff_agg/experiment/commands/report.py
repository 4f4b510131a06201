"""Writes one HTML page about a run that a colleague can open.

Settings, the privacy statement with what it covers and what not, an audit that was run
before, curves, a table of ways to aggregate the checkpoints, and how uncertain
predictions and scores are. It shows released models and scores on evaluation data; what
clients measured in training, which has no noise, is left out.
"""

import base64
import contextlib
import dataclasses
import functools
import io
import pathlib
from typing import Any

from tff_agg import files
from tff_agg.experiment import progress, runs
from tff_agg.experiment.commands import Command, audit, uncertainty
from tff_agg.experiment.commands.of_runs import OfRun
from tff_agg.experiment.run.recording import below_trivial
from tff_agg.experiment.study import show
from tff_agg.experiment.study.declare import Question
from tff_agg.experiment.study.progress import telling
from tff_agg.experiment.study.results import Curve
from tff_agg.experiment.study.scores import ALL
from tff_agg.experiment.study.show import Table
from tff_agg.experiment.study.train import answers
from tff_agg.experiment.task import SAMPLE_SEEDS, Task
from tff_agg.experiment.terminal import test_table
from tff_agg.fields import described
from tff_agg.recycling import methods, series
from tff_agg.recycling.methods import LAST, Method, Progress, parse_methods

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
    privacy = run.opened.report()
    environment = run.opened.environment() or {}
    rounds = f"{run.opened.rounds_done:,} of {run.config.rounds:,} rounds"
    text = page(
        title=f"{task_class.package}: {run.folder.resolve().name}",
        rounds=f"{rounds} with {run.config.cohort_words}",
        guarantee=_guarantee(run, privacy),
        privacy=privacy,
        facts=_facts(privacy),
        below=below_trivial(_newest_scores(run), run.task.metrics),
        audit=_audit(run, privacy),
        membership=_membership(run, privacy),
        curves=_curves(run),
        tested=_tested(run),
        methods=_methods(run, config, on_progress),
        config=config,
        uncertainty=_uncertainty(task_class, config, on_progress),
        settings=_settings(run),
        fingerprint=run.task.fingerprint,
        environment=", ".join(f"{name} {value}" for name, value in environment.items()),
    )
    out = pathlib.Path(config.out or run.folder / "report.html")
    files.write_text(out, text)
    return out


def page(**facts: Any) -> str:
    """Returns the page: one file that needs nothing from elsewhere, without scripts.

    All text is escaped.

    Args:
      **facts: The names that the template has.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__ or "", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["as_html"] = functools.partial(show.render, to="html")
    return environment.get_template("report.html.jinja").render(facts) + "\n"


def _guarantee(run: runs.Run, privacy: dict[str, Any]) -> str | None:
    """Returns the guarantee in words; None where there is none."""
    guarantee = privacy.get("guarantee", {})
    if guarantee.get("epsilon") is None:
        return None
    return (
        f"{run.config.privacy_level} differential privacy of the whole run: "
        f"ε = {guarantee['epsilon']:.4g} at δ = {guarantee['delta']:g}"
    )


def _newest_scores(run: runs.Run) -> dict[str, Any]:
    """Returns the scores on the test data, or the newest ones on validation data."""
    history = run.opened.history
    if history is None:
        return {}
    if history.tested is not None:
        return history.tested
    return history.validated[max(history.validated)] if history.validated else {}


def _facts(privacy: dict[str, Any]) -> Table:
    """Returns what the guarantee is about."""
    if not privacy:
        return Table(["", ""], [])
    rows = [[name, privacy[name]] for name in ("setting", "unit", "adjacency")]
    rows += [
        ["released", privacy["released"]],
        ["accounting", privacy["accounting"]["method"]],
        ["evaluation data", privacy["evaluation"]["statement"]],
    ]
    return Table(["", ""], rows)


def _audit(run: runs.Run, privacy: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the results of an audit that was run before; None without one."""
    audited = privacy.get("audit")
    if not audited:
        return None
    return {
        "paragraph": audited["paragraph"],
        "table": audit.table(audited["findings"]),
        "refuted": any(finding["refutes_claim"] for finding in audited["findings"]),
        "picture": _picture(run, "scores.png"),
    }


def _membership(run: runs.Run, privacy: dict[str, Any]) -> dict[str, Any] | None:
    """Returns what an attack on membership has found; None where there was none."""
    found = privacy.get("membership")
    if not found:
        return None
    return {
        "paragraph": found["paragraph"],
        "table": Table(found["table"]["head"], found["table"]["rows"]),
        "picture": _picture(run, "membership.png"),
    }


def _picture(run: runs.Run, name: str) -> str | None:
    """Returns a picture of an audit; None where it is not there."""
    path = run.folder / "audit" / name
    return _as_url("image/png", path.read_bytes()) if path.exists() else None


def _curves(run: runs.Run) -> str | None:
    """Draws validation scores over rounds, sharp at any size; None without any."""
    from tff_agg.experiment.study import figures

    history = run.opened.history
    if history is None or not history.validated:
        return None
    validated = history.validated
    shown = run.task.metrics[:3]
    figure, axes = figures.new_figure(len(shown), width=4.2, share_y=False)
    for axis, metric in zip(axes, shown, strict=True):
        by_series = {
            name: Curve(
                [*validated],
                [[scores[name]["all"][metric.name] for scores in validated.values()]],
            )
            for name in (*series.NAMES, series.TRIVIAL)
            if all(name in scores for scores in validated.values())
        }
        figures.draw_curves(axis, series.apart(by_series), metric)
        axis.set_ylabel(f"validation {metric.label}")
    figures.legends(figure, axes)
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return _as_url("image/svg+xml", file.getvalue())


def _as_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _tested(run: runs.Run) -> Table | None:
    """Returns the test scores of the last round; None where it was not tested."""
    history = run.opened.history
    if history is None or history.tested is None:
        return None
    return test_table(history.tested, run.task.metrics)


def _methods(
    run: runs.Run,
    config: ReportConfig,
    on_progress: Progress | None,
) -> Table:
    """Returns the scores of the methods that there are checkpoints for."""
    rounds, metrics = run.rounds(series.BROADCAST), run.task.metrics
    usable = methods.without_windows_beyond(
        methods.applicable((LAST, *config.methods), run.task.no_vote), len(rounds)
    )
    last = (rounds[-1],)
    question = Question(config.split, config.examples, series.BROADCAST, usable, last)
    values: dict[str, dict[str, float]] = {}
    with telling(on_progress):
        for score in answers(run, [question]):
            asked = (score.split, score.examples, score.series, (score.round,))
            if asked == (*question[:3], last) and score.group == ALL:
                values.setdefault(score.method, {})[score.metric] = score.value
    rows = []
    for method in usable:
        own = values[str(method)]
        shown = [m.show(own[m.name]) if m.name in own else "" for m in metrics]
        rows.append([method.title, *shown])
    title = f"Checkpoints of {series.IN_WORDS[series.BROADCAST]}"
    return Table(["method", *(metric.label for metric in metrics)], rows, title)


def _uncertainty(
    task_class: type[Task], config: ReportConfig, on_progress: Progress | None
) -> dict[str, Any]:
    """Returns how uncertain scores and predictions are, or why that is not known."""
    asked = uncertainty.UncertaintyConfig(
        runs=(config.run,),
        out="",
        sizes=_SIZES,
        split=config.split,
        examples=min(config.examples, 500),
        data=config.data,
    )
    try:
        results = uncertainty.compare(task_class, asked, on_progress)
    except ValueError as error:
        return {"reason": str(error)}
    widths = results.widths
    return {
        "reason": None,
        "spreads": Table(
            ["metric", "last checkpoint", "± standard deviation"],
            [
                [s.metric.label, s.metric.show(s.last), s.metric.show(s.deviation)]
                for s in results.spreads
            ],
        ),
        "widths": Table(
            ["checkpoints", "mean width of the 95 % interval of a prediction"],
            [
                [n, f"{width:.5f}"]
                for n, width in zip(widths.sizes, widths.checkpoints[0], strict=True)
            ],
        ),
        "examples": asked.examples,
        "notes": " ".join(results.notes),
    }


def _settings(run: runs.Run) -> Table:
    """Returns the configuration, but for where things lie."""
    rows = []
    for field in dataclasses.fields(run.config):
        if field.metadata["role"] != "place":
            value = getattr(run.config, field.name)
            shown = "" if value is None else value
            changed = "" if value == field.default else "given"
            rows.append([field.name, shown, changed, field.metadata["help"]])
    return Table(["setting", "value", "", "meaning"], rows)


def report(task_class: type[Task], config: ReportConfig) -> int:
    """Writes the page and says where it is."""
    with contextlib.closing(progress.StageBar()) as bar:
        out = write(task_class, config, bar)
    print(f"The report is {out}")
    return 0


def command(task: type[Task]) -> Command:
    """Returns the command of a task."""
    return Command(functools.partial(report, task), (ReportConfig,))
