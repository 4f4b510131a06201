"""Evaluates every way to use the checkpoints of runs at inference.

Prints a table for the last round, writes scores.csv and, over rounds, a picture: the
mean over runs that differ in their seeds only, with a band of one standard deviation.
"""

import csv
import dataclasses
import functools
import io
import logging
import math
import pathlib
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tff_agg import files
from tff_agg.experiment import runs
from tff_agg.experiment.task import Task
from tff_agg.recycling import inference
from tff_agg.recycling.methods import EMA_BASELINE, Method
from tff_agg.recycling.metrics import ACCURACY, Metric
from tff_agg.runtime import jobs

_log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
Row = dict[str, Any]


class Candidate(NamedTuple):
    """One point of a grid."""

    method: str
    parameter: float | int | None = None
    start: int = 0

    def __str__(self) -> str:
        text = (
            self.method if self.parameter is None else f"{self.method} {self.parameter}"
        )
        return f"{text} from {self.start}" if self.start else text


class Trial(NamedTuple):
    """A candidate and its value on validation data."""

    candidate: Candidate
    validation: float


def pick(trials: Iterable[Trial], metric: Metric = ACCURACY) -> Trial:
    """Returns the trial with the best validation value; of equals, the first.

    Example:
      >>> pick([Trial(Candidate('UTA_inf', 3), 0.2), Trial(Candidate('OMV', 5), 0.2)])
      Trial(candidate=Candidate(method='UTA_inf', parameter=3, start=0), validation=0.2)
    """
    best: Trial | None = None
    for trial in trials:
        before = math.nan if best is None else best.validation
        if metric.better(trial.validation, before):
            best = trial
    if best is None:
        raise ValueError(f"trials: there is none with a {metric.name} to choose from.")
    return best


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """What to evaluate.

    Attributes:
      runs: The run folders.
      out: Where table and picture go.
      grid: The methods and their parameters.
      split: 'heldout' or 'test'.
      examples: The size of the sample.
      name: Which checkpoints: 'iterate' (θ_t) or 'aggregate' (θ^AGG_t).
      span: How many of the last rounds the curve covers.
      every: The rounds between two points of the curve.
      memory_budget: In bytes, for OPA and OMV.
      data: Where the data are, if they are not where the runs found them.
      address: A Ray cluster to spread the runs over, which sees the same storage;
        None: they are evaluated here, one after the other.
    """

    runs: tuple[str, ...]
    out: str
    grid: inference.Grid = dataclasses.field(default_factory=inference.Grid)
    split: str = "heldout"
    examples: int = 10_000
    name: str = "iterate"
    span: int = 0
    every: int = 10
    memory_budget: int = 1 << 30
    data: str | None = None
    address: str | None = None

    def __post_init__(self):
        if self.every < 1 or self.span < 0 or self.examples < 1:
            raise ValueError(
                f"every={self.every} and examples={self.examples} must be at least 1 "
                f"and span={self.span} must not be negative"
            )


def curve_rounds(members: Sequence[int], span: int, every: int) -> list[int]:
    """Returns the rounds to evaluate: the last one and those before it in the span."""
    last = members[-1]
    wanted = range(last, max(last - span, members[0]) - 1, -every)
    return sorted(set(wanted) & set(members))


def applicable(task_class: type[Task], grid: inference.Grid) -> inference.Grid:
    """Returns a grid without what does not apply to a task."""
    return dataclasses.replace(grid, votes=grid.votes and not task_class.no_vote)


def warn_of_windows(
    run: runs.Run, members: Sequence[int], rounds: Sequence[int], grid: inference.Grid
) -> None:
    """Warns of windows that are not what their k says; the first of each kind."""
    found = inference.window_warnings(members, rounds, {*grid.uta, *grid.outputs})
    if found:
        more = f" ({len(found) - 1} more such windows)" if len(found) > 1 else ""
        _log.warning("%s: %s%s", run.folder, found[0], more)


