"""Private fine-tuning from the last iterate of a pre-training, and from an EMA of it.

The paper fine-tunes the last layer of a network from the EMA of its pre-training, and
not from its last iterate: +5.2 points at ε = 1, +3.2 at ε = 8. Here the images with
even labels count as public. A network is trained on them without privacy; both models
of it stay as they are, and on their features of the images with odd labels a last layer
is trained by DP-SGD.

The pre-training's rate stays as it is, or falls to zero. An average takes the noise of
the last steps away; a rate that has fallen has none left.

A seed is a pre-training of its own with a fine-tuning of its own, with known noise:
such runs have no guarantee.
"""

import contextlib
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Mapping
from typing import Self

from cifar.studies.table import EVERYTHING, METRIC, SEARCH_SEED
from cifar.task import Cifar, CifarConfig
from tff_agg.experiment.commands import Command, study
from tff_agg.experiment.study import show
from tff_agg.experiment.study.declare import Arm, Line, Settings, Study, known
from tff_agg.experiment.study.options import StudyOptions
from tff_agg.experiment.study.report import Report
from tff_agg.experiment.study.results import Results
from tff_agg.experiment.study.train import in_memory
from tff_agg.fields import described
from tff_agg.recycling.methods import LAST, Method

SCHEDULES = ("constant", "cosine")
PUBLIC, PRIVATE = "even", "odd"
RATES = (0.5, 1.0, 2.0, 4.0)
#: Of the pre-training, in steps: an EMA moves along them.
EVERY = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretraining(StudyOptions):
    """What is pre-trained, and fine-tuned from it."""

    out: str = described("results/pretraining", "where networks, scores, tables go")
    data_dir: str = described("../shared/data", "folder with cifar10/")
    synthetic: bool = described(False, "make data up instead of reading files")
    epsilons: tuple[float, ...] = described((1.0, 8.0), "ε of the fine-tuning")
    schedules: tuple[str, ...] = described(
        SCHEDULES, "how the rate of the pre-training falls", SCHEDULES
    )
    pretraining_steps: int = described(1500, "its steps", at_least=1)
    pretraining_rate: float = described(0.1, "its rate, with momentum 0.9")
    ema: float = described(
        0.9, f"the EMA's decay over its checkpoints, which are {EVERY} steps apart"
    )
    shrink: int = described(2, "squares of so many pixels a side become one")
    steps: int = described(100, "steps of the fine-tuning", at_least=1)
    batch_size: int = described(1000, "images in a batch of it", at_least=1)
    training_examples: int = described(
        4000, "private images that it trains on; others choose the rate", at_least=1
    )

    @property
    def models(self) -> Mapping[str, Method]:
        """The models of a pre-training, by name."""
        return {"last iterate": LAST, "EMA": Method("ema", self.ema)}

    def network(self, schedule: str, seed: int) -> CifarConfig:
        """Returns the pre-training: per-example sums as ever, no noise, no clipping."""
        return CifarConfig(
            dataset="cifar10",
            model="wide_resnet",
            depth=10,
            width=1,
            groups=4,
            shrink=self.shrink,
            labels=PUBLIC,
            data_dir=self.data_dir,
            synthetic=self.synthetic,
            rounds=self.pretraining_steps,
            batch_size=64,
            clip_norm=1e3,
            noise_multiplier=0.0,
            learning_rate=self.pretraining_rate,
            momentum=0.9,
            rate_schedule=schedule,
            keep_last=1,
            keep_every=EVERY,
            evaluate_every=self.pretraining_steps,
            test_examples=0,
            **known(0)(seed),
        )

    def prepared(self) -> Self:
        """Pre-trains, and writes the features of the private images."""
        seeds = (SEARCH_SEED, *range(self.seeds))
        left = [
            (schedule, seed)
            for seed, schedule in itertools.product(seeds, self.schedules)
            if not all(
                _features(self.out, schedule, name, seed).exists()
                for name in self.models
            )
        ]
        if not left or self.report_only:
            return self
        if self.dry_run:
            raise ValueError(
                f"dry_run: {len(left)} networks are not pre-trained yet, and what is "
                "fine-tuned is known when they are"
            )
        self._pretrain(left)
        return self

    def _pretrain(self, left: list[tuple[str, int]]) -> None:
        from cifar import features
        from tff_agg.experiment import progress
        from tff_agg.experiment.build import Compiled
        from tff_agg.experiment.run import run as training
        from tff_agg.experiment.runs import Run

        with Compiled() as shared, contextlib.closing(progress.StageBar()) as bar:
            for done, (schedule, seed) in enumerate(left):
                bar("pre-training", done, len(left))
                folder = pathlib.Path(self.out, "networks", f"{schedule}_seed{seed}")
                task = shared.task(Cifar, self.network(schedule, seed))
                training.run(task, folder, compiled=shared)
                run = Run.open(Cifar, folder, bind=task.with_config)
                images = features.images_of(run.config, PRIVATE)
                for name, method in self.models.items():
                    path = _features(self.out, schedule, name, seed)
                    features.save(path, features.of_run(run, method), images)
            bar("pre-training", len(left), len(left))


def _data_dir(out: str, seed: int) -> str:
    return str(pathlib.Path(out, "features", f"seed{seed}"))


def _file(schedule: str, name: str) -> str:
    return f"{schedule}_{name.replace(' ', '_')}.npz"


def _features(out: str, schedule: str, name: str, seed: int) -> pathlib.Path:
    return pathlib.Path(_data_dir(out, seed), "cifar10", _file(schedule, name))


def _seeded(out: str, seed: int) -> Settings:
    """A seed's own network, with known noise."""
    return {**known(0)(seed), "data_dir": _data_dir(out, seed)}


def declare(options: Pretraining) -> Study:
    """Returns the study: for each ε and pre-training, from which of its models."""
    lines = []
    for epsilon, schedule in itertools.product(options.epsilons, options.schedules):
        for name in options.models:
            config = CifarConfig(
                dataset="cifar10",
                features=_file(schedule, name),
                labels=PRIVATE,
                rounds=options.steps,
                batch_size=options.batch_size,
                training_examples=options.training_examples,
                epsilon=epsilon,
            )
            arm = Arm(name, config, tuple({"learning_rate": rate} for rate in RATES))
            lines.append(Line(f"ε = {epsilon:g}, {schedule} rate", name, arm))
    return Study(
        Cifar,
        tuple(lines),
        seeds=tuple(range(options.seeds)),
        train=in_memory(),
        search_seeds=(SEARCH_SEED,),
        seeding=functools.partial(_seeded, options.out),
        examples=EVERYTHING,
    )


def command(task: type[Cifar]) -> Command:
    """Returns the command of this study."""
    return study.command(Pretraining, declare, report)


def report(options: Pretraining, results: Results) -> Report:
    """Returns a line for each model, with what it gains on the last iterate."""

    def labels(line: Line) -> tuple[str, ...]:
        rate = results.chosen[line].settings["learning_rate"]
        return line.row, line.name, f"{rate:g}"

    page = Report()
    page.add_lines(
        "pretraining", results, ("pre-training", "features of", "η"), labels,
        gains={"gain in points": show.in_points},
        title=f"{METRIC.label} of a last layer, seeds {results.seeds}",
    )  # fmt: skip
    return page
