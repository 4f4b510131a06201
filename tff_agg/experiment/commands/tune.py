"""Tunes the aggregation of checkpoints: on validation data, tested once.

Inference aggregation (Algorithm 3) works over the checkpoints of finished runs;
training aggregation (Algorithm 2) trains one run for each parameter and start. Without
further flags the paper's grids for the task are searched. Run the same command again to
go on with a search that was stopped, or of which trials have failed.
"""

import dataclasses
import functools
import shlex
from collections.abc import Collection, Sequence
from statistics import fmean
from typing import Any

from absl import flags as absl_flags

from tff_agg import fields
from tff_agg.experiment import runs
from tff_agg.experiment.commands import Command, flags, study
from tff_agg.experiment.commands.of_runs import OfRuns
from tff_agg.experiment.config import RunConfig
from tff_agg.experiment.run.run_folder import RunFolder
from tff_agg.experiment.study import cost, figures, show
from tff_agg.experiment.study.declare import (
    BROADCAST,
    Arm,
    Line,
    Settings,
    Study,
    Use,
    in_words,
)
from tff_agg.experiment.study.options import Performing
from tff_agg.experiment.study.report import Report, candidate_table
from tff_agg.experiment.study.results import Results
from tff_agg.experiment.study.train import loaded, saved
from tff_agg.experiment.task import Task
from tff_agg.fields import described
from tff_agg.recycling import methods
from tff_agg.recycling.methods import EMA_BASELINE, KINDS, LAST, Method
from tff_agg.recycling.series import IN_WORDS

#: The line of the best of all methods.
BEST = "best of all"
_SPLITS = {"heldout": "validation", "test": "test"}
_TRAINING = ("algorithm", ("training",))
_OF_INFERENCE = ("runs", "methods", "series", "memory_mb", "data")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneOptions(Performing, OfRuns):
    """What `tune` is asked for."""

    out: str = described("results/tune", "where everything goes")
    algorithm: str = described("inference", "what is tuned", ("inference", "training"))
    methods: tuple[Method, ...] = described(
        (), "inference: the grid, such as 'uta:10,50 opa:10'; the paper's if not given"
    )
    averager: str = described(
        "uta", "training: the aggregation", ("uta", "ema"), only_with=_TRAINING
    )
    parameters: tuple[float, ...] = described(
        (), "training: k or β; the paper's if not given", only_with=_TRAINING
    )
    starts: tuple[int, ...] = described(
        (), "training: the values of τ; the paper's if not given", only_with=_TRAINING
    )
    train_flags: str = described(
        "", "training: flags that all trials share", only_with=_TRAINING
    )
    ema_convention: str = described(
        "decay",
        "training: what β is the weight of: the old average (decay) or the newest "
        "checkpoint (weight)",
        ("decay", "weight"),
        only_with=("averager", ("ema",)),
    )

    def without_effect(self, given: Collection[str]) -> list[str]:
        """Returns which of the given fields change nothing; a text for each."""
        idle = fields.without_effect(self, given)
        if self.algorithm == "training":
            needs = "needs algorithm=inference; it is training"
            idle += [f"{name} {needs}" for name in _OF_INFERENCE if name in given]
        return idle


def declare(task: type[Task], options: TuneOptions) -> Study:
    """Returns the study: Algorithm 3 over runs, or Algorithm 2 over settings."""
    if options.algorithm == "inference":
        return over_runs(task, options)
    return over_settings(task, options)


def over_runs(task: type[Task], options: TuneOptions) -> Study:
    """Returns Algorithm 3: for each kind of method its best parameter, tested once."""
    lines = []
    last: dict[RunConfig, tuple[int, ...]] = {}
    for kind in runs.kinds(task, options.runs, options.data):
        stores = [RunFolder.open(folder).store for folder in kind.folders]
        fewest = min(len(store.rounds(options.series)) for store in stores)
        last[kind.config] = (kind.last_round(options.series),)
        wanted = methods.without_windows_beyond(
            candidates(task, kind.config, options.methods), fewest
        )
        arm = Arm("", kind.config, folders=kind.folders)
        grids = methods.by_kind(wanted)
        if EMA_BASELINE in wanted:
            grids["EMA_baseline"] = (EMA_BASELINE,)
        grids[BEST] = wanted
        lines += [
            Line(kind.name, title, arm, Use(grid, options.series))
            for title, grid in grids.items()
        ]
    return Study(
        task,
        tuple(lines),
        seeds=tuple(range(len(options.runs))),
        train=loaded(options.data, options.memory_budget),
        rounds=lambda config: last[config],
        examples=dict.fromkeys(_SPLITS, options.examples),
    )


def candidates(
    task: type[Task], config: RunConfig, asked: Sequence[Method]
) -> tuple[Method, ...]:
    """Returns the last checkpoint and what is asked for, else the paper's grid.

    Of equals the first is chosen, so they stand in the order of the kinds.
    """
    if not asked:
        grids = task.grids(config)
        ks = [Method(kind, k) for kind in ("uta", "opa", "omv") for k in grids.ks]
        asked = [*ks, *(Method("ema", beta) for beta in grids.inference_betas)]
        asked = [*asked, EMA_BASELINE]
    usable = dict.fromkeys(methods.applicable((LAST, *asked), task.no_vote))
    order = list(KINDS)
    return tuple(sorted(usable, key=lambda method: order.index(method.kind)))


