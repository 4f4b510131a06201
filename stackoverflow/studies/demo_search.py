"""Chooses the demo's hyperparameters: on validation, with seeds that the demo has not.

Every arm has a grid of six candidates, and every candidate is trained with the same
seeds in the same settings at the demo's sizes. A candidate's score is its mean accuracy
on the validation sample over the last period of the shift, so that no phase of it
counts more than another. The runs are judged twice: by what they broadcast, and by the
mean of their last checkpoints (UTA_inf). The test sample is left alone.

Nothing is kept of the runs but their scores, from which a stopped search goes on.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from statistics import fmean
from typing import Any, NamedTuple

from stackoverflow.studies.demo import (
    EXAMPLES,
    LAST,
    METRIC,
    SCHEDULE_FREE,
    UTA_INF,
    Sizes,
    in_last_period,
)
from stackoverflow.task import StackOverflow
from tff_agg.experiment.commands import Command, study
from tff_agg.experiment.study import show
from tff_agg.experiment.study.declare import (
    BROADCAST,
    Arm,
    Line,
    Study,
    in_words,
    known,
)
from tff_agg.experiment.study.report import Report
from tff_agg.experiment.study.results import Results
from tff_agg.experiment.study.show import Table
from tff_agg.experiment.study.train import in_memory
from tff_agg.fields import described

#: The demo has 0, 1, 2, …
FIRST_SEED = 100
#: What every candidate is judged by: the column's name in the file, and the use.
USES = {"broadcast": BROADCAST, "recycled": UTA_INF}


class Grid(NamedTuple):
    """An arm: what its candidates share, and each of them."""

    shared: Mapping[str, Any]
    candidates: tuple[Mapping[str, Any], ...]


def _grid(
    names: str, shared: Mapping[str, Any], *rows: tuple[float, ...], **fixed: Any
) -> Grid:
    candidates = (fixed | dict(zip(names.split(), row, strict=True)) for row in rows)
    # Candidates say what is fixed as well, for the words of the table.
    return Grid({**shared, **fixed}, tuple(candidates))


_RATE = "server_momentum server_learning_rate"
# Rates are a factor of two apart.
_WITH_AND_WITHOUT_MOMENTUM = (
    *((0.9, 0.25), (0.9, 0.5), (0.9, 1.0)),
    *((0.0, 2.5), (0.0, 5.0), (0.0, 10.0)),
)
GRIDS: Mapping[str, Grid] = {
    "baseline": _grid(
        _RATE,
        LAST,
        *((0.9, 0.25), (0.9, 0.5), (0.9, 1.0)),
        *((0.95, 0.125), (0.95, 0.25), (0.95, 0.5)),
    ),
    "schedule-free": _grid(
        "server_learning_rate gamma",
        SCHEDULE_FREE,
        *itertools.product((2.0, 4.0, 8.0), (2.0, 6.0)),
        server_momentum=SCHEDULE_FREE["server_momentum"],
    ),
    "UTA_tr": _grid(_RATE, {"averager": "uta"}, *_WITH_AND_WITHOUT_MOMENTUM, k=3),
    "EMA_tr": _grid(
        _RATE, {"averager": "ema"}, *_WITH_AND_WITHOUT_MOMENTUM, ema_decay=0.5
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoSearch(Sizes):
    """What is tried."""

    out: str = described("results/demo_search", "where everything goes")
    seeds: int = described(
        2, f"seeds of each candidate, from {FIRST_SEED} on", at_least=1
    )
    processes: int = described(2, "runs side by side on this machine", at_least=1)
    arms: tuple[str, ...] = described(tuple(GRIDS), "the arms", tuple(GRIDS))


def declare(options: DemoSearch) -> Study:
    """Returns the search: two lines for each arm and setting."""
    arms = [
        (setting, Arm(name, options.config(setting, **grid.shared), grid.candidates))
        for name, grid in ((name, GRIDS[name]) for name in options.arms)
        for setting in options.settings
    ]
    return Study(
        StackOverflow,
        tuple(
            Line(setting, f"{arm.name}: {column}", arm, use)
            for setting, arm in arms
            for column, use in USES.items()
        ),
        seeds=(),
        search_seeds=tuple(range(FIRST_SEED, FIRST_SEED + options.seeds)),
        train=in_memory(),
        seeding=known(1000),
        rounds=in_last_period,
        examples=EXAMPLES,
        final=None,
    )


def command(task: type[StackOverflow]) -> Command:
    """Returns the command of the search."""
    return study.command(DemoSearch, declare, report)


# What it shows.


def report(options: DemoSearch, results: Results) -> Report:
    """Returns a row for each candidate, the best of its arm marked; and all runs."""
    rows: list[list[str]] = []
    marked = set()
    data: list[tuple[object, ...]] = []
    seeds = results.study.search_seeds
    for (name, setting), scores in scores_of(results).items():
        for number, column in enumerate(USES):
            of_use = {c: values[column] for c, values in scores.items()}
            place = list(scores).index(show.best(of_use, METRIC))
            marked.add((len(rows) + place, 3 + number))
        for candidate, values in scores.items():
            means = [METRIC.show(fmean(values[column])) for column in USES]
            rows.append([name, setting, candidate, *means, str(len(seeds))])
            by_seed = zip(seeds, *values.values(), strict=True)
            data += [
                (name, setting, seed, candidate, *map(METRIC.show, both))
                for seed, *both in by_seed
            ]
    header = ["arm", "setting", "candidate", "broadcast %", "UTA_inf %", "seeds"]
    columns = ["arm", "setting", "seed", "candidate", *USES]
    title = f"{METRIC.label} on validation data, the best of an arm's candidates marked"
    return Report(
        {"demo_search": Table(header, rows, title, marked)},
        {"demo_search": Table(columns, data)},
        {},
    )


def scores_of(
    results: Results,
) -> dict[tuple[str, str], dict[str, dict[str, list[float]]]]:
    """Returns by (arm, setting) and candidate, for each use its value by seed.

    Candidates that have failed are left out.
    """
    scores: dict[tuple[str, str], dict[str, dict[str, list[float]]]] = {}
    for line in results.lines:
        of_arm = scores.setdefault((line.arm.name, line.row), {})
        column = next(name for name, use in USES.items() if use == line.use)
        for settings, _, values in results.candidates(line):
            of_arm.setdefault(in_words(settings), {})[column] = values
    return scores
