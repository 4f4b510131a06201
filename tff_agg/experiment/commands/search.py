"""Finds clip norm and rates: a random search around the defaults, resumable.

Takes all flags of `train`, which say where it starts. Runs are judged on validation
data, which is all that the search sees. More --runs, or --minutes, go on with the same
search. It writes a table, a picture, and `best.cfg`, the flags of the best run:

  python -m stackoverflow search --store=… --epsilon=8 --runs=12 --out=results/search
  python -m stackoverflow train --flagfile=results/search/best.cfg --store=… --out=…

Every run looks at the users' data. What the choice costs them stands in the runs'
privacy reports, and is said at the end. On public data, or on users who take no part in
the training afterwards, it costs those who do nothing.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from tff_agg import files
from tff_agg.experiment.commands import Command, flags, study
from tff_agg.experiment.config import RunConfig, TrainConfig
from tff_agg.experiment.study import cost, figures, show
from tff_agg.experiment.study.declare import BROADCAST, Arm, Line, Settings, Study
from tff_agg.experiment.study.options import StudyOptions
from tff_agg.experiment.study.report import Report
from tff_agg.experiment.study.results import Results
from tff_agg.experiment.study.train import saved
from tff_agg.experiment.task import Task
from tff_agg.fields import described

#: By a field, how many times larger or smaller than at the start it may become. The
#: server's rate moves beside what the clip norm makes of it.
SPACE: Mapping[str, float] = {
    "clip_norm": 4.0,
    "server_learning_rate": 4.0,
    "client_learning_rate": 3.0,
    "learning_rate": 4.0,
}
# Irrational steps, one for each field: points that are spread whatever their number.
_STEPS = (0.8191725134, 0.6710436067, 0.5497004779)
_MOST_RUNS = 1000
_ROW, _LINE = "search", "candidates"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions(StudyOptions):
    """How long to search."""

    out: str = described("results/search", "where runs, table and picture go")
    seeds: int = described(
        1, "runs of each candidate, with seeds from 100 on", at_least=1
    )
    runs: int = described(12, "how many candidates; the first is the start", at_least=2)
    minutes: float | None = described(
        None, "instead: as many as two measured rounds say that fit into this time"
    )
    halving: bool = described(
        False,
        "stop two of three candidates after a quarter of their rounds; all have the "
        "noise of the whole plan",
    )


def candidates(start: Mapping[str, float], number: int) -> Iterator[Settings]:
    """Yields settings around a start, spread evenly in their logarithms.

    The first is the start itself. More of them begin with the same ones.

    Args:
      start: By the field's name, where to start.
      number: How many to yield.
    """
    yield dict(start)
    for i in range(1, number):
        moves = {
            name: SPACE[name] ** (2 * ((0.5 + i * step) % 1.0) - 1)
            for name, step in zip(start, _STEPS, strict=False)
        }
        found = {name: start[name] * moves[name] for name in start}
        if "server_learning_rate" in found:
            found["server_learning_rate"] /= moves["clip_norm"]
        yield {name: float(f"{value:.3g}") for name, value in found.items()}


def start_of(task: Task) -> dict[str, float]:
    """Returns where a search starts: the values of a task's configuration."""
    config = task.config
    names = [f.name for f in dataclasses.fields(config) if f.name in SPACE]
    found = {name: getattr(config, name) for name in SPACE if name in names}
    if isinstance(config, TrainConfig):
        rate = config.server_rate(task.num_parameters)
        found["server_learning_rate"] = float(f"{rate:.3g}")
    return found


def declare(
    task: Task, options: SearchOptions, grid: Sequence[Settings] | None = None
) -> Study:
    """Returns the search as a study: one arm, whose grid are the candidates.

    Args:
      task: The task.
      options: What is asked for.
      grid: Those that are left of the candidates, if not all.
    """
    config = task.config
    grid = tuple(grid or candidates(start_of(task), options.runs))
    return Study(
        type(task),
        (Line(_ROW, _LINE, Arm(_LINE, config, grid), BROADCAST),),
        seeds=tuple(range(100, 100 + options.seeds)),
        train=saved(),
        examples={"heldout": config.validation_examples},
        final=None,
    )


def rung_of(config: RunConfig) -> int:
    """Returns after how many rounds candidates are compared: a quarter, validated.

    Example:
      >>> rung_of(TrainConfig(epsilon=8.0, rounds=1000, evaluate_every=50))
      250
    """
    every = config.evaluate_every
    rung = config.rounds // 4 // every * every
    if not rung:
        raise ValueError(
            f"halving compares candidates after a quarter of {config.rounds} rounds, "
            f"and the first validation is after evaluate_every={every}; lower it"
        )
    return rung


