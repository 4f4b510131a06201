"""The paper's two tables on StackOverflow: their runs, at three scales.

A row of a table is a privacy level. Its runs are three trainings (baseline, EMA_tr,
UTA_tr) with several seeds each; every training is a flag file in `configs/`. At the
scales 'small' and 'tiny' it is the file's small twin: a population of 12,500 users, a
small model, and noise that is computed for ε under the participation of that
population.
"""

import csv
import dataclasses
import itertools
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from stackoverflow.task import StackOverflow, StackOverflowConfig
from tff_agg.experiment.commands import flags
from tff_agg.experiment.recycled_runs import Judging
from tff_agg.recycling import grids, inference

HERE = pathlib.Path(__file__).parent
TABLES: Mapping[str, str] = {"stackoverflow": "so", "pds": "pds"}
FAIR = "fair"
EPSILONS = ("inf", "18.9", "8.2")
# By the column of the table, the flag file's name for the training.
TRAININGS: Mapping[str, str] = {
    "baseline": "baseline",
    "EMA_tr": "ema",
    "UTA_tr": "uta",
}
# Of the baseline's checkpoints.
RECYCLED = ("EMA_baseline", "EMA_inf", "UTA_inf", "OPA", "OMV")
COLUMNS = (*TRAININGS, *RECYCLED)


@dataclasses.dataclass(frozen=True)
class Scale:
    """How large the runs of a table are.

    Attributes:
      flag_files: How the names of its flag files begin.
      changes: What it changes in them.
      judging: How the runs are judged.
      interval_examples: Sentences of the validation sample for the confidence widths.
      separations: How many rounds the checkpoints of such a width are apart.
      synthetic: What the embedded data are, where no token store is given; None: a
        store must be given.
    """

    flag_files: str
    judging: Judging
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    interval_examples: int = 1000
    separations: tuple[int, ...] = (1, 50)
    synthetic: Mapping[str, int] | None = None


SCALES: Mapping[str, Scale] = {
    "full": Scale(
        "",
        Judging(
            inference.Grid(uta=grids.KS, outputs=grids.KS, ema=grids.INFERENCE_BETAS)
        ),
        # EMA folds over all checkpoints.
        changes={"keep_last": 0, "keep_every": 0},
    ),
    "small": Scale(
        "small_",
        Judging(
            inference.Grid(
                uta=(10, 50, 100, 200), outputs=(3, 10), ema=(0.9, 0.99, 0.999)
            ),
            examples=1000,
            span=80,
            every=20,
        ),
        interval_examples=500,
    ),
    "tiny": Scale(
        "small_",
        Judging(
            inference.Grid(uta=(3, 10, 30), outputs=(3, 10), ema=(0.9, 0.99)),
            examples=400,
            span=20,
            every=5,
        ),
        changes={
            "rounds": 80,
            "clients_per_round": 25,
            "min_separation": 20,
            "embedding_size": 8,
            "lstm_size": 16,
            "client_learning_rate": 2.0,
            # Eighty rounds end on the climb, where a small clip norm holds back.
            "clip_norm": 1.0,
            "evaluate_every": 10,
            "validation_examples": 400,
            "test_examples": 400,
        },
        interval_examples=100,
        separations=(1, 10),
        synthetic={"users": 3000, "words": 48},
    ),
}
# The shift's period at a scale, where it is not the flag file's.
PERIODS: Mapping[str, int] = {"tiny": 20}


def judging(scale: str, *, shift: bool) -> Judging:
    """Returns how the runs of a scale are judged.

    A last iterate swings with a periodic shift. There, as many rounds count as without
    it, but they are spread over a whole period.
    """
    found = SCALES[scale].judging
    if not shift or not found.span:
        return found
    steps = found.span // found.every
    every = PERIODS.get(scale, StackOverflowConfig.pds_period) // (steps + 1)
    return dataclasses.replace(found, span=steps * every, every=every)


