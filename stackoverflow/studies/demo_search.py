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

from stackoverflow.studies.demo import (
    EXAMPLES,
    LAST,
    SCHEDULE_FREE,
    UTA_INF,
    Sizes,
    in_last_period,
)
from stackoverflow.task import StackOverflow
from tff_agg.experiment.commands import Command, study
from tff_agg.experiment.study.declare import (
    BROADCAST,
    Arm,
    Line,
    Settings,
    Study,
    known,
)
from tff_agg.experiment.study.report import Report, candidate_table, search_table
from tff_agg.experiment.study.results import Results
from tff_agg.experiment.study.train import in_memory
from tff_agg.fields import described

#: The demo has 0, 1, 2, …
FIRST_SEED = 100
#: What every candidate is judged by.
USES = {"broadcast": BROADCAST, "recycled": UTA_INF}


def _rates(*pairs: tuple[float, float], **fixed: float) -> tuple[Settings, ...]:
    """Returns candidates by server momentum and rate.

    They say what is fixed as well, for the words of the table.
    """
    return tuple(
        {**fixed, "server_momentum": momentum, "server_learning_rate": rate}
        for momentum, rate in pairs
    )


# Rates are a factor of two apart.
_WITH_AND_WITHOUT_MOMENTUM = (
    *((0.9, 0.25), (0.9, 0.5), (0.9, 1.0)),
    *((0.0, 2.5), (0.0, 5.0), (0.0, 10.0)),
)
#: By the arm's name, what its candidates share, and each of them.
GRIDS: Mapping[str, tuple[Settings, tuple[Settings, ...]]] = {
    "baseline": (
        LAST,
        _rates(
            *((0.9, 0.25), (0.9, 0.5), (0.9, 1.0)),
            *((0.95, 0.125), (0.95, 0.25), (0.95, 0.5)),
        ),
    ),
    "schedule-free": (
        SCHEDULE_FREE,
        tuple(
            {"server_momentum": 0.0, "server_learning_rate": rate, "gamma": gamma}
            for rate in (2.0, 4.0, 8.0)
            for gamma in (2.0, 6.0)
        ),
    ),
    "UTA_tr": ({"averager": "uta"}, _rates(*_WITH_AND_WITHOUT_MOMENTUM, k=3)),
    "EMA_tr": (
        {"averager": "ema", "ema_decay": 0.5},
        _rates(*_WITH_AND_WITHOUT_MOMENTUM, ema_decay=0.5),
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
    lines = []
    for name, setting in itertools.product(options.arms, options.settings):
        shared, candidates = GRIDS[name]
        arm = Arm(name, options.config(setting, **shared), candidates)
        lines += [Line(setting, f"{name}: {of}", arm, use) for of, use in USES.items()]
    return Study(
        StackOverflow,
        tuple(lines),
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


def report(options: DemoSearch, results: Results) -> Report:
    """Returns every candidate, the best of each arm marked for either use."""
    name = "demo_search"
    return Report({name: search_table(results)}, {name: candidate_table(results)})
