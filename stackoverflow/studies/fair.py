"""The fair comparison: every arm chooses its clip norm and server rate for itself.

The paper's rows differ in more than the aggregation: at ε = 18.9 UTA_tr trains with
clip norm 0.3 and server rate 2, the baseline with 1.0 and 0.5. Here every arm (a
training aggregation, with tree noise or with BLT noise made for the participation) has
a grid of both, as large as the others', scored on validation data with a seed of its
own. It chooses twice: by the model that is broadcast and by the mean of the last
checkpoints (UTA_inf). What was chosen is then trained with the seeds of the table and
tested, beside the paper's own settings.

The steps lead from the paper's recipe to whatever was best on validation data: the
baseline gets settings of its own, its checkpoints are averaged, and better noise takes
the place of the tree.

Nothing is kept of the runs but their scores. Their noise seeds are known, so that they
have the noise of ε but no guarantee.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from stackoverflow.studies.comparisons import (
    BLT,
    INDEPENDENT,
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
    panels,
    str_of,
    study_of,
)
from stackoverflow.studies.scales import BASELINE, EMA, SCALES, UTA, refuse_none
from stackoverflow.task import StackOverflow
from tff_agg.experiment.commands import Command, study
from tff_agg.experiment.study.declare import BROADCAST, Line, Study, Use
from tff_agg.experiment.study.report import Report, search_table
from tff_agg.experiment.study.results import Results
from tff_agg.fields import described

#: What the paper has trained; what everything is compared with comes first.
TRAINED_BY_THE_PAPER = (BASELINE, UTA)
FREE, DP_SGD = "schedule-free", "DP-SGD"
ARMS = (BASELINE, UTA, EMA, FREE, DP_SGD)
#: By privacy level, (clip norm, server rate of the baseline).
GRIDS: Mapping[str, Sequence[tuple[float, float]]] = {
    "inf": ((0.3, 2.0), (1.0, 0.5), (1.0, 1.0), (1.0, 2.0)),
    "18.9": ((0.3, 0.5), (0.3, 1.0), (0.3, 2.0), (1.0, 0.5)),
    "8.2": ((0.3, 0.25), (0.3, 0.5), (0.3, 1.0), (1.0, 0.25)),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fair(Compared):
    """What is compared."""

    out: str = described("results/fair", "where scores, tables and pictures go")
    arms: tuple[str, ...] = described(ARMS, "the ways of training", ARMS)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_none(arms=self.arms)


def trainings(*, shift: bool) -> dict[str, Training]:
    """Returns the ways of training by name.

    A step from the aggregate of EMA_tr moves it by 1 − β of the step, and without
    momentum 0.95 a step goes a twentieth as far: at a rate as many times higher both
    move as fast as the baseline. UTA_tr has the baseline's rates. Its steps are
    shorter, too, but at twice the rate it diverges: beside momentum the delay of its
    mean makes it unstable.
    """
    decay = 0.95
    # With a warm-up its first steps would be 18 times as long.
    moving = {"averager": "ema", "ema_decay": decay, "ema_warm_up": False}
    free = {"averager": "schedule_free", "step_from": "iterate"}
    return {
        BASELINE: Training({"averager": "last"}),
        UTA: Training({"averager": "uta", "k": k_of(shift=shift)}),
        EMA: Training(moving, round(1 / (1 - decay))),
        FREE: Training(free | {"server_momentum": 0.0, "gamma": 8.0}, 20.0),
        DP_SGD: Training({"averager": "last"}, noise=INDEPENDENT),
    }


def k_of(*, shift: bool) -> int:
    """Returns how many checkpoints the paper's UTA_tr averages."""
    return 5 if shift else 3


def noises(level: str, training: Training) -> tuple[str, ...]:
    """Returns the kinds of noise of a training at a privacy level."""
    if training.noise is not None:
        # Without noise it is the baseline.
        return () if level == "inf" else (training.noise,)
    return (NO_NOISE,) if level == "inf" else (TREE, BLT)


