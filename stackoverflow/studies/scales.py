"""The paper's trainings on StackOverflow, from its flag files, at three scales.

Every training (baseline, EMA_tr, UTA_tr) of every privacy level is a flag file in
`configs/`. At the scales 'small' and 'tiny' it is the file's small twin: a population
of 12,500 users, a small model, and noise that is computed for ε under the participation
of that population.
"""

import csv
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stackoverflow.task import StackOverflowConfig
from tff_agg.experiment.commands import flags
from tff_agg.experiment.config import RunConfig
from tff_agg.recycling import grids
from tff_agg.recycling.methods import Method, parse_methods

HERE = pathlib.Path(__file__).parents[1]
#: The paper's tables, and whether their runs are under the shift.
TABLES: Mapping[str, bool] = {"stackoverflow": False, "pds": True}
EPSILONS = ("inf", "18.9", "8.2")
BASELINE, EMA, UTA = "baseline", "EMA_tr", "UTA_tr"
#: By a training's name, that of its flag files.
TRAININGS: Mapping[str, str] = {BASELINE: "baseline", EMA: "ema", UTA: "uta"}


def _grid(kind: str, values: tuple[float, ...]) -> tuple[Method, ...]:
    return tuple(Method(kind, value) for value in values)


@dataclasses.dataclass(frozen=True)
class Scale:
    """How large runs are, and how they are judged.

    Attributes:
      flag_files: How the names of its flag files begin.
      uta: The grid of UTA_inf.
      ema: The grid of EMA_inf.
      outputs: The numbers of checkpoints that OPA and OMV combine.
      changes: What it changes in the flag files.
      examples: Of the validation and of the test sample of the paper's tables, at most.
      span: How many of the last rounds count; 0: the last one alone.
      every: The rounds between two that count.
      period: Of the shift, where it is not the flag file's.
      interval_examples: Sentences of the validation sample for the confidence widths.
      separations: How many rounds the checkpoints of such a width are apart; 0: as
        found in their predictions, and widened.
      made_up: The sizes of the embedded data, where no store is given; None: a store
        must be given.
    """

    flag_files: str
    uta: tuple[Method, ...]
    ema: tuple[Method, ...]
    outputs: tuple[int, ...]
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    examples: int = 10_000
    span: int = 0
    every: int = 10
    period: int | None = None
    interval_examples: int = 1000
    separations: tuple[int, ...] = (1, 50, 0)
    made_up: Mapping[str, int] | None = None

    def rounds(self, *, shift: bool) -> Callable[[RunConfig], tuple[int, ...]]:
        """Returns which rounds of a run count.

        A last iterate swings with a periodic shift. There, as many rounds count as
        without it, but they are spread over a whole period.
        """
        span, every = self.span, self.every
        if shift and span:
            steps = span // every
            every = (self.period or StackOverflowConfig.pds_period) // (steps + 1)
            span = steps * every

        return functools.partial(_last_rounds, span=span, every=every)

    def drawn(self, *, shift: bool) -> Callable[[RunConfig], tuple[int, ...]]:
        """Returns which rounds of a run stand in the pictures of its last rounds.

        They are those that count, or those of a period where the last alone counts.
        """
        if self.span:
            return self.rounds(shift=shift)
        span = self.period or StackOverflowConfig.pds_period
        return functools.partial(_last_rounds, span=span, every=span // 10)


def _last_rounds(config: RunConfig, *, span: int, every: int) -> tuple[int, ...]:
    first = max(config.rounds - span, 1)
    return tuple(sorted(range(config.rounds, first - 1, -every)))


SCALES: Mapping[str, Scale] = {
    "full": Scale(
        "",
        uta=_grid("uta", grids.KS),
        ema=_grid("ema", grids.INFERENCE_BETAS),
        outputs=grids.KS,
        # All sentences of the users for validation, and all test data.
        examples=100_000_000,
        # EMA folds over all checkpoints.
        changes={"keep_last": 0, "keep_every": 0},
    ),
    "small": Scale(
        "small_",
        uta=parse_methods("uta:10,50,100,200"),
        ema=parse_methods("ema:0.9,0.99,0.999"),
        outputs=(3, 10),
        examples=1000,
        span=80,
        every=20,
        interval_examples=500,
    ),
    "tiny": Scale(
        "small_",
        uta=parse_methods("uta:3,10,30"),
        ema=parse_methods("ema:0.9,0.99"),
        outputs=(3, 10),
        examples=400,
        span=20,
        every=5,
        period=20,
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
        separations=(1, 10, 0),
        made_up={"users": 3000, "words": 48},
    ),
}


def file_name(epsilon: str, training: str, *, shift: bool) -> str:
    """Names a training's flag file, without the scale's beginning and the ending."""
    level = epsilon if epsilon == "inf" else f"eps{epsilon}"
    return f"{'pds' if shift else 'so'}_{TRAININGS[training]}_{level}"


def configuration(
    scale: str, epsilon: str, training: str, *, shift: bool, store: str
) -> StackOverflowConfig:
    """Returns a training of the paper at a scale; its seed is anybody's."""
    sizes = SCALES[scale]
    name = file_name(epsilon, training, shift=shift)
    path = HERE / "configs" / f"{sizes.flag_files}{name}.cfg"
    (config,) = flags.parse([f"--flagfile={path}"], StackOverflowConfig)
    changes = dict(sizes.changes)
    if shift and sizes.period is not None:
        changes["pds_period"] = sizes.period
    return dataclasses.replace(config, store=store, **changes)


def refuse_none(**options: Sequence[str]) -> None:
    """Refuses an option of several values that has none."""
    for name, values in options.items():
        if not values:
            raise ValueError(f"{name} must be at least one; got none")


def store_of(scale: str, store: str, out: str) -> str:
    """Returns the token store; made-up data are written where none is given."""
    if store:
        return store
    from stackoverflow.data import preparation

    sizes = SCALES[scale].made_up
    if sizes is None:
        raise ValueError(
            f"--scale={scale} needs --store, a token store that `prepare` has written; "
            "only 'tiny' has embedded data"
        )
    return preparation.ensure_store(
        "synthetic",
        None,
        os.path.join(out, "data"),
        users=sizes["users"],
        words=sizes["words"],
    )


def published(table: str) -> dict[str, dict[str, str]]:
    """Returns the published figures of a table, by privacy level and column."""
    found: dict[str, dict[str, str]] = {}
    with open(HERE / "expected.csv", newline="") as file:
        for row in csv.DictReader(file):
            if row["table"] == table:
                shown = f"{row['mean']} ± {row['std']}" if row["std"] else row["mean"]
                found.setdefault(row["epsilon"], {})[row["column"]] = shown
    return found
