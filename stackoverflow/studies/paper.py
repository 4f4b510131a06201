"""The paper's two tables on StackOverflow, its pictures, and the error bars.

A row of a table is a privacy level. Its runs are three trainings (baseline, EMA_tr,
UTA_tr) with several seeds each, saved, from the paper's flag files at one of three
scales. Every inference aggregation is chosen on validation data, by the mean over the
table's own seeds, and only the chosen one is tested. A training's cell is its best
inference aggregation on top, chosen in the same way.

Noise seeds are secret, so that the guarantee holds; at the scale 'tiny', whose data are
made up, they are known, and the table is the same everywhere.

Figure 2 of the paper is `figure2.png`: how the baseline's checkpoints and their
averages fare over the last rounds. Figure 3 is the same without noise.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from stackoverflow.studies import widths
from stackoverflow.studies.scales import (
    BASELINE,
    EPSILONS,
    SCALES,
    TABLES,
    TRAININGS,
    Scale,
    configuration,
    file_name,
    published,
    refuse_none,
    store_of,
)
from stackoverflow.task import StackOverflow
from tff_agg.experiment.commands import Command, study
from tff_agg.experiment.study import show
from tff_agg.experiment.study.declare import (
    Arm,
    Line,
    Study,
    Use,
    known,
    secret,
)
from tff_agg.experiment.study.options import StudyOptions
from tff_agg.experiment.study.report import UNFINISHED, Report
from tff_agg.experiment.study.results import Results
from tff_agg.experiment.study.train import saved
from tff_agg.fields import described
from tff_agg.recycling.methods import EMA_BASELINE, LAST, Method

METRIC = StackOverflow.metrics[0]
#: The column of earlier work: its decay is not chosen.
NOT_TUNED = "EMA_baseline"
#: The columns of the baseline's recycled checkpoints.
RECYCLED = (NOT_TUNED, "EMA_inf", "UTA_inf", "OPA", "OMV")
COLUMNS = (*TRAININGS, *RECYCLED)
SERIES = "aggregate"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paper(StudyOptions):
    """Which part of the tables."""

    out: str = described("results/paper", "where runs, tables and pictures go")
    seeds: int = described(5, "seeds of each training, from 0 on", at_least=1)
    scale: str = described("tiny", "how large the runs are", tuple(SCALES))
    store: str = described("", "the token store; tiny: empty for embedded data")
    tables: tuple[str, ...] = described(tuple(TABLES), "the tables", TABLES)
    epsilons: tuple[str, ...] = described(EPSILONS, "the rows of a table", EPSILONS)
    trainings: tuple[str, ...] = described(
        tuple(TRAININGS),
        "the trainings of a row; gains, and columns of the baseline's recycled "
        "checkpoints, need the baseline",
        TRAININGS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_none(
            tables=self.tables, epsilons=self.epsilons, trainings=self.trainings
        )

    def prepared(self) -> "Paper":
        """Returns the options with a token store."""
        return dataclasses.replace(
            self, store=store_of(self.scale, self.store, self.out)
        )

    @property
    def drawn(self) -> str:
        """The training whose checkpoints the pictures show."""
        return BASELINE if BASELINE in self.trainings else self.trainings[0]


def uses(scale: Scale) -> dict[str, Use]:
    """Returns the inference aggregations by the name of their column.

    Of equals the first is chosen.
    """
    grids: dict[str, tuple[Method, ...]] = {
        "last": (LAST,),
        "UTA_inf": scale.uta,
        "EMA_inf": scale.ema,
        NOT_TUNED: (EMA_BASELINE,),
        "OPA": tuple(Method("opa", k) for k in scale.outputs),
        "OMV": tuple(Method("omv", k) for k in scale.outputs),
    }
    return {name: Use(methods, SERIES) for name, methods in grids.items()}


def declare(options: Paper) -> Study:
    """Returns the study: all cells of each training, and its best one."""
    scale = SCALES[options.scale]
    every = uses(scale)
    methods = itertools.chain.from_iterable(use.methods for use in every.values())
    any_of_them = Use(tuple(dict.fromkeys(methods)), SERIES)
    lines: list[Line] = []
    for table, level, training in itertools.product(
        options.tables, options.epsilons, options.trainings
    ):
        config = configuration(
            options.scale, level, training, shift=TABLES[table], store=options.store
        )
        row, arm = row_of(table, level), Arm(training, config)
        lines += [Line(row, f"{training}/{name}", arm, u) for name, u in every.items()]
        if training != BASELINE:
            lines.append(Line(row, training, arm, any_of_them))

    def counted(config: Any) -> tuple[int, ...]:
        return scale.rounds(shift=config.pds)(config)

    def drawn(line: Line, config: Any) -> tuple[int, ...]:
        if line.arm.name != options.drawn or line.name == line.arm.name:
            return ()
        return scale.drawn(shift=config.pds)(config)

    return Study(
        StackOverflow,
        tuple(lines),
        seeds=tuple(range(options.seeds)),
        train=saved(),
        seeding=known(1000) if scale.made_up else secret,
        rounds=counted,
        examples={"heldout": scale.examples, "test": scale.examples},
        drawn=drawn,
    )


def row_of(table: str, level: str) -> str:
    """Names a row of a table."""
    return f"{table} {level}"


def command(task: type[StackOverflow]) -> Command:
    """Returns the command of this study."""
    return study.command(Paper, declare, report)


# What it shows.

LABELS = ("ε", "training", "inference", "method")


def report(options: Paper, results: Results) -> Report:
    """Returns the tables, with every gain, the pictures and the error bars."""
    page = Report()
    if not results.seeds:
        page.text = UNFINISHED
        return page
    for table in options.tables:
        _add_table(page, options, results, table)
    for name, without in (("figure2", False), ("figure3", True)):
        levels = [level for level in options.epsilons if (level == "inf") == without]
        page.add_curves(name, results, panels(options, results, levels))
    if len(results.seeds) > 1:
        page.tables["widths"] = error_bars(options, results)
    return page


def _add_table(page: Report, options: Paper, results: Results, table: str) -> None:
    """Adds a table in the paper's layout, every cell's values, and every gain."""
    rows = {row_of(table, level): _shown(level) for level in options.epsilons}

    def labels(line: Line) -> tuple[str, ...]:
        name = line.name.removeprefix(f"{line.arm.name}/")
        return rows[line.row], line.arm.name, name, str(results.chosen[line].method)

    own = [line for line in results.lines if line.row in rows]
    every = results.only(line for line in own if line.name != line.arm.name)
    over: dict[Line, Line] = {}
    if BASELINE in options.trainings:
        last = {row: every.line(row, f"{BASELINE}/last") for row in rows}
        over = {line: last[line.row] for line in every.lines if line != last[line.row]}
    whole = Report()
    metrics = StackOverflow.metrics
    whole.add_lines("", every, LABELS, labels, metrics, {"": over}, gains_in=metrics)
    page.tables[f"table_{table}"] = layout(options, results, table)
    page.data[f"table_{table}"] = seeds_of_cells(options, results, table)
    page.data[f"all_cells_{table}"] = whole.data[""]
    if over:
        page.details[f"gains_{table}"] = whole.tables[""]


def layout(options: Paper, results: Results, table: str) -> show.Table:
    """Returns a table in the paper's layout, at full scale with its own figures."""
    expected: Mapping[str, Mapping[str, str]] = {}
    if options.scale == "full":
        expected = {_shown(e): row for e, row in published(table).items()}
    cells = cells_of(options, results, table)
    trivial = results.trivial().get(METRIC.name)
    built = show.cell_table("ε", cells, METRIC, expected=expected, trivial=trivial)
    return built._replace(title=_TITLES[table])


