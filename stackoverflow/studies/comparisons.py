"""Trainings against each other: what such studies are told, how they are declared.

An arm is a training with a kind of noise. Its grid of clip norms and server rates is
scored on validation data with a seed of its own; what was chosen is trained with the
seeds of the table and tested, beside the paper's own settings.

Nothing is kept of the runs but their scores. Their noise seeds are known, so that they
have the noise of ε but no guarantee.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from stackoverflow.studies.scales import (
    EPSILONS,
    SCALES,
    configuration,
    refuse_none,
    store_of,
)
from stackoverflow.task import StackOverflow, StackOverflowConfig
from tff_agg.experiment.study.declare import (
    BROADCAST,
    Arm,
    Line,
    Settings,
    Study,
    known,
    validated,
)
from tff_agg.experiment.study.options import StudyOptions
from tff_agg.experiment.study.results import Results
from tff_agg.experiment.study.train import in_memory
from tff_agg.fields import described

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
        shape: dict[str, Any] = {
            "max_sentences": self.sentences,
            "clients_per_round": self.users,
            "rounds": self.rounds,
        }
        given: dict[str, Any] = {k: value for k, value in shape.items() if value}
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

    return Study(
        StackOverflow,
        tuple(lines),
        seeds=tuple(range(options.seeds)),
        train=in_memory(),
        search_seeds=(SEARCH_SEED,),
        seeding=known(1000),
        rounds=SCALES[options.scale].rounds(shift=options.shift),
        examples={"heldout": examples, "test": examples},
        drawn=lambda line, config: validated(config) if line.use == BROADCAST else (),
    )


# What it shows.

LABELS = ("arm", "noise", "clip", "rate", "settings", "model")


def panels(results: Results) -> dict[str, dict[str, Line]]:
    """Returns what is broadcast, a panel for each kind of noise.

    The paper's settings are in every panel.
    """
    drawn = [line for line in results.lines if line.use == BROADCAST]
    published = {str_of(results, line): line for line in drawn if line.note}
    found: dict[str, dict[str, Line]] = {}
    for line in drawn:
        if not line.note:
            panel = found.setdefault(f"noise: {arm_of(line)[1]}", dict(published))
            panel[str_of(results, line)] = line
    return found


def labels_of(results: Results, line: Line) -> tuple[str, ...]:
    """Returns the labels of a line of the table."""
    settings, method, _ = results.chosen[line]
    why = line.note or "chosen"
    model = "broadcast" if line.use == BROADCAST else method.title
    return (*arm_of(line), *_written(settings), why, model)


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