def evaluate_runs(
    task_class: type[Task],
    config: EvaluateConfig,
    on_progress: Progress | None = None,
) -> list[Row]:
    """Evaluates all runs and returns one row for each method, parameter and round.

    On a cluster (`config.address`) progress is not reported.
    """
    members = [
        (kind.name, runs.Run.open(task_class, folder, config.data))
        for kind in runs.kinds(task_class, config.runs)
        if kind.last_round(config.name)
        for folder in kind.folders
    ]
    shown = on_progress if config.address is None else None
    evaluate = functools.partial(_evaluate_run, config, shown)
    ended = sorted(jobs.spread(evaluate, members, address=config.address))
    return [row for one in ended for row in one.result()]


def _evaluate_run(
    config: EvaluateConfig, on_progress: Progress | None, member: tuple[str, runs.Run]
) -> list[Row]:
    """Returns the rows of one run."""
    kind, run = member
    task, rounds = run.task, run.rounds(config.name)
    wanted = curve_rounds(rounds, config.span, config.every)
    warn_of_windows(run, rounds, wanted, config.grid)
    sample = task.fixed_sample(config.split, config.examples)
    scores = inference.score_grid(
        run.loader(config.name),
        rounds,
        wanted,
        applicable(type(task), config.grid),
        score=run.scorer(config.split, config.examples),
        judge=task.judge(),
        predict=task.predictor(),
        examples=task.flat_sample(sample),
        classes=task.classes,
        positions_per_example=task.positions_per_example,
        memory_budget=config.memory_budget,
        on_progress=on_progress,
    )
    return [
        {
            "run": str(run.folder),
            "kind": kind,
            "seed": run.config.seed,
            "split": config.split,
            "method": score.method,
            "parameter": score.parameter,
            "round": score.round,
            **score.values,
        }
        for score in scores
    ]


def summarise(rows: Iterable[Row], metrics: Sequence[Metric]) -> list[Row]:
    """Returns mean and standard deviation over runs at each kind's last round.

    A row has, by the name of each metric, the pair of both; None where a method has no
    such value, and a deviation of None for a single run.
    """
    rows = list(rows)
    last: dict[str, int] = {}
    for row in rows:
        last[row["run"]] = max(last.get(row["run"], 0), row["round"])
    grouped: dict[tuple, list[Row]] = {}
    for row in rows:
        if row["round"] == last[row["run"]]:
            key = (row["kind"], row["method"], row["parameter"])
            grouped.setdefault(key, []).append(row)
    summary = []
    for (kind, method, parameter), found in grouped.items():
        one: Row = {"kind": kind, "method": method, "parameter": parameter}
        one["runs"] = len(found)
        for metric in metrics:
            values = [row[metric.name] for row in found if metric.name in row]
            one[metric.name] = _mean_and_spread(values)
        summary.append(one)
    return summary


def _mean_and_spread(values: list[float]) -> tuple[float, float | None] | None:
    if not values:
        return None
    spread = statistics.stdev(values) if len(values) > 1 else None
    return statistics.fmean(values), spread


def table(summary: Sequence[Row], metrics: Sequence[Metric]) -> str:
    """Formats the summary for the terminal."""
    from tff_agg.experiment.study import show

    several = len({row["kind"] for row in summary}) > 1
    header = (["kind"] if several else []) + ["method", "parameter"]
    header += [metric.label for metric in metrics] + ["runs"]
    lines = []
    for row in summary:
        parameter = "" if row["parameter"] is None else f"{row['parameter']:g}"
        cells = ([row["kind"]] if several else []) + [row["method"], parameter]
        for metric in metrics:
            if row[metric.name] is None:
                cells.append("")
                continue
            mean, spread = row[metric.name]
            shown = metric.show(mean, 3)
            cells.append(
                shown if spread is None else f"{shown} ± {metric.show(spread, 3)}"
            )
        lines.append([*cells, row["runs"]])
    return show.render(show.Table(header, lines))