def seeds_of_cells(options: Paper, results: Results, table: str) -> show.Table:
    """Returns the same, a row for each cell and seed."""
    values: dict[tuple[str, ...], show.Values] = {
        (level, column): {METRIC.name: of_seeds}
        for level, row in cells_of(options, results, table).items()
        for column, of_seeds in row.items()
    }
    return show.seed_table(("ε", "column"), values, [METRIC], results.seeds)


def cells_of(
    options: Paper, results: Results, table: str
) -> dict[str, dict[str, list[float]]]:
    """Returns the values of each cell by seed, by privacy level and column."""
    cells: dict[str, dict[str, list[float]]] = {}
    names = {name: name for name in options.trainings}
    if BASELINE in options.trainings:
        names |= {BASELINE: f"{BASELINE}/last"}
        names |= {name: f"{BASELINE}/{name}" for name in RECYCLED}
    for level in options.epsilons:
        lines = results.rows()[row_of(table, level)]
        cells[_shown(level)] = {
            column: results.values(lines[names[column]])
            for column in COLUMNS
            if column in names
        }
    return cells


def panels(
    options: Paper, results: Results, levels: Sequence[str]
) -> dict[str, dict[str, Line]]:
    """Returns what is drawn of the last rounds, a panel for each row of the tables."""
    drawn: dict[str, dict[str, Line]] = {}
    for table, level in itertools.product(options.tables, levels):
        panel = drawn.setdefault(f"{_TITLES[table]}, ε = {_shown(level)}", {})
        for name in ("last", *RECYCLED):
            line = results.line(row_of(table, level), f"{options.drawn}/{name}")
            method = results.chosen[line].method
            panel[name if name in ("last", NOT_TUNED) else method.title] = line
    return drawn


def error_bars(options: Paper, results: Results) -> show.Table:
    """Returns error bars of checkpoints against independent runs, by training."""
    scale = SCALES[options.scale]
    lines = {
        file_name(level, training, shift=TABLES[table]): results.line(
            row_of(table, level), f"{training}/last"
        )
        for table, level, training in itertools.product(
            options.tables, options.epsilons, options.trainings
        )
    }
    return widths.table(
        options,
        results,
        lines,
        separations=scale.separations,
        examples=scale.interval_examples,
    )


_TITLES = {"stackoverflow": "Without a shift", "pds": "With the periodic shift"}


def _shown(level: str) -> str:
    return level.replace("inf", "∞")
