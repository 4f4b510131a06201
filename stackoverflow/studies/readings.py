"""The readings of the paper's averages in training, against the baseline.

The paper's equation (1) can be read in three ways (docs/concepts.md): β_t as printed on
the newest checkpoint, β on the newest checkpoint without the schedule, β on the old
average. Each is trained with the server's steps from the aggregate (Algorithm 1) and
with steps from the iterate, where only the gradient is taken at the aggregate; and so
is UTA_tr. All have tree noise.

With the paper's settings the question is which reading the published pattern fits: at
ε = 18.9 and 8.2 EMA_tr has the baseline's clip norm and rate, and gains. With settings
chosen for each from grids of one size it is what an average in training gains.

A published figure of EMA_tr or UTA_tr is that of its best inference aggregation. Here
every run is judged by what it broadcasts, and by the mean of as many of these models
for all (UTA_inf), with nothing to choose. Differences are paired by seed.

On the mailing lists (--scale=small) a run has 1,000 rounds of 100 users. On two quiet
cores it takes about three minutes with 4 sentences of a user, seven with 16, eighteen
with 64; --dry_run measures it. The paper's settings are 9 runs for each seed and level,
so an hour for one seed with 16 sentences; --readings and --steps_from take fewer.
Settings of the arms' own are 36 runs of a search, and at most 18 for each seed. Stop it
at any time: runs that have ended are not trained again, nor when seeds are added.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any

from stackoverflow.studies.comparisons import (
    LABELS,
    METRICS,
    NO_NOISE,
    PUBLISHED,
    TREE,
    Compared,
    Training,
    arm,
    arm_of,
    as_published,
    labels_of,
    study_of,
)
from stackoverflow.studies.fair import GRIDS, k_of
from stackoverflow.studies.scales import BASELINE, EMA, SCALES, UTA, refuse_none
from stackoverflow.task import StackOverflow, StackOverflowConfig
from tff_agg.experiment.commands import Command, study
from tff_agg.experiment.study import show
from tff_agg.experiment.study.declare import BROADCAST, Line, Study, Use
from tff_agg.experiment.study.report import Report, search_table
from tff_agg.experiment.study.results import Results
from tff_agg.experiment.study.statistics import Gain
from tff_agg.fields import described
from tff_agg.recycling.metrics import Metric

#: The paper's, of EMA_tr on StackOverflow.
BETA = 0.95
CHOSEN = "chosen"
ORIGINS = ("aggregate", "iterate")
#: What β is the weight of, and whether it has the paper's schedule.
EMAS: Mapping[str, Mapping[str, Any]] = {
    "printed": {"ema_weight": BETA, "ema_warm_up": True},
    "newest": {"ema_weight": BETA, "ema_warm_up": False},
    "old_average": {"ema_decay": BETA, "ema_warm_up": True},
}
READINGS = (*EMAS, UTA)
ACCOUNTED, AS_THE_PAPER = "accounted", "paper"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Readings(Compared):
    """What is read, and compared."""

    out: str = described("results/readings", "where scores, tables and pictures go")
    epsilons: tuple[str, ...] = described(
        ("18.9", "8.2"), "the privacy levels; the paper's settings need noise", GRIDS
    )
    settings: tuple[str, ...] = described(
        ("published", CHOSEN), "clip norm and rates: the paper's, or chosen for each",
        ("published", CHOSEN),
    )  # fmt: skip
    readings: tuple[str, ...] = described(
        READINGS, "what is trained beside the baseline", READINGS
    )
    steps_from: tuple[str, ...] = described(
        ORIGINS, "where the server's steps start", ORIGINS
    )
    noise: str = described(
        ACCOUNTED,
        "accounted: what ε takes in this population; paper: as much as the paper's "
        "runs have, for which this population is too small, so that ε is larger",
        (ACCOUNTED, AS_THE_PAPER),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_none(
            settings=self.settings, readings=self.readings, steps_from=self.steps_from
        )

    def base(self, level: str, name: str) -> StackOverflowConfig:
        """Returns a training in the shape, and with the noise, that was asked for."""
        config = super().base(level, name)
        if self.noise == ACCOUNTED or level == "inf":
            return config
        of_paper = self.file(level, name, "full").build_plan().per_node_multiplier
        return dataclasses.replace(config, epsilon=None, per_node_multiplier=of_paper)


def trainings(options: Readings) -> dict[str, Training]:
    """Returns the ways of training by name, and what the paper calls each of them.

    A step from the aggregate of EMA_tr moves it by a share of the step that rises from
    2/11 to 0.95 as printed, and falls from 9/11 to a twentieth on the old average: no
    one pace makes that the baseline, and a pace between both is taken.
    """
    found = {BASELINE: Training({"averager": "last"})}
    for reading, origin in itertools.product(options.readings, options.steps_from):
        changes: dict[str, Any] = {"step_from": origin}
        if reading == UTA:
            changes |= {"averager": "uta", "k": k_of(shift=options.shift)}
        else:
            changes |= {"averager": "ema", **EMAS[reading]}
        falls = reading == "old_average" and origin == "aggregate"
        found[_name(reading, origin)] = Training(changes, 5.0 if falls else 1.0)
    return found


def _name(reading: str, origin: str) -> str:
    what = UTA if reading == UTA else f"{EMA} {reading.replace('_', ' ')}"
    return f"{what}, from the {origin}"


def _paper_name(name: str) -> str:
    """Returns what the paper calls a training."""
    return next(known for known in (BASELINE, EMA, UTA) if name.startswith(known))


def declare(options: Readings) -> Study:
    """Returns the study: for each level two lines for each training and settings."""
    # The same window for all: nothing is chosen, so that nothing is trained for it.
    (*_, window, _) = SCALES[options.scale].uta
    after = Use((window,), BROADCAST.series)
    lines: list[Line] = []
    for level in options.epsilons:
        base = options.base(level, BASELINE)
        noise = NO_NOISE if level == "inf" else TREE
        arms = []
        for name, training in trainings(options).items():
            if "published" in options.settings and noise == TREE:
                file = options.file(level, _paper_name(name), "full")
                own = as_published(base, name, training, file)
                arms.append((f"{name}, {PUBLISHED}", own, PUBLISHED))
            if CHOSEN in options.settings:
                arms.append((name, arm(base, name, training, noise, GRIDS[level]), ""))
        for name, own, note in sorted(arms, key=lambda of: of[2] == ""):
            lines.append(Line(level, f"{name}: broadcast", own, BROADCAST, note=note))
            lines.append(Line(level, f"{name}: UTA_inf", own, after, note=note))
    return study_of(options, lines)


def command(task: type[StackOverflow]) -> Command:
    """Returns the command of this study."""
    return study.command(Readings, declare, report)


# What it shows.


def report(options: Readings, results: Results) -> Report:
    """Returns, for each level, the table with the gains over the baseline."""
    page = Report()
    for level, lines in results.rows().items():
        own = results.only(lines.values())
        _add(page, own, level, titled(options.noise, level, len(own.seeds)))
    return page


def titled(noise: str, level: str, seeds: int) -> str:
    """Names a level. With the paper's noise in a small population ε is not its own.

    Example:
      >>> titled('paper', '8.2', 3)
      'as much noise as in the paper at ε = 8.2, 3 seeds'
    """
    whose = "as much noise as in the paper at " if noise == AS_THE_PAPER else ""
    return f"{whose}ε = {level.replace('inf', '∞')}, {seeds} seeds"


def _add(page: Report, results: Results, level: str, title: str) -> None:
    """Adds what is shown of a privacy level."""
    name = f"eps{level}"
    if any(len(line.arm.grid) > 1 for line in results.lines):
        page.tables[f"search_{name}"] = search_table(results)
    page.add_curves(f"curves_{name}", results, panels(results), title=title, bottom=0)
    baselines = {(x.note, x.use): x for x in results.lines if arm_of(x)[0] == BASELINE}
    over = {
        line: baselines[line.note, line.use]
        for line in results.lines
        if line not in baselines.values() and (line.note, line.use) in baselines
    }
    page.add_lines(
        f"table_{name}", results, LABELS, functools.partial(labels_of, results),
        METRICS, {"over the baseline": over}, gains_in=METRICS, title=title,
    )  # fmt: skip
    named = {_drawn(results, line): line for line in results.lines}
    page.add_points(f"table_{name}", results, named, title=title)
    published = [line for line in results.lines if line.note]
    if published and results.seeds:
        page.tables[f"pattern_{name}"] = pattern(results.only(published), title)


def _drawn(results: Results, line: Line) -> str:
    """Names a line in the picture, without what all have or the arm has always."""
    name, _, clip, rate, why, model = labels_of(results, line)
    return f"{name}, {why if line.note else f'clip {clip}, rate {rate}'}: {model}"


def panels(results: Results) -> dict[str, dict[str, Line]]:
    """Returns what is broadcast, a panel for each kind of settings."""
    found: dict[str, dict[str, Line]] = {}
    for line in results.lines:
        if line.use == BROADCAST:
            panel = found.setdefault(f"settings: {line.note or CHOSEN}", {})
            panel[arm_of(line)[0]] = line
    return found


def pattern(results: Results, title: str) -> show.Table:
    """Returns whether readings fit what the paper reports at its own settings.

    It reports that an average in training, with one at inference on top, gains over the
    last iterate of the baseline.
    """

    def labels(line: Line) -> tuple[str, ...]:
        return arm_of(line)[0], "last" if line.use == BROADCAST else "UTA_inf"

    def is_compared(line: Line) -> bool:
        is_baseline = arm_of(line)[0] == BASELINE
        return is_baseline == (line.use == BROADCAST)

    fitting, page = results.only(filter(is_compared, results.lines)), Report()
    page.add_lines(
        "pattern", fitting, ("training", "model"), labels, METRICS,
        {"over the baseline": fitting.over_first()},
        gains={"gain": show.in_percent, "fits": fits}, gains_in=METRICS,
        title=f"{title}: does it gain, as published?",
    )  # fmt: skip
    return page.tables["pattern"]


def fits(gain: Gain, metric: Metric) -> str:
    """Says whether a gain is what the paper reports, as far as the seeds tell."""
    if not gain.clear:
        return "open"
    return "yes" if gain.mean > 0 else "no"
