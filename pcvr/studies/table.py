"""The paper's pCVR table on proxy data: AUC-loss and its spread over seeds.

Every arm has four candidates, chosen on heldout clicks with seeds of their own. EMA_tr
and UTA_tr are there twice: with a rate of their own, and in the two stages of the
paper, where the rate is the one that the baseline has chosen and only the average's
parameters are searched. What was chosen is trained with the seeds of the table and
judged on test clicks. The inference aggregations use the checkpoints of the chosen
baseline. Then comes the baseline without noise, with more of it, and at a higher rate.

The noise seeds are known, so that the figures can be had again: such runs have no
guarantee. Nothing is kept of them but their scores.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from pcvr.task import Pcvr, PcvrConfig
from tff_agg.checkpoints.retention import Retention
from tff_agg.experiment.commands import Command, study
from tff_agg.experiment.study import show
from tff_agg.experiment.study.declare import (
    BROADCAST,
    Arm,
    Line,
    Settings,
    Study,
    Use,
    in_words,
    known,
)
from tff_agg.experiment.study.options import StudyOptions
from tff_agg.experiment.study.report import Report, search_table
from tff_agg.experiment.study.results import Results
from tff_agg.experiment.study.train import in_memory
from tff_agg.fields import described
from tff_agg.recycling.methods import by_kind, parse_methods

PROXY = (
    "a proxy: news sessions stand in for ad clicks, and that the reader went on past "
    "two clicks for a conversion"
)
METRIC = Pcvr.metrics[0]
#: The table has 0, 1, 2, …
SEARCH_SEEDS = (100, 101)
EXAMPLES = 40_000
CURVE_EVERY = 100
#: Averages at inference are of these checkpoints.
KEEP = Retention(keep_last=200, keep_every=10)
BASELINE, EMA, UTA = "DP-SGD", "EMA_tr", "UTA_tr"
TABLE = "ε = 6"

#: What every run shares.
SIZES: Mapping[str, Any] = {
    "rounds": 1000,
    "batch_size": 512,
    "delta": 1e-6,
    "epsilon": 6.0,
}
RATES = (2.0, 4.0, 6.0, 8.0)


def _ema(decay: float, start: int, **more: float) -> Settings:
    rest = {"ema_warm_up": False, **more, "start_round": start}
    return {"averager": "ema", "ema_decay": decay, **rest}


def _uta(k: int, start: int, **more: float) -> Settings:
    return {"averager": "uta", "k": k, **more, "start_round": start}


# From the aggregate a step moves (1 − decay) or 2 / (k + 1) as far: the rates of the
# candidates without a later start make up for it.
_LATE = 700
OWN_RATES: Mapping[str, Sequence[Settings]] = {
    EMA: (
        _ema(0.5, 0, learning_rate=4.0),
        _ema(0.9, 0, learning_rate=20.0),
        _ema(0.5, _LATE, learning_rate=4.0),
        _ema(0.9, _LATE, learning_rate=4.0),
    ),
    UTA: (
        _uta(3, 0, learning_rate=4.0),
        _uta(5, 0, learning_rate=6.0),
        _uta(3, _LATE, learning_rate=4.0),
        _uta(5, _LATE, learning_rate=4.0),
    ),
}
#: At the baseline's rate, whichever it is. The paper has k = 3 and k = 5.
SECOND_STAGE: Mapping[str, Sequence[Settings]] = {
    EMA: [_ema(decay, start) for start in (0, _LATE) for decay in (0.5, 0.9)],
    UTA: [_uta(k, start) for start in (0, _LATE) for k in (3, 5)],
}
INFERENCE = parse_methods("ema:0.5,0.8,0.9,0.95 uta:10,50,100,200 opa:10,25,50,100")
#: What the chosen baseline changes, for the reasons behind the table.
PROBES: Mapping[str, Settings] = {
    "no noise": {"epsilon": None, "noise_multiplier": 0.0},
    "ε = 0.5": {"epsilon": 0.5},
    "rate 8": {"learning_rate": 8.0},
}
PROBED = parse_methods("uta:10,100 opa:10,100")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table(StudyOptions):
    """What the table is made from."""

    out: str = described("results/pcvr", "where scores, table and picture go")
    seeds: int = described(5, "seeds of what was chosen, from 0 on", at_least=1)
    data: str = described(
        "../shared/data/clicks/sessions.parquet", "the file of clicks (docs/pcvr.md)"
    )


def declare(options: Table) -> Study:
    """Returns the study: arms, inference, the second stage, probes."""
    base = PcvrConfig(data=options.data, data_note=PROXY, **SIZES)
    plain = Arm(BASELINE, base, tuple({"learning_rate": rate} for rate in RATES))
    lines = [Line(TABLE, BASELINE, plain)]
    for name, grid in OWN_RATES.items():
        lines.append(Line(TABLE, name, Arm(name, base, tuple(grid))))
    for name, grid in SECOND_STAGE.items():
        name = f"{name}, the baseline's rate"
        arm = Arm(name, base, tuple(grid))
        lines.append(Line(TABLE, name, arm, like=(TABLE, BASELINE)))
    for kind, methods in by_kind(INFERENCE).items():
        lines.append(Line(TABLE, kind, plain, Use(methods), chosen_by=BROADCAST))
    for part, changes in PROBES.items():
        probe = Arm(f"{BASELINE}, {part}", base, (changes,))
        like = (TABLE, BASELINE)
        lines.append(Line(part, BASELINE, probe, like=like))
        lines += [Line(part, m.title, probe, Use((m,)), like=like) for m in PROBED]

    def drawn(line: Line, config: Any) -> Sequence[int]:
        if line.row != TABLE or line.use != BROADCAST:
            return ()
        return range(CURVE_EVERY, config.rounds + 1, CURVE_EVERY)

    return Study(
        Pcvr,
        tuple(lines),
        seeds=tuple(range(options.seeds)),
        train=in_memory(KEEP),
        search_seeds=SEARCH_SEEDS,
        seeding=known(0),
        examples={"heldout": EXAMPLES, "test": EXAMPLES},
        drawn=drawn,
    )


def command(task: type[Pcvr]) -> Command:
    """Returns the command of this study."""
    return study.command(Table, declare, report)


# What it shows.

LABELS = ("part", "arm", "chosen")
#: By how much mean and standard deviation are below the baseline's, and how clearly.
GAINS: show.Columns = {
    "mean": lambda gain, metric: f"{100 * gain.relative:+.2f} %",
    "std": lambda gain, metric: f"{100 * (1 - gain.spread_ratio):+.1f} %",
    "t": lambda gain, metric: f"{gain.t:.1f}",
}


def report(options: Table, results: Results) -> Report:
    """Returns the table, each line beside the baseline of its part, and the curves."""
    page = Report({"search": search_table(results, 3)})
    page.add_lines(
        "table", results, LABELS, functools.partial(labels_of, results),
        gains=GAINS, digits=3,
        title=f"{METRIC.label} on test clicks, {len(results.seeds)} seeds; {PROXY}",
    )  # fmt: skip
    lines = results.rows().get(TABLE, {})
    drawn = {name: line for name, line in lines.items() if line.use == BROADCAST}
    page.add_curves(
        "curves", results, {f"noise of {TABLE}": drawn},
        y_label=f"{METRIC.label} on heldout clicks", title="Proxy data: news sessions",
    )  # fmt: skip
    return page


def labels_of(results: Results, line: Line) -> tuple[str, str, str]:
    """Returns a line's part, its name, and what was chosen for it."""
    settings, method, _ = results.chosen[line]
    chosen = in_words(settings) if line.use == BROADCAST else method.title
    return line.row, line.name, chosen