def left_of(task: Task, options: SearchOptions) -> list[Settings]:
    """Trains all candidates for a quarter of their rounds; returns the best third.

    A run of a quarter of the rounds would have less noise than the first quarter of a
    whole run. So whole runs are begun, with the noise of their plan, and stopped: those
    that are left go on from where they stand.
    """
    from tff_agg.experiment.study import search

    rung = rung_of(task.config)
    study = dataclasses.replace(
        declare(task, options), train=saved(until=rung), rounds=lambda config: (rung,)
    )
    if options.report_only:
        found = search.results(study, options.out)
    else:
        found = search.perform(study, options.out, processes=options.processes,
                               address=options.address,
                               cpus_per_job=options.cpus_per_job)  # fmt: skip
    metric, (line,) = task.metric, study.lines
    by_value = sorted(
        found.candidates(line),
        key=lambda candidate: fmean(candidate[2]),
        reverse=metric.higher_is_better,
    )
    # Of one alone a study would ask nothing.
    return [settings for settings, _, _ in by_value[: max(2, -(-len(by_value) // 3))]]


def runs_in(task: Task, options: SearchOptions) -> int:
    """Returns how many candidates fit into the time, by two measured rounds."""
    from tff_agg.experiment.run import estimate

    assert options.minutes is not None
    # Of a run of its own, wherever that would be.
    seconds = estimate.estimate(
        task, str(pathlib.Path(options.out) / "dry_run")
    ).seconds
    if options.halving:
        # All of them a quarter, and a third of them the rest.
        seconds *= 0.5
    fitting = 60 * options.minutes * options.processes / (seconds * options.seeds)
    return int(min(max(2, fitting), _MOST_RUNS))


# What it shows.


def report(task: Task, options: SearchOptions, results: Results) -> Report:
    """Returns the table, best first, the picture, and what the choice has cost."""
    (line,) = results.study.lines
    metrics = task.metrics
    first = metrics[0]
    found = {
        tuple(settings.items()): (settings, fmean(values))
        for settings, _, values in results.candidates(line)
    }
    ordered = sorted(
        found, key=lambda key: found[key][1], reverse=first.higher_is_better
    )
    others = {
        metric.name: {
            tuple(settings.items()): fmean(values)
            for settings, _, values in results.candidates(line, metric)
        }
        for metric in metrics
    }
    start = tuple(line.arm.grid[0].items())
    rows = [
        [
            *(f"{value:g}" for _, value in key),
            *(metric.show(others[metric.name][key]) for metric in metrics),
            "the start" if key == start else "",
        ]
        for key in ordered
    ]
    header = [*line.arm.grid[0], *(metric.label for metric in metrics), ""]
    best = dict(ordered[0])
    return Report(
        {"search": show.Table(header, rows, "On validation data, best first")},
        {"search": show.Table(header, rows)},
        {"search": functools.partial(_draw, [found[k] for k in ordered], first)},
        "\n".join([*_said(task, options, results, best)]),
    )


def _said(
    task: Task, options: SearchOptions, results: Results, best: Settings
) -> Iterator[str]:
    out = pathlib.Path(options.out)
    config = dataclasses.replace(task.config, **best)
    path = out / "best.cfg"
    files.write_text(path, _flag_file(config))
    yield f"{path} has the flags of the best run, without where data and runs lie."
    folders = sorted((out / "runs").glob("*/"))
    searched = cost.of_training(folders, len(folders)) if folders else None
    if searched is not None:
        yield searched.paragraph
    metric = task.metrics[0]
    if trivial := results.trivial():
        value = metric.show(trivial[metric.name])
        yield f"Always the same answer has {metric.label} {value}."


def _flag_file(config: RunConfig) -> str:
    """Returns the flags of a configuration but for seeds and places."""
    lines = flags.written(config, roles=("process", "cohort", "watching"))
    return "\n".join(["# Found by a search on validation data.", *lines, ""])


def _draw(found: list[tuple[Settings, float]], metric: Any, path: pathlib.Path) -> None:
    """Draws the metric over each field, a point a run."""
    names = list(found[0][0])
    figure, axes = figures.new_figure(len(names), width=4.0, share_y=True)
    for axis, name in zip(axes, names, strict=True):
        values = [metric.scale * value for _, value in found]
        axis.plot([settings[name] for settings, _ in found], values, "o")
        axis.plot([found[0][0][name]], values[:1], "o", color=figures.COLOURS[2])
        axis.set(xscale="log", xlabel=name)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"validation {metric.label}")
    figures.save(figure, path)


def search(
    task_class: type[Task], options: SearchOptions, config: Any, *data: Any
) -> int:
    """Searches; `data` says what the data are prepared from, where a task can."""
    config = dataclasses.replace(task_class.prepared(config, *data), test_examples=0)
    task = task_class(config)
    if task.config.insecure_noise_seed is not None:
        raise ValueError(
            f"insecure_noise_seed={task.config.insecure_noise_seed}: the runs of a "
            "search have noise of their own each; leave it out"
        )
    if options.minutes is not None:
        runs = runs_in(task, options)
        options = dataclasses.replace(options, runs=runs, minutes=None)
        print(f"{runs} candidates fit into the time.", flush=True)
    grid = None
    if options.halving and not options.dry_run:
        grid = left_of(task, options)
        print(
            f"{len(grid)} of {options.runs} candidates go on after "
            f"{rung_of(task.config)} rounds.",
            flush=True,
        )
    return study.run(
        functools.partial(declare, task, grid=grid),
        functools.partial(report, task),
        options,
    )


def command(task: type[Task]) -> Command:
    """Returns the command of a task: its own flags, and those of `train`."""
    data = () if task.Data is None else (task.Data,)
    return Command(functools.partial(search, task), (SearchOptions, task.Config, *data))
