"""Trainings against each other: what such studies are told, how they are declared.

An arm is a training with a kind of noise. Its grid of clip norms and server rates is
scored on validation data with a seed of its own; what was chosen is trained with the
seeds of the table and tested, beside the paper's own settings.

Nothing is kept of the runs but their scores. Their noise seeds are known, so that they
have the noise of ε but no guarantee.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple, Self

from stackoverflow.studies.scales import (
    EPSILONS,
    SCALES,
    configuration,
    refuse_none,
    store_of,
)
from stackoverflow.task import StackOverflow, StackOverflowConfig
from tff_agg.experiment.study import figures, show
from tff_agg.experiment.study.declare import (
    BROADCAST,
    Arm,
    Line,
    Question,
    Settings,
    Study,
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
from tff_agg.recycling.metrics import Metric

METRIC = StackOverflow.metrics[0]
# Perplexity says what the loss says.
METRICS = StackOverflow.metrics[:3]
#: The tables have 0, 1, 2, …
SEARCH_SEED = 100
PUBLISHED = "as published"
TREE, BLT, INDEPENDENT, NO_NOISE = "tree", "BLT", "independent", "none"
MECHANISMS: Mapping[str, str] = {
    TREE: "honaker",
    BLT: "blt",
    INDEPENDENT: "identity",
    NO_NOISE: "honaker",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared(StudyOptions):
    """What is compared."""

    seeds: int = described(3, "seeds of what was chosen, from 0 on", at_least=1)
    scale: str = described("tiny", "how large the runs are", tuple(SCALES))
    store: str = described("", "the token store; tiny: empty for embedded data")
    epsilons: tuple[str, ...] = described(EPSILONS, "the privacy levels", EPSILONS)
    shift: bool = described(False, "with the periodic shift")
    sentences: int = described(
        0, "sentences of a user in a round; 0: as at that scale", at_least=0
    )
    users: int = described(
        0, "users in a round, taking part as often; 0: as at that scale", at_least=0
    )
    rounds: int = described(0, "training rounds; 0: as at that scale", at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_none(epsilons=self.epsilons)

    def prepared(self) -> Self:
        """Returns the options with a token store."""
        return dataclasses.replace(
            self, store=store_of(self.scale, self.store, self.out)
        )

    def file(self, level: str, name: str, scale: str = "") -> StackOverflowConfig:
        """Returns a training of the paper at a scale, as its flag file says."""
        return configuration(
            scale or self.scale, level, name, shift=self.shift, store=self.store
        )

    def base(self, level: str, name: str) -> StackOverflowConfig:
        """Returns a training of the paper in the shape that was asked for."""
        config = self.file(level, name)
        if self.users and config.min_separation:
            # As many users again pass between two rounds of one of them.
            passed = config.min_separation * config.clients_per_round
            config = dataclasses.replace(
                config, min_separation=max(1, passed // self.users)
            )
        shape = {
            "max_sentences": self.sentences,
            "clients_per_round": self.users,
            "rounds": self.rounds,
        }
        given = {name: value for name, value in shape.items() if value}
        return dataclasses.replace(config, **given)


class Training(NamedTuple):
    """A way of training.

    Attributes:
      changes: What it changes in the baseline's configuration.
      pace: How many times the baseline's its server rates are.
      noise: Its only kind of noise, if it has one.
    """

    changes: Mapping[str, Any]
    pace: float = 1.0
    noise: str | None = None


def arm(
    base: StackOverflowConfig,
    name: str,
    training: Training,
    noise: str,
    grid: Sequence[tuple[float, float]],
) -> Arm:
    """Returns a training with a kind of noise.

    Args:
      base: The baseline.
      name: The training's.
      training: What it changes.
      noise: The kind of noise.
      grid: The baseline's (clip norm, server rate).
    """
    changes = {**training.changes, "mechanism": MECHANISMS[noise]}
    return Arm(
        f"{name}, {noise}",
        dataclasses.replace(base, **changes),
        tuple(
            {"clip_norm": clip, "server_learning_rate": training.pace * rate}
            for clip, rate in grid
        ),
    )


def as_published(
    base: StackOverflowConfig,
    name: str,
    training: Training,
    file: StackOverflowConfig,
) -> Arm:
    """Returns a training with tree noise and the rates and clip norm of a flag file.

    Args:
      base: The baseline.
      name: The training's.
      training: What it changes.
      file: The paper's configuration of the training.
    """
    rate = file.server_learning_rate
    assert rate is not None, "every file says it"
    own = dataclasses.replace(base, client_learning_rate=file.client_learning_rate)
    at_its_rate = training._replace(pace=1.0)
    return arm(own, name, at_its_rate, TREE, [(file.clip_norm, rate)])


def study_of(options: Compared, lines: Iterable[Line]) -> Study:
    """Returns the study of lines, with curves of what is broadcast."""
    of_any = options.file(options.epsilons[0], "baseline")
    examples = of_any.validation_examples

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
        rounds=SCALES[options.scale].rounds(shift=options.shift),
        examples={"heldout": examples, "test": examples},
        also=curve,
    )


# What it shows.

LABELS = ("arm", "noise", "clip", "rate", "settings", "model")


def search_table(results: Results) -> Table:
    """Returns the metric of every candidate on validation data, a column a model."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for line in results.lines:
        for settings, method, values in results.candidates(line):
            key = (*arm_of(line), *_written(settings))
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
            panel = found.setdefault(f"noise: {arm_of(line)[1]}", dict(published))
            panel[str_of(results, line)] = results.curve(line)
    return found


