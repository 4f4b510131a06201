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
import itertools
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from stackoverflow.studies.scales import (
    BASELINE,
    EMA,
    EPSILONS,
    SCALES,
    UTA,
    configuration,
    refuse_none,
    store_of,
)
from stackoverflow.task import StackOverflow, StackOverflowConfig
from tff_agg.experiment.commands import Command, study
from tff_agg.experiment.study import figures, show
from tff_agg.experiment.study.declare import (
    BROADCAST,
    Arm,
    Line,
    Question,
    Settings,
    Study,
    Use,
    known,
    validated,
)
from tff_agg.experiment.study.options import StudyOptions
from tff_agg.experiment.study.report import Report, values_of
from tff_agg.experiment.study.results import Curve, Results
from tff_agg.experiment.study.show import Table
from tff_agg.experiment.study.train import in_memory
from tff_agg.fields import described
from tff_agg.recycling.methods import Method

METRIC = StackOverflow.metrics[0]
# Perplexity says what the loss says.
METRICS = StackOverflow.metrics[:3]
#: The tables have 0, 1, 2, …
SEARCH_SEED = 100
PUBLISHED = "as published"
#: What the paper has trained; what everything is compared with comes first.
TRAINED_BY_THE_PAPER = (BASELINE, UTA)
TREE, BLT, NO_NOISE = "tree", "BLT", "none"
MECHANISMS: Mapping[str, str] = {TREE: "honaker", BLT: "blt", NO_NOISE: "honaker"}
#: By privacy level, (clip norm, server rate of the baseline).
GRIDS: Mapping[str, Sequence[tuple[float, float]]] = {
    "inf": ((0.3, 2.0), (1.0, 0.5), (1.0, 1.0), (1.0, 2.0)),
    "18.9": ((0.3, 0.5), (0.3, 1.0), (0.3, 2.0), (1.0, 0.5)),
    "8.2": ((0.3, 0.25), (0.3, 0.5), (0.3, 1.0), (1.0, 0.25)),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fair(StudyOptions):
    """What is compared."""

    out: str = described("results/fair", "where scores, tables and pictures go")
    seeds: int = described(3, "seeds of what was chosen, from 0 on", at_least=1)
    scale: str = described("tiny", "how large the runs are", tuple(SCALES))
    store: str = described("", "the token store; tiny: empty for embedded data")
    epsilons: tuple[str, ...] = described(EPSILONS, "the privacy levels", EPSILONS)
    shift: bool = described(False, "with the periodic shift")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_none(epsilons=self.epsilons)

    def prepared(self) -> "Fair":
        """Returns the options with a token store."""
        return dataclasses.replace(
            self, store=store_of(self.scale, self.store, self.out)
        )


class Training(NamedTuple):
    """A way of training.

    Attributes:
      changes: What it changes in the baseline's configuration.
      pace: How many times the baseline's its server rates are.
    """

    changes: Mapping[str, Any]
    pace: float = 1.0


def trainings(*, shift: bool) -> dict[str, Training]:
    """Returns the ways of training by name.

    A step from the aggregate of EMA_tr moves it by 1 − β of the step, and without
    momentum 0.95 a step goes a twentieth as far: at a rate as many times higher both
    move as fast as the baseline. UTA_tr has the baseline's rates. Its steps are
    shorter, too, but at twice the rate it diverges: beside momentum the delay of its
    mean makes it unstable.
    """
    k = 5 if shift else 3  # the paper's
    decay = 0.95
    # With a warm-up its first steps would be 18 times as long.
    moving = {"averager": "ema", "ema_decay": decay, "ema_warm_up": False}
    free = {"averager": "schedule_free", "step_from": "iterate"}
    return {
        BASELINE: Training({"averager": "last"}),
        UTA: Training({"averager": "uta", "k": k}),
        EMA: Training(moving, round(1 / (1 - decay))),
        "schedule-free": Training(free | {"server_momentum": 0.0, "gamma": 8.0}, 20.0),
    }


def noises(epsilon: str) -> tuple[str, ...]:
    """Returns the kinds of noise at a privacy level."""
    return (NO_NOISE,) if epsilon == "inf" else (TREE, BLT)


def arm(
    base: StackOverflowConfig,
    name: str,
    noise: str,
    grid: Sequence[tuple[float, float]],
) -> Arm:
    """Returns a training with a kind of noise, and its (clip norm, server rate)."""
    training = trainings(shift=base.pds)[name]
    changes = {**training.changes, "mechanism": MECHANISMS[noise]}
    return Arm(
        f"{name}, {noise}",
        dataclasses.replace(base, **changes),
        tuple({"clip_norm": clip, "server_learning_rate": r} for clip, r in grid),
    )


def declare(options: Fair) -> Study:
    """Returns the study: for each level the paper's lines, then two for each arm."""
    scale = SCALES[options.scale]
    read = functools.partial(configuration, shift=options.shift, store=options.store)
    uta = Use(scale.uta)
    lines: list[Line] = []
    for level in options.epsilons:
        base = read(options.scale, level, BASELINE)
        # Without noise the paper's rates are too high for a small population.
        for name in TRAINED_BY_THE_PAPER if level != "inf" else ():
            file = read("full", level, name)
            assert file.server_learning_rate is not None, "every file says it"
            point = (file.clip_norm, file.server_learning_rate)
            published = arm(base, name, TREE, [point])
            lines.append(Line(level, f"{name}, {PUBLISHED}", published, note=PUBLISHED))
        ways = itertools.product(trainings(shift=options.shift).items(), noises(level))
        for (name, training), noise in ways:
            grid = [(clip, training.pace * rate) for clip, rate in GRIDS[level]]
            own = arm(base, name, noise, grid)
            lines.append(Line(level, f"{own.name}: broadcast", own, BROADCAST))
            lines.append(Line(level, f"{own.name}: UTA_inf", own, uta))
    examples = read(options.scale, options.epsilons[0], BASELINE).validation_examples

    def curve(line: Line, seed: int, config: Any) -> tuple[Question, ...]:
        if line.use != BROADCAST:
            return ()
        methods, series = BROADCAST
        return (Question("heldout", examples, series, methods, validated(config)),)

    return Study(
        StackOverflow,
        tuple(lines),
        seeds=tuple(range(options.seeds)),
        train=in_memory(),
        search_seeds=(SEARCH_SEED,),
        seeding=known(1000),
        rounds=scale.rounds(shift=options.shift),
        examples={"heldout": examples, "test": examples},
        also=curve,
    )


def command(task: type[StackOverflow]) -> Command:
    """Returns the command of this study."""
    return study.command(Fair, declare, report)


# What it shows.

LABELS = ("arm", "noise", "clip", "rate", "settings", "model")
RECIPE = "the paper's recipe"
OWN = "clip norm and rate chosen here"
RECYCLED = "mean of the last checkpoints (UTA_inf)"


def report(options: Fair, results: Results) -> Report:
    """Returns, for each level, the search, the table and the steps to the best."""
    made = Report({}, {}, {})
    for level, lines in results.rows().items():
        _add(made, results.only(lines), level)
    return made


def _add(made: Report, results: Results, level: str) -> None:
    """Adds what is shown of a privacy level."""
    name = f"eps{level}"
    made.tables[f"search_{name}"] = search_table(results)
    if not results.seeds:
        return
    title = f"ε = {level.replace('inf', '∞')}, {len(results.seeds)} seeds"
    made.figures[f"curves_{name}"] = functools.partial(
        figures.curves, panels=panels(results), metric=METRIC, title=title, bottom=0
    )
    labels = functools.partial(labels_of, results)
    drawn = {str_of(results, line): results.values(line) for line in results.lines}
    _add_lines(made, results, f"table_{name}", LABELS, labels, title, drawn)
    named = steps(results)
    if named:
        names = {line: step for step, line in named.items()}
        own = results.only(named.values())
        _add_lines(
            made, own, f"steps_{name}", ("step", *LABELS),
            lambda line: (names[line], *labels(line)), title,
            {step: results.values(line) for step, line in named.items()},
            reference=named.get(RECYCLED),
        )  # fmt: skip


def _add_lines(
    made: Report,
    results: Results,
    name: str,
    header: Sequence[str],
    labels: Callable[[Line], tuple[str, ...]],
    title: str,
    drawn: Mapping[str, Sequence[float]],
    reference: Line | None = None,
) -> None:
    """Adds lines as a table, as values for programs, and as a picture.

    The gains are over the first line, and over `reference` of what comes after it.
    """
    values = values_of(results, results.lines, labels, StackOverflow.metrics)
    over = {"over the first line": show.over_first(values)[""]}
    if reference is not None:
        base, order = labels(reference), list(values)
        later = order[order.index(base) + 1 :]
        over["over the baseline's UTA_inf"] = dict.fromkeys(later, base)
    made.tables[name] = show.line_table(header, values, METRICS, over, title=title)
    made.data[name] = show.seed_table(header, values, StackOverflow.metrics)
    made.figures[name] = functools.partial(
        figures.points, lines=drawn, metric=METRIC, title=title
    )


def steps(results: Results) -> dict[str, Line]:
    """Returns the lines of a level that lead to its best, by the step's name."""
    named: dict[str, Line] = {}
    chosen = []
    for line in results.lines:
        arm, noise = _arm(line)
        if line.note:
            named.setdefault(RECIPE, line)
            continue
        chosen.append(line)
        if arm == BASELINE:
            recycled = line.use != BROADCAST
            if noise == _arm(chosen[0])[1]:
                named[RECYCLED if recycled else OWN] = line
            elif recycled:
                first = _arm(chosen[0])[1]
                named[f"{noise} noise instead of {first} noise, UTA_inf"] = line
    if not chosen:
        return {}
    best = results.best(chosen)
    if best not in named.values():
        arm, noise = _arm(best)
        kind = "" if best.use == BROADCAST else ", UTA_inf"
        named[f"{arm}, {noise} noise{kind}"] = best
    return named


def search_table(results: Results) -> Table:
    """Returns the metric of every candidate on validation data, a column a model."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for line in results.lines:
        for settings, method, values in results.candidates(line):
            key = (*_arm(line), *_written(settings))
            model = _model(line, Method.parse(method))
            found.setdefault(key, {})[model] = METRIC.show(fmean(values))
    models = list(dict.fromkeys(model for row in found.values() for model in row))
    rows = [[*key, *(row.get(m, "") for m in models)] for key, row in found.items()]
    return Table([*LABELS[:4], *models], rows, f"{METRIC.label} on validation data")


def panels(results: Results) -> dict[str, dict[str, Curve]]:
    """Returns the curves of what is broadcast, a panel for each kind of noise.

    The paper's settings are in every panel.
    """
    drawn = [line for line in results.lines if line.use == BROADCAST]
    published = {str_of(results, x): results.curve(x) for x in drawn if x.note}
    found: dict[str, dict[str, Curve]] = {}
    for line in drawn:
        if not line.note:
            panel = found.setdefault(f"noise: {_arm(line)[1]}", dict(published))
            panel[str_of(results, line)] = results.curve(line)
    return found


def labels_of(results: Results, line: Line) -> tuple[str, ...]:
    """Returns the labels of a line of the table."""
    settings, method, _ = results.chosen[line]
    why = line.note or "chosen"
    return (*_arm(line), *_written(settings), why, _model(line, method))


def str_of(results: Results, line: Line) -> str:
    """Names a line in a picture."""
    arm, noise, clip, rate, why, model = labels_of(results, line)
    note = f" ({why})" if line.note else ""
    return f"{arm}, {noise}, clip {clip}, rate {rate}: {model}{note}"


def _arm(line: Line) -> tuple[str, str]:
    """Returns the training and the noise of a line."""
    name, _, noise = line.arm.name.rpartition(", ")
    return name, noise


def _written(settings: Settings) -> tuple[str, str]:
    return f"{settings['clip_norm']:g}", f"{settings['server_learning_rate']:g}"


def _model(line: Line, method: Method) -> str:
    return "broadcast" if line.use == BROADCAST else method.title