def over_settings(task: type[Task], options: TuneOptions) -> Study:
    """Returns Algorithm 2: the best parameter and start of an averager, tested once."""
    data = () if task.Data is None else (task.Data,)
    given = shlex.split(options.train_flags)
    try:
        shared, *more = flags.parse(given, task.Config, *data)
    except absl_flags.Error as error:
        raise ValueError(f"train_flags={options.train_flags!r}: {error}") from error
    points = settings_of(task, options, shared)
    # With the averager alone the configuration is not whole: β is still to come.
    changes: dict[str, Any] = {**points[0], "averager": options.averager}
    config = dataclasses.replace(task.prepared(shared, *more), **changes)
    title = f"{options.averager.upper()}_tr"
    return Study(
        task,
        (Line("trials", title, Arm(title, config, tuple(points)), BROADCAST),),
        seeds=(config.seed,),
        train=saved(),
        examples=dict.fromkeys(_SPLITS, options.examples),
    )


def settings_of(
    task: type[Task], options: TuneOptions, shared: RunConfig
) -> list[Settings]:
    """Returns what is asked for of the averager, else the paper's grid.

    Args:
      task: The task.
      options: What is asked for.
      shared: What all trials share.
    """
    grids = task.grids(shared)
    name, parameters = "k", options.parameters or grids.ks
    if options.averager == "ema":
        name = f"ema_{options.ema_convention}"
        parameters = options.parameters or grids.training_betas
    return [
        {name: int(p) if name == "k" else p, "start_round": start}
        for start in options.starts or grids.starts
        for p in parameters
    ]


def report(task: type[Task], options: TuneOptions, results: Results) -> Report:
    """Returns what was chosen, all candidates, and the metric over the parameter."""
    several = len(results.rows()) > 1
    header = (*(["runs"] * several), "line", "chosen")
    values = {
        (*([line.row] * several), line.name, _chosen(results, line)): {
            f"{words} {name}": own
            for split, words in _SPLITS.items()
            for name, own in results.metrics(line, split).items()
        }
        for line in results.lines
    }
    keys = dict(zip(results.lines, values, strict=True))
    over = {keys[line]: keys[first] for line, first in results.over_first().items()}
    asked = [("heldout", task.metrics[0]), *(("test", m) for m in task.metrics)]
    shown = [m._replace(name=f"{_SPLITS[split]} {m.name}") for split, m in asked]
    series = "aggregate" if options.algorithm == "training" else options.series
    title = f"checkpoints of {IN_WORDS[series]}"
    draw = functools.partial(
        figures.choices, panels=panels(results), metric=task.metrics[0]
    )
    return Report(
        {
            "table": show.line_table(
                header,
                values,
                shown,
                {"": over},
                gains_in=[shown[1]],
                title=title,
            )
        },
        {"candidates": candidate_table(results)},
        {"tuning": draw},
        "\n".join(_notes(task, options, results)),
    )


def _chosen(results: Results, line: Line) -> str:
    """Writes what was chosen for a line."""
    settings, method, _ = results.chosen[line]
    return in_words(settings) or str(method)


def panels(results: Results) -> dict[str, figures.Choices]:
    """Returns, for each line, the metric over the parameter; a curve for each start."""
    choices = {}
    for line in results.lines:
        tried = results.candidates(line)
        if len(tried) < 2 or line.name == BEST:
            continue
        settings, method, _ = results.chosen[line]
        curves: dict[str, dict[str, float]] = {}
        for candidate, name, by_seed in tried:
            start = f"τ = {candidate['start_round']}" if candidate else ""
            at = _parameter(candidate, name)
            curves.setdefault(start, {})[at] = fmean(by_seed)
        start = f"τ = {settings['start_round']}" if settings else ""
        chosen = (start, _parameter(settings, str(method)))
        title = line.name if len(results.rows()) == 1 else f"{line.row}: {line.name}"
        choices[title] = figures.Choices(curves, chosen)
    return choices


def _parameter(settings: Settings, method: str) -> str:
    own = [value for name, value in settings.items() if name != "start_round"]
    return f"{own[0]:g}" if own else Method.parse(method).parameter


def _notes(task: type[Task], options: TuneOptions, results: Results) -> list[str]:
    """Returns what has to be said besides."""
    notes = []
    if task.no_vote and options.algorithm == "inference":
        notes.append(f"OMV is left out: {task.no_vote}")
    looks = {line.name: results.looks(line) for line in results.lines}
    notes += [
        f"The test data were looked at for {count} candidates of {name}."
        for name, count in looks.items()
        if count > 1 and name != BEST
    ]
    folders = [f for line in results.lines for f in results.folders(line)]
    return notes + cost.paragraphs(folders, results.out)


def run(task: type[Task], options: TuneOptions) -> int:
    """Searches, writes what is shown, and prints the tables."""
    declared, shown = functools.partial(declare, task), functools.partial(report, task)
    return study.run(declared, shown, options)


def command(task: type[Task]) -> Command:
    """Returns the command of a task."""
    return Command(functools.partial(run, task), (TuneOptions,), False)
