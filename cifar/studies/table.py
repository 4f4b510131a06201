"""The paper's CIFAR tables from runs of one's own: tunes, trains, judges.

All arms of a level have equally many candidates (`cifar.studies.arms`), chosen on
validation data with a seed of their own; the last iterate and what is recycled have a
choice each. The chosen ones are trained with the seeds of the table and judged on test
data, and inference has the parameters that were best in tuning. Levels are the paper's
rows of CIFAR-100 (eps1, eps8), and CIFAR-10 at a size that a core can do.

All seeds are known, so that the figures can be had again, and all runs of a seed share
batches and noise: such runs have no guarantee. Nothing is kept of them but their scores
and some checkpoints.
"""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Mapping
from typing import Any

from cifar.studies import arms, error_bars, side_by_side
from cifar.task import Cifar, CifarConfig
from tff_agg.experiment.commands import Command, study
from tff_agg.experiment.study import show, widths
from tff_agg.experiment.study.declare import (
    BROADCAST,
    Arm,
    Line,
    Settings,
    Study,
    Use,
    known,
)
from tff_agg.experiment.study.options import StudyOptions
from tff_agg.experiment.study.report import Report
from tff_agg.experiment.study.results import Results
from tff_agg.experiment.study.statistics import gain
from tff_agg.fields import described
from tff_agg.recycling.methods import EMA_BASELINE, by_kind
from tff_agg.recycling.uncertainty import Comparison

METRIC = Cifar.metrics[0]
#: The tables have 0, 1, 2, …
SEARCH_SEED = 100
#: Every split is judged as a whole.
EVERYTHING = {"heldout": 1 << 30, "test": 1 << 30}
TRAINED, LAST = "trained", "last"
#: The baseline, by what its candidates are chosen.
LAST_ITERATE, RECYCLED = f"{arms.BASELINE}, last", f"{arms.BASELINE}, recycled"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table(StudyOptions):
    """What the tables are made from."""

    out: str = described("results/cifar", "where scores, tables and pictures go")
    seeds: int = described(5, "seeds of what was chosen, from 0 on", at_least=1)
    data_dir: str = described(
        "../shared/data", "folder with cifar10/ and cifar100/, whichever is asked for"
    )
    levels: tuple[str, ...] = described(
        ("eps1", "eps8"), "the levels of privacy", tuple(arms.LEVELS)
    )
    shifts: tuple[str, ...] = described(
        arms.SHIFTS, "without a shift of the data, and with it", arms.SHIFTS
    )
    beside: tuple[str, ...] = described(
        (),
        "folders of `uncertainty`, of any task, that are drawn beside the error bars",
    )


def declare(options: Table) -> Study:
    """Returns the study: for each level four lines of a table, cell by cell."""
    lines: list[Line] = []
    for level, shift in itertools.product(options.levels, options.shifts):
        lines += lines_of(level, shift, options.data_dir)
    level_of = {row_of(x, s, n): x for x in options.levels for s in options.shifts
                for n in (LAST_ITERATE, RECYCLED)}  # fmt: skip

    def drawn(line: Line, config: Any) -> tuple[int, ...]:
        if not line.row.endswith(RECYCLED) or line.use == BROADCAST:
            return ()
        return arms.LEVELS[level_of[line.row]].curve

    return Study(
        Cifar,
        tuple(lines),
        seeds=tuple(range(options.seeds)),
        train=side_by_side.lockstep(error_bars.kept),
        search_seeds=(SEARCH_SEED,),
        seeding=known(0),
        examples=EVERYTHING,
        drawn=drawn,
        near=side_by_side.alike,
    )


def lines_of(level: str, shift: str, data_dir: str) -> list[Line]:
    """Returns the cells of a level, a row of them for each line of its table."""
    config, methods = arms.base(level, shift, data_dir), arms.LEVELS[level].methods
    uses = {TRAINED: BROADCAST, LAST: Use(), "EMA_baseline": Use((EMA_BASELINE,))}
    uses |= {kind: Use(several) for kind, several in by_kind(methods).items()}
    rows = {
        LAST_ITERATE: (arms.BASELINE, BROADCAST),
        RECYCLED: (arms.BASELINE, Use(methods)),
        arms.EMA: (arms.EMA, BROADCAST),
        arms.UTA: (arms.UTA, BROADCAST),
    }
    return [
        Line(row_of(level, shift, name), column, arm, use, chosen_by=by)
        for name, (way, by) in rows.items()
        for arm in [Arm(way, config, tuple(arms.CANDIDATES[level, shift][way]))]
        for column, use in uses.items()
    ]


def row_of(level: str, shift: str, name: str) -> str:
    """Names a line of a level's table."""
    return f"{level} {shift}: {name}"


def command(task: type[Cifar]) -> Command:
    """Returns the command of this study."""
    return study.command(Table, declare, report)