class Run(NamedTuple):
    """One run of a table."""

    table: str
    epsilon: str
    training: str
    seed: int

    @property
    def kind(self) -> str:
        """The name of its flag file, without the scale's beginning and the ending."""
        level = self.epsilon if self.epsilon == "inf" else f"eps{self.epsilon}"
        return f"{TABLES[self.table]}_{TRAININGS[self.training]}_{level}"

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.kind}-seed{self.seed}"

    def config(self, scale: str, store: str) -> StackOverflowConfig:
        """Returns its configuration."""
        found = SCALES[scale]
        changes: dict[str, Any] = dict(found.changes) | {"seed": self.seed}
        config = read_flag_file(f"{found.flag_files}{self.kind}")
        if config.pds and scale in PERIODS:
            changes["pds_period"] = PERIODS[scale]
        if found.synthetic is not None:
            # The data are made up; known seeds give the same table everywhere.
            changes["insecure_noise_seed"] = 1000 + self.seed
        return dataclasses.replace(config, store=store, **changes)


@dataclasses.dataclass(frozen=True)
class ReproduceConfig:
    """What to reproduce.

    Attributes:
      table: 'stackoverflow', 'pds' or 'fair'.
      scale: 'full', 'small' or 'tiny'.
      seeds: How many seeds each training has.
      store: The token store; empty: the embedded data, at the scale 'tiny' only.
      out: Where runs and results go, in a folder for each scale.
      epsilons: The rows of the table.
      trainings: The trainings of each row. Without the baseline the table has no
        gains, and no columns of its recycled checkpoints.
      jobs: How many trainings run, and are recycled, at the same time on this machine.
      address: A Ray cluster to spread them over, which sees the same storage; None:
        they run here.
      shift: The fair comparison: with the periodic shift, or without.
    """

    table: str
    scale: str
    seeds: int
    store: str
    out: str
    epsilons: tuple[str, ...] = EPSILONS
    trainings: tuple[str, ...] = tuple(TRAININGS)
    address: str | None = None
    shift: bool = False
    jobs: int = 1

    def __post_init__(self):
        if self.shift and self.table != FAIR:
            raise ValueError(
                f"shift must be False with the table {self.table!r}: it is for "
                f"{FAIR!r}; the paper's table with the shift is 'pds'"
            )
        for name in ("seeds", "jobs"):
            if (number := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1; got {number}")
        if self.jobs > 1 and self.address is not None:
            raise ValueError(
                f"jobs must be 1 with address={self.address!r}, a cluster that runs as "
                f"many as it has room for; got {self.jobs}"
            )
        for name, known in (("epsilons", EPSILONS), ("trainings", TRAININGS)):
            if unknown := set(getattr(self, name)) - set(known):
                raise ValueError(
                    f"{name}: {', '.join(sorted(unknown))} must be among "
                    f"{', '.join(known)}"
                )
        for name in ("epsilons", "trainings"):
            if not getattr(self, name):
                raise ValueError(f"{name} must be at least one; got none")

    @property
    def side_by_side(self) -> bool:
        """Whether several runs are worked on at the same time."""
        return self.jobs > 1 or self.address is not None

    def anywhere(self) -> "ReproduceConfig":
        """Returns itself with absolute paths, for a process in another folder."""
        store, out = map(os.path.abspath, (self.store, self.out))
        return dataclasses.replace(self, store=store, out=out)

    def runs(self) -> list[Run]:
        """Returns the runs, those of one training one after the other."""
        every = itertools.product(self.epsilons, self.trainings, range(self.seeds))
        return [Run(self.table, *one) for one in every]

    def folder(self, run: Run) -> pathlib.Path:
        """Returns the folder of a run."""
        return pathlib.Path(self.out) / self.scale / "runs" / run.folder

    @property
    def results(self) -> pathlib.Path:
        """Where table and pictures go."""
        name = f"{self.table}_pds" if self.shift else self.table
        return pathlib.Path(self.out) / self.scale / name

    def task(self, run: Run) -> StackOverflow:
        """Returns the task of a run."""
        return StackOverflow(run.config(self.scale, self.store))


def read_flag_file(name: str) -> StackOverflowConfig:
    """Returns the configuration of a flag file in `configs/`."""
    path = HERE / "configs" / f"{name}.cfg"
    (config,) = flags.parse([f"--flagfile={path}"], StackOverflowConfig)
    return config


def published(table: str) -> dict[str, dict[str, str]]:
    """Returns the published figures of a table, by privacy level and column."""
    found: dict[str, dict[str, str]] = {}
    with open(HERE / "expected.csv", newline="") as file:
        for row in csv.DictReader(file):
            if row["table"] == table:
                shown = f"{row['mean']} ± {row['std']}" if row["std"] else row["mean"]
                found.setdefault(row["epsilon"], {})[row["column"]] = shown
    return found
