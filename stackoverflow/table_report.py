"""What the runs of one of the paper's tables have come to: tables and pictures."""

import contextlib
import functools
import pathlib
from collections.abc import Mapping
from typing import Any

from stackoverflow import paper_tables, table_jobs
from stackoverflow.paper_tables import COLUMNS, RECYCLED, SCALES, ReproduceConfig, Run
from stackoverflow.task import StackOverflow
from tff_agg import files
from tff_agg.experiment import old_evaluate as evaluate
from tff_agg.experiment import progress, recycled_runs, result_tables
from tff_agg.experiment.commands import uncertainty
from tff_agg.experiment.recycled_runs import Recycled
from tff_agg.experiment.study import show
from tff_agg.recycling.uncertainty import Comparison

METRIC = StackOverflow.metrics[0]


def first_runs(config: ReproduceConfig) -> list[Run]:
    """Returns one run of each kind; the others of it differ in their seeds only."""
    return [run for run in config.runs() if run.seed == 0]


def _folders(config: ReproduceConfig, first: Run) -> list[str]:
    seeds = range(config.seeds)
    return [str(config.folder(first._replace(seed=seed))) for seed in seeds]


def recycle_all(config: ReproduceConfig) -> dict[Run, Recycled]:
    """Recycles the checkpoints of every kind of run, or reads what came of it.

    Returns:
      By the first run of the kind, what was found.
    """
    # The same names of runs, whichever process looks at them.
    config = config.anywhere()
    every = first_runs(config)
    if config.side_by_side:
        found = table_jobs.run_all(
            config,
            functools.partial(_recycle_alone, config),
            every,
            "recycling",
            lambda first: recycled_runs.is_known(*_recycling(config, first)),
        )
    else:
        with contextlib.closing(progress.StageBar()) as bar:
            found = [recycle(config, first, bar) for first in every]
    return dict(zip(every, found, strict=True))


def _recycle_alone(config: ReproduceConfig, first: Run) -> Recycled:
    """Recycles in a process that has no terminal."""
    table_jobs.set_up(config, 1)
    return recycle(config, first)


def recycle(
    config: ReproduceConfig, first: Run, on_progress: evaluate.Progress | None = None
) -> Recycled:
    """Recycles the checkpoints of one kind of run."""
    return recycled_runs.recycle(*_recycling(config, first), on_progress)


def _recycling(
    config: ReproduceConfig, first: Run
) -> tuple[type[StackOverflow], list[str], pathlib.Path, recycled_runs.Judging]:
    """Returns what is recycled, to where, and how it is judged."""
    return (
        StackOverflow,
        _folders(config, first),
        config.results / first.kind,
        paper_tables.judging(config.scale, shift=config.table == "pds"),
    )


def row_of(found: Mapping[str, Recycled]) -> dict[str, list[float]]:
    """Returns a row of the paper's table from what the trainings have come to.

    A training aggregation's cell is its best inference aggregation on top, chosen on
    validation data, as in the paper.
    """
    tests = {
        name: one.tests[
            recycled_runs.LAST
            if name == "baseline"
            else recycled_runs.best(one, METRIC)
        ]
        for name, one in found.items()
    }
    if "baseline" in found:
        tests |= {method: found["baseline"].tests[method] for method in RECYCLED}
    return {
        name: [one[METRIC.name] for one in tests[name]]
        for name in COLUMNS
        if name in tests
    }


def report(config: ReproduceConfig) -> str:
    """Recycles, tests, writes tables and pictures; returns what the terminal shows."""
    cells: dict[str, dict[str, list[float]]] = {}
    curves: list[Any] = []
    lines: dict[tuple[str, ...], Any] = {}
    everything = recycle_all(config)
    for epsilon in config.epsilons:
        found = {
            first.training: one
            for first, one in everything.items()
            if first.epsilon == epsilon
        }
        cells[epsilon] = row_of(found)
        panel = f"ε = {epsilon.replace('inf', '∞')}"
        drawn = found.get("baseline", found[config.trainings[0]])
        curves += [row | {"kind": panel} for row in drawn.chosen_rows]
        for training, one in found.items():
            for method, tests in one.tests.items():
                lines[epsilon, training, str(one.chosen[method])] = tests
    published = {}
    if config.scale == "full":
        published = paper_tables.published(config.table)
    table = result_tables.ResultTable("ε", cells, METRIC, expected=published)
    table.write(config.results)
    labels = ["epsilon", "training", "inference"]
    result_tables.write_long(
        config.results / "all_cells.csv", labels, lines, StackOverflow.metrics
    )
    if "baseline" in config.trainings:
        first = {key: (key[0], "baseline", recycled_runs.LAST) for key in lines}
        gains = result_tables.improvements(lines, first, StackOverflow.metrics)
        header = [*labels, *(metric.label for metric in StackOverflow.metrics)]
        text = result_tables.markdown(header, gains)
        files.write_text(config.results / "gains.md", text)
    evaluate.draw(
        curves, StackOverflow.metrics, "heldout", config.results / "accuracy.png"
    )
    return table.terminal()


def widths(config: ReproduceConfig) -> str:
    """Compares checkpoints with independent runs; returns what the terminal shows.

    Checkpoints that follow each other, as in the paper, and some that are apart, which
    depend less on each other.
    """
    config = config.anywhere()
    header = ["runs", "N", "independent runs"]
    for separation in SCALES[config.scale].separations:
        apart = "last checkpoints" if separation == 1 else f"{separation} rounds apart"
        header += [apart, "ratio"]
    every = [
        (separation, first)
        for separation in SCALES[config.scale].separations
        for first in first_runs(config)
    ]
    measured = table_jobs.run_all(
        config, functools.partial(_widths_alone, config), every, "error bars"
    )
    rows: dict[tuple[str, int], list[str]] = {}
    for (_, first), found in zip(every, measured, strict=True):
        columns = zip(
            found.sizes,
            found.independent.mean(axis=0),
            found.checkpoints.mean(axis=0),
            found.ratio,
            strict=True,
        )
        for n, independent, checkpoints, ratio in columns:
            known = [first.kind, str(n), f"{independent:.3f}"]
            row = rows.setdefault((first.kind, n), known)
            row += [f"{checkpoints:.3f}", f"{ratio:.2f}"]
    table = header, list(rows.values())
    files.write_text(config.results / "widths.md", result_tables.markdown(*table))
    return show.render(show.Table(*table))


def _widths_alone(config: ReproduceConfig, what: tuple[int, Run]) -> Comparison:
    """Compares the checkpoints of one kind of run with independent runs."""
    table_jobs.set_up(config, 1)
    separation, first = what
    folder = f"{first.kind}_separation{separation}"
    found = uncertainty.run(
        StackOverflow,
        uncertainty.UncertaintyConfig(
            runs=tuple(_folders(config, first)),
            out=str(config.results / "widths" / folder),
            examples=SCALES[config.scale].interval_examples,
            series="aggregate",
            separation=separation,
        ),
    )
    return found.widths