# What it shows.

Rows = Mapping[str, Mapping[str, Line]]


def report(options: Table, results: Results) -> Report:
    """Returns a table for each level, with and without shift; curves; widths."""
    page = Report()
    panels: dict[str, Mapping[str, Line]] = {}
    compared: dict[str, Mapping[str, Comparison]] = {}
    walks: list[tuple[str, int, float]] = []
    parts = list(itertools.product(options.levels, options.shifts))
    for level, shift in parts:
        of_level = _part(results, level, shift)
        if not of_level.seeds:
            continue
        name, title = f"{level}_{shift}", f"{level} {shift}, seeds {of_level.seeds}"
        rows = {x.partition(": ")[2]: own for x, own in of_level.rows().items()}
        page.tables[name] = cells(of_level, rows, title)
        page.data[name] = every_seed(of_level, rows)
        panels[f"{level}, {shift}"] = {
            results.chosen[line].method.title: line
            for column, line in rows[RECYCLED].items()
            if column != TRAINED
        }
        if len(of_level.seeds) < 2:
            continue
        for line, columns in rows.items():
            own, trained = row_of(level, shift, line), columns[TRAINED]
            if runs := error_bars.checkpoints(of_level, trained):
                config = of_level.config(trained)
                assert isinstance(config, CifarConfig)
                which = config, runs, arms.LEVELS[level]
                compared[own] = error_bars.compare(*which)
                moved = error_bars.walks(*which)
                walks += [(own, steps, share) for steps, share in moved.items()]
    shown = results.only(line for lines in panels.values() for line in lines.values())
    page.add_curves("curves", shown, panels)
    if compared:
        page.tables["widths"] = widths.table(compared, alone=True)
        page.data["widths"] = widths.data(compared)
        page.data["walk"] = show.Table(("line", "steps", "over_noise"), walks)
        drawn: dict[str, Mapping[str, Comparison]] = {}
        for folder in map(pathlib.Path, options.beside):
            written = widths.read(folder / "widths.csv")
            (drawn[folder.resolve().name],) = written.values()
        last = {row_of(*part, LAST_ITERATE) for part in parts}
        drawn |= {line: bars for line, bars in compared.items() if line in last}
        page.figures["widths"] = functools.partial(widths.draw, drawn)
    return page


def _part(results: Results, level: str, shift: str) -> Results:
    """Returns the results of a level's table; nothing of one that lacks a choice."""
    keys = {line.key for line in lines_of(level, shift, "")}
    lines = [line for line in results.lines if line.key in keys]
    return results.only(lines if len(lines) == len(keys) else [])


def cells(results: Results, rows: Rows, title: str) -> show.Table:
    """Lays the lines out: mean ± standard deviation in percent (parameter).

    Below each what it gains on the baseline's last iterate, seed by seed: in points, ±
    the standard error; marked where it stands clear of the spread.
    """
    reference = rows[LAST_ITERATE][TRAINED]
    base = results.values(reference)
    shown: list[list[object]] = []
    marked = set()
    for name, columns in rows.items():
        values: list[object] = [name, ""]
        gains: list[object] = ["", "gain"]
        for line in columns.values():
            settings, method, _ = results.chosen[line]
            values[1] = in_words(settings)
            own = results.values(line)
            chosen = f" ({method.parameter})" if len(line.use.methods) > 1 else ""
            values.append(show.mean_and_std(own, METRIC) + chosen)
            found = gain(own, base, METRIC)
            if found.clear and line is not reference:
                marked.add((len(shown) + 1, len(gains)))
            gains.append("" if line is reference else show.in_points(found, METRIC))
        shown += [values, gains]
    return show.Table(["line", "chosen", *rows[LAST_ITERATE]], shown, title, marked)


def every_seed(results: Results, rows: Rows) -> show.Table:
    """Returns every value, for programs."""
    found: dict[tuple[str, ...], show.Values] = {
        (name, in_words(results.chosen[line].settings), column, str(method)): {
            METRIC.name: results.values(line)
        }
        for name, columns in rows.items()
        for column, line in columns.items()
        for method in [results.chosen[line].method]
    }
    labels = ("line", "chosen", "column", "method")
    return show.seed_table(labels, found, [METRIC], results.seeds)


def in_words(settings: Settings) -> str:
    """Says a run's settings in a few words.

    Example:
      >>> in_words(arms.uta(2.0, 3, 200))
      'η=2 k=3 τ=200'
    """
    words = [f"η={settings['learning_rate']:g}"]
    if "k" in settings:
        words.append(f"k={settings['k']}")
    if "ema_decay" in settings:
        words.append(f"β={settings['ema_decay']:g}")
    if "start_round" in settings:
        words.append(f"τ={settings['start_round']}")
    return " ".join(words)