def labels_of(results: Results, line: Line) -> tuple[str, ...]:
    """Returns the labels of a line of the table."""
    settings, method, _ = results.chosen[line]
    why = line.note or "chosen"
    return (*arm_of(line), *_written(settings), why, _model(line, method))


def str_of(results: Results, line: Line) -> str:
    """Names a line in a picture."""
    arm, noise, clip, rate, why, model = labels_of(results, line)
    note = f" ({why})" if line.note else ""
    return f"{arm}, {noise}, clip {clip}, rate {rate}: {model}{note}"


def arm_of(line: Line) -> tuple[str, str]:
    """Returns the training and the noise of a line."""
    name, _, noise = line.arm.name.rpartition(", ")
    return name, noise


def _written(settings: Settings) -> tuple[str, str]:
    return f"{settings['clip_norm']:g}", f"{settings['server_learning_rate']:g}"


def _model(line: Line, method: Method) -> str:
    return "broadcast" if line.use == BROADCAST else method.title


def add_lines(
    made: Report,
    results: Results,
    name: str,
    header: Sequence[str],
    labels: Callable[[Line], tuple[str, ...]],
    title: str,
    drawn: Mapping[str, Sequence[float]],
    over: Mapping[str, Mapping[Line, Line]],
    gains_in: Sequence[Metric] = METRICS[:1],
) -> None:
    """Adds lines as a table, as values for programs, and as a picture.

    Args:
      made: What they are added to.
      results: Of these lines alone.
      name: The files'.
      header: The names of the labels.
      labels: A line's.
      title: What they are.
      drawn: What is in the picture: values by seed, by name.
      over: By a name such as 'over the first line', with which a line is compared.
      gains_in: Of which metrics the table has gains.
    """
    values = values_of(results, results.lines, labels, StackOverflow.metrics)
    pairs = {
        heading: {labels(line): labels(other) for line, other in of_lines.items()}
        for heading, of_lines in over.items()
    }
    made.tables[name] = show.line_table(
        header, values, METRICS, pairs, gains_in=gains_in, title=title
    )
    made.data[name] = show.seed_table(header, values, StackOverflow.metrics)
    made.figures[name] = functools.partial(
        figures.points, lines=drawn, metric=METRIC, title=title
    )
