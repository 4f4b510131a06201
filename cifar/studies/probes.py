"""Runs that explain the CIFAR tables: another reading, no noise; on validation data.

They are for no table: the other reading of training aggregation and runs without noise
at ε = 1 on CIFAR-100; whether the small network of CIFAR-10 learns at all without
noise, and with as many groups in the normalisation as the paper's wider network has.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cifar.studies import arms, side_by_side
from cifar.studies.table import EVERYTHING, METRIC, SEARCH_SEED, in_words
from cifar.task import Cifar
from tff_agg.experiment.commands import Command, study
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
from tff_agg.fields import described
from tff_agg.recycling.methods import by_kind


class Probe(NamedTuple):
    """What is looked into, without a shift.

    Attributes:
      level: Whose runs are changed.
      changes: How.
      settings: The runs.
    """

    level: str
    changes: Mapping[str, Any]
    settings: Sequence[Settings]


_NO_NOISE = {"epsilon": None, "noise_multiplier": 0.0}
PROBES: Mapping[str, Probe] = {
    "step from the iterate": Probe(
        "eps1",
        {},
        [arms.uta(4.0, 50, 100, "iterate"), arms.uta(2.0, 50, 100, "iterate")],
    ),
    "no noise": Probe("eps1", _NO_NOISE, [arms.plain(2.0), arms.plain(4.0)]),
    "CIFAR-10, no noise": Probe("cifar10_eps8", _NO_NOISE, [arms.plain(4.0)]),
    "CIFAR-10, no noise, 16 groups": Probe(
        "cifar10_eps8", _NO_NOISE | {"groups": 16}, [arms.plain(4.0)]
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probes(StudyOptions):
    """Which probes are made."""

    out: str = described("results/cifar_probes", "where scores and the table go")
    seeds: int = described(1, "seeds, from 100 on", at_least=1)
    data_dir: str = described("../shared/data", "folder with cifar10/ and cifar100/")
    probes: tuple[str, ...] = described(tuple(PROBES), "which", tuple(PROBES))


def declare(options: Probes) -> Study:
    """Returns the study: each run's model, its last iterate, its best mean."""
    lines: list[Line] = []
    for name in options.probes:
        level, changes, several = PROBES[name]
        base = arms.base(level, arms.ORIGINAL, options.data_dir)
        config = dataclasses.replace(base, **changes)
        means = Use(by_kind(arms.LEVELS[level].methods)["UTA_inf"])
        for settings in several:
            arm, words = Arm(name, config, (settings,)), in_words(settings)
            for use, model in (
                (BROADCAST, "trained"),
                (Use(), "last"),
                (means, "UTA_inf"),
            ):
                lines.append(Line(name, f"{words}: {model}", arm, use))
    seeds = tuple(range(SEARCH_SEED, SEARCH_SEED + options.seeds))
    return Study(
        Cifar,
        tuple(lines),
        seeds=seeds,
        train=side_by_side.lockstep(),
        seeding=known(0),
        examples=EVERYTHING,
        final="heldout",
        near=side_by_side.alike,
    )


def command(task: type[Cifar]) -> Command:
    """Returns the command of this study."""
    return study.command(Probes, declare, report)


def report(options: Probes, results: Results) -> Report:
    """Returns a line for each model."""

    def labels(line: Line) -> tuple[str, ...]:
        words = line.name.partition(": ")[0]
        method = results.chosen[line].method
        model = "trained" if line.use == BROADCAST else method.title
        return line.row, words, model

    page = Report()
    title = f"{METRIC.label} on validation data, seeds {results.seeds}"
    header = ("probe", "settings", "model")
    page.add_lines("probes", results, header, labels, over={}, title=title)
    return page