def shown_parameters(
    summary: Sequence[Row], metric: Metric, split: str
) -> dict[tuple[str, str], float | None]:
    """Chooses the parameter that the picture shows, by (kind, method).

    On validation data it is the best; test data must not be used to choose, so there
    it is the first that was asked for.
    """
    shown: dict[tuple[str, str], Row] = {}
    for row in summary:
        key = (row["kind"], row["method"])
        if key not in shown or (
            split != "test"
            and metric.better(row[metric.name][0], shown[key][metric.name][0])
        ):
            shown[key] = row
    return {key: row["parameter"] for key, row in shown.items()}


def draw(
    rows: Sequence[Row], metrics: Sequence[Metric], split: str, path: pathlib.Path
) -> None:
    """Draws the first metric over rounds, a panel for each kind of run."""
    from tff_agg.experiment.study import figures

    metric = metrics[0]
    shown = shown_parameters(summarise(rows, metrics), metric, split)
    panels: dict[str, dict[str, figures.Curve]] = {}
    for (kind, method), parameter in shown.items():
        by_run: dict[str, dict[int, float]] = {}
        for row in rows:
            if (row["kind"], row["method"], row["parameter"]) == (
                kind,
                method,
                parameter,
            ):
                points = by_run.setdefault(row["run"], {})
                points[row["round"]] = row[metric.name]
        common = sorted(set.intersection(*(set(p) for p in by_run.values())))
        if not common:
            continue
        label = method if parameter is None else f"{method} ({parameter:g})"
        panels.setdefault(kind, {})[label] = figures.Curve(
            common, [[points[t] for t in common] for points in by_run.values()]
        )
    label = f"{split} {metric.label}"
    figures.curves(path, panels, metric, y_label=label, share_y=False)


def write_csv(
    rows: Sequence[Row], metrics: Sequence[Metric], path: pathlib.Path
) -> None:
    """Writes the scores, as a whole or not at all."""
    columns = ["run", "kind", "seed", "split", "method", "parameter", "round"]
    text = io.StringIO()
    writer = csv.DictWriter(
        text, columns + [metric.name for metric in metrics], lineterminator="\n"
    )
    writer.writeheader()
    for row in rows:
        none_as_empty = {k: "" if v is None else v for k, v in row.items()}
        writer.writerow(none_as_empty)
    files.write_text(path, text.getvalue())


def run(
    task_class: type[Task], config: EvaluateConfig, on_progress: Progress | None = None
) -> list[Row]:
    """Evaluates, writes scores.csv and the picture, and returns the summary."""
    metrics = task_class.metrics
    out = files.results_folder(config.out)
    rows = evaluate_runs(task_class, config, on_progress)
    write_csv(rows, metrics, out / "scores.csv")
    draw(rows, metrics, config.split, out / f"{metrics[0].name}.png")
    return summarise(rows, metrics)


def grid_of(wanted: Sequence[Method]) -> inference.Grid:
    """Returns methods as a grid."""
    if strange := [str(m) for m in wanted if m.apart > 1 or m.kind not in _KINDS]:
        raise ValueError(
            f"methods={', '.join(strange)}: only {', '.join(_KINDS)} of the newest "
            "checkpoints can be asked for here"
        )

    def values(kind: str) -> tuple[Any, ...]:
        found = [m.value for m in wanted if m.kind == kind and m != EMA_BASELINE]
        return tuple(found)

    return inference.Grid(
        uta=values("uta"),
        outputs=tuple(dict.fromkeys((*values("opa"), *values("omv")))),
        votes=bool(values("omv")),
        ema=values("ema"),
        pda=values("pda"),
        baseline=EMA_BASELINE in wanted,
    )


def cut_down(grid: inference.Grid, candidates: Sequence[Candidate]) -> inference.Grid:
    """Cuts a grid down to what some candidates need."""

    def parameters(*methods: str) -> tuple:
        found = [c.parameter for c in candidates if c.method in methods]
        return tuple(dict.fromkeys(found))

    return dataclasses.replace(
        grid,
        uta=parameters("UTA_inf"),
        outputs=parameters("OPA", "OMV"),
        ema=parameters("EMA_inf"),
        pda=parameters("PDA"),
        baseline=any(c.method == "EMA_baseline" for c in candidates),
    )


_KINDS = ("last", "uta", "ema", "pda", "opa", "omv")