def declare(options: Fair) -> Study:
    """Returns the study: for each level the paper's lines, then two for each arm."""
    uta = Use(SCALES[options.scale].uta)
    every = trainings(shift=options.shift)
    ways = {name: way for name, way in every.items() if name in options.arms}
    lines: list[Line] = []
    for level in options.epsilons:
        base = options.base(level, BASELINE)
        for name in TRAINED_BY_THE_PAPER:
            # Without noise the paper's rates are too high for a small population.
            if level == "inf" or name not in ways:
                continue
            file = options.file(level, name, "full")
            own = as_published(base, name, ways[name], file)
            lines.append(Line(level, f"{name}, {PUBLISHED}", own, note=PUBLISHED))
        for name, training in ways.items():
            for noise in noises(level, training):
                own = arm(base, name, training, noise, GRIDS[level])
                lines.append(Line(level, f"{own.name}: broadcast", own, BROADCAST))
                lines.append(Line(level, f"{own.name}: UTA_inf", own, uta))
    return study_of(options, lines)


def command(task: type[StackOverflow]) -> Command:
    """Returns the command of this study."""
    return study.command(Fair, declare, report)


# What it shows.

RECIPE = "the paper's recipe"
OWN = "clip norm and rate chosen here"
RECYCLED = "mean of the last checkpoints (UTA_inf)"
OF_DP_SGD = (
    f"{DP_SGD}: the baseline with independent noise. Its ε is that of users who take "
    "part as often as they do in the other arms, and sampling amplifies nothing: the "
    "cohorts are not drawn by chance alone."
)


def report(options: Fair, results: Results) -> Report:
    """Returns, for each level, the search, the table and the steps to the best."""
    page = Report(text=OF_DP_SGD if DP_SGD in options.arms else "")
    for level, lines in results.rows().items():
        _add(page, results.only(lines.values()), level)
    return page


def _add(page: Report, results: Results, level: str) -> None:
    """Adds what is shown of a privacy level."""
    name = f"eps{level}"
    page.tables[f"search_{name}"] = search_table(results)
    title = f"ε = {level.replace('inf', '∞')}, {len(results.seeds)} seeds"
    page.add_curves(f"curves_{name}", results, panels(results), title=title, bottom=0)
    labels = functools.partial(labels_of, results)
    over = {"over the first line": results.over_first()}
    named = {str_of(results, line): line for line in results.lines}
    page.add_lines(f"table_{name}", results, LABELS, labels, METRICS, over, title=title)
    page.add_points(f"table_{name}", results, named, title=title)
    if not results.seeds or not (named := steps(results)):
        return
    names, own = (
        {line: step for step, line in named.items()},
        results.only(named.values()),
    )
    over = {"over the first line": own.over_first()}
    if reference := named.get(RECYCLED):
        later = own.lines[own.lines.index(reference) + 1 :]
        over["over the baseline's UTA_inf"] = dict.fromkeys(later, reference)
    page.add_lines(
        f"steps_{name}", own, ("step", *LABELS),
        lambda line: (names[line], *labels(line)), METRICS, over, title=title,
    )  # fmt: skip
    page.add_points(f"steps_{name}", own, named, title=title)


def steps(results: Results) -> dict[str, Line]:
    """Returns the lines of a level that lead to its best, by the step's name."""
    named: dict[str, Line] = {}
    chosen = []
    for line in results.lines:
        arm, noise = arm_of(line)
        if line.note:
            named.setdefault(RECIPE, line)
            continue
        chosen.append(line)
        if arm == BASELINE:
            recycled = line.use != BROADCAST
            if noise == arm_of(chosen[0])[1]:
                named[RECYCLED if recycled else OWN] = line
            elif recycled:
                first = arm_of(chosen[0])[1]
                named[f"{noise} noise instead of {first} noise, UTA_inf"] = line
    if not chosen:
        return {}
    best = results.best(chosen)
    if best not in named.values():
        arm, noise = arm_of(best)
        kind = "" if best.use == BROADCAST else ", UTA_inf"
        named[f"{arm}, {noise} noise{kind}"] = best
    return named
