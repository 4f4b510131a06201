"""Evaluates every way to use the checkpoints of runs at inference.

Shows a table for the last round with gains over the last checkpoint and, over rounds, a
picture: the mean over runs that differ in their seeds only, with a band of one standard
deviation. What an earlier call has scored is not scored again.
"""

import dataclasses
import functools
from collections.abc import Sequence

from tff_agg.experiment import runs
from tff_agg.experiment.commands import Command, study
from tff_agg.experiment.commands.of_runs import OfRuns
from tff_agg.experiment.config import RunConfig
from tff_agg.experiment.run.run_folder import RunFolder
from tff_agg.experiment.study import show
from tff_agg.experiment.study.declare import Arm, Line, Study, Use
from tff_agg.experiment.study.options import Performing
from tff_agg.experiment.study.report import Report
from tff_agg.experiment.study.results import Results
from tff_agg.experiment.study.show import Table
from tff_agg.experiment.study.train import loaded
from tff_agg.experiment.task import SAMPLE_SEEDS, Task
from tff_agg.fields import described
from tff_agg.recycling import methods
from tff_agg.recycling.methods import LAST, Method
from tff_agg.recycling.series import IN_WORDS


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateOptions(Performing, OfRuns):
    """What `evaluate` is asked for."""

    out: str = described("results/evaluate", "where scores, table and picture go")
    methods: tuple[Method, ...] = described(
        (), "how checkpoints are used, such as 'uta:10,50 ema:0.9 opa:10'"
    )
    split: str = described("heldout", "the data", SAMPLE_SEEDS)
    span: int = described(0, "how many of the last rounds the curve covers")
    every: int = described(10, "the rounds between two points of the curve", at_least=1)


def declare(task: type[Task], options: EvaluateOptions) -> Study:
    """Returns the study: a row for each kind of run, and a line for each method."""
    kinds = runs.kinds(task, options.runs, options.data)
    wanted = methods.applicable((LAST, *options.methods), task.no_vote)
    lines = []
    rounds: dict[RunConfig, tuple[int, ...]] = {}
    for kind in kinds:
        arm = Arm("", kind.config, folders=kind.folders)
        lines += [
            Line(kind.name, str(method), arm, Use((method,), options.series))
            for method in dict.fromkeys(wanted)
        ]
        last = kind.last_round(options.series)
        stored = [set(_rounds(folder, options.series)) for folder in kind.folders]
        shared = sorted(set.intersection(*stored))
        rounds[kind.config] = curve_rounds(shared, last, options.span, options.every)

    return Study(
        task,
        tuple(lines),
        seeds=tuple(range(len(options.runs))),
        train=loaded(options.data, options.memory_budget),
        rounds=lambda config: rounds[config][-1:],
        examples={options.split: options.examples},
        drawn=lambda line, config: rounds[config],
        final=options.split,
    )


def curve_rounds(
    stored: Sequence[int], last: int, span: int, every: int
) -> tuple[int, ...]:
    """Returns the last round and those before it in the span, as far as stored.

    Example:
      >>> curve_rounds(range(101), 100, span=30, every=10)
      (70, 80, 90, 100)
    """
    wanted = range(last, max(last - span, stored[0]) - 1, -every)
    return tuple(sorted(set(wanted) & set(stored)))


def _rounds(folder: str, series: str) -> Sequence[int]:
    return RunFolder.open(folder).store.rounds(series)


def report(task: type[Task], options: EvaluateOptions, results: Results) -> Report:
    """Returns the table of the last round, in what runs differ, and the curves."""
    page, several = Report(), len(results.rows()) > 1
    whose = "" if several else f"{results.lines[0].row}: "
    of = f"checkpoints of {IN_WORDS[options.series]}"
    page.add_lines(
        "table",
        results,
        (*(["runs"] * several), "method"),
        lambda line: (*([line.row] * several), line.use.methods[0].title),
        task.metrics,
        {"over last": results.over_first()},
        title=f"{whose}{of}; {options.examples:,} examples of the {options.split} data",
    )
    if several:
        page.tables["runs"] = legend(runs.kinds(task, options.runs, options.data))
    metric = task.metrics[0]
    page.add_curves(
        metric.name, results, panels(options, results),
        y_label=f"{options.split} {metric.label}", title=of,
    )  # fmt: skip
    if task.no_vote and any(m.facts.combine == "labels" for m in options.methods):
        page.text = f"OMV is left out: {task.no_vote}"
    return page


def legend(kinds: Sequence[runs.Kind]) -> Table:
    """Says in what runs differ, a column for each kind of them."""
    rows = [
        [name, *("–" if k.own[name] is None else str(k.own[name]) for k in kinds)]
        for name in kinds[0].own
    ]
    return Table(["settings that differ", *(kind.name for kind in kinds)], rows)


def panels(options: EvaluateOptions, results: Results) -> dict[str, dict[str, Line]]:
    """Returns a line for each kind of method, a panel for each kind of run.

    On validation data it is that of the best parameter. Test data must not be used to
    choose, so there it is that of the first that was asked for.
    """
    metric = results.study.task.metrics[0]
    drawn: dict[str, dict[str, Line]] = {}
    for row, lines in results.rows().items():
        by_kind: dict[str, dict[Line, list[float]]] = {}
        for line in lines.values():
            if values := results.values(line):
                of_kind = by_kind.setdefault(line.use.methods[0].kind, {})
                of_kind[line] = values
        for of_kind in by_kind.values():
            tested = options.split == "test"
            line = next(iter(of_kind)) if tested else show.best(of_kind, metric)
            drawn.setdefault(row, {})[line.use.methods[0].title] = line
    return drawn


def run(task: type[Task], options: EvaluateOptions) -> int:
    """Evaluates, writes what is shown, and prints the tables."""
    declared, shown = functools.partial(declare, task), functools.partial(report, task)
    return study.run(declared, shown, options)


def command(task: type[Task]) -> Command:
    """Returns the command of a task."""
    return Command(functools.partial(run, task), (EvaluateOptions,), False)
