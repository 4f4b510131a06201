"""The arms of the CIFAR-100 table: what each may choose from.

All arms of a level have equally many candidates, of which the paper's parameters are
one. A training aggregation that steps from its aggregate takes smaller steps from τ on
(with EMA by the factor 1 − β exactly), so that candidates differ in β or k and in τ,
too.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tff_agg.recycling import inference

Settings = Mapping[str, Any]

BASELINE, EMA, UTA = "DP-SGD", "EMA_tr", "UTA_tr"
ORIGINAL, SHIFT = "original", "shift"

# Chosen by what is made of several checkpoints.
RECYCLED = "recycled"

GRID = inference.Grid(
    uta=(5, 10, 20, 50, 100),
    outputs=(5, 10, 20, 50),
    ema=(0.6, 0.8, 0.9, 0.95, 0.99),
)
# For runs eight times as long: averages over as large a part of them, too.
LONG_GRID = inference.Grid(
    uta=(5, 10, 20, 50, 100, 200, 400),
    outputs=(5, 10, 20, 50),
    ema=(0.6, 0.8, 0.9, 0.95, 0.99, 0.995, 0.998),
)


class Level(NamedTuple):
    """A level of privacy: for the features as the paper's tables print it.

    Attributes:
      steps: Steps of a run.
      noise_multiplier: The noise; None where `fields` give ε.
      curve: At which steps curves are drawn.
      separations: Steps from one checkpoint to the next, for uncertainty.
      grid: The inference aggregations that are tuned.
      period: Of the shift.
      fields: What else of a CifarConfig is not as with the features.
    """

    steps: int
    noise_multiplier: float | None
    curve: tuple[int, ...]
    separations: tuple[int, ...]
    grid: inference.Grid = GRID
    period: int = 50
    fields: Mapping[str, Any] = {}

    def step_variance(self, rate: float) -> float:
        """Returns the variance that the noise of one step gives every weight."""
        assert self.noise_multiplier is not None
        return (rate * self.noise_multiplier / BATCH) ** 2


# Images in a batch on average; the clip norm is 1.
BATCH = 16384

LEVELS: Mapping[str, Level] = {
    "eps1": Level(250, 21.1, tuple(range(5, 251, 5)), (1, 2, 5, 10, 25, 50)),
    "eps8": Level(
        2000,
        9.4,
        (*range(100, 1800, 100), *range(1800, 2001, 5)),
        (1, 5, 10, 25, 50, 100, 200, 400),
        LONG_GRID,
    ),
}

# CIFAR-10 at a size that a core can do. The narrowest layer has four channels in each
# group, as the paper's network has: sixteen groups of one would take out what tells
# small images apart.
REDUCED = "cifar10"
REDUCED_STEPS, REDUCED_START = 60, 40
ALL_LEVELS: Mapping[str, Level] = {
    **LEVELS,
    REDUCED: Level(
        REDUCED_STEPS,
        None,
        (),
        (),
        inference.Grid(uta=(3, 5, 10, 20), outputs=(3, 5, 10), ema=(0.6, 0.8, 0.9)),
        20,
        {
            "dataset": "cifar10",
            "model": "wide_resnet",
            "depth": 10,
            "width": 1,
            "groups": 4,
            "shrink": 2,
            "batch_size": 512,
            "epsilon": 8.0,
        },
    ),
}


def base(level: str, task: str, data_dir: str, seed: int) -> dict[str, Any]:
    """Returns the settings that all arms share, as fields of a CifarConfig."""
    facts = ALL_LEVELS[level]
    shift = {"pds": True, "pds_period": facts.period} if task == SHIFT else {}
    # A layer starts at zero, whatever the seed; a network's weights are drawn.
    drawn = {"seed": seed} if level == REDUCED else {}
    return {
        "data_dir": data_dir,
        "rounds": facts.steps,
        "batch_size": BATCH,
        "noise_multiplier": facts.noise_multiplier,
        "delta": 1e-5,
        "insecure_noise_seed": seed,
        **shift,
        **drawn,
        **facts.fields,
    }


def plain(rate: float) -> Settings:
    """Returns the settings of a run without training aggregation."""
    return {"learning_rate": rate}


def ema(rate: float, decay: float, start: int) -> Settings:
    """Returns the settings of EMA_tr."""
    average = {"averager": "ema", "ema_decay": decay, "ema_warm_up": True}
    return {"learning_rate": rate, "start_round": start, **average}


def uta(rate: float, k: int, start: int, step_from: str = "aggregate") -> Settings:
    """Returns the settings of UTA_tr."""
    rest = {} if step_from == "aggregate" else {"step_from": step_from}
    return {"learning_rate": rate, "start_round": start, "averager": "uta", "k": k} | (
        rest
    )


# The paper's parameters come first.
CANDIDATES: Mapping[tuple[str, str], Mapping[str, Sequence[Settings]]] = {
    ("eps1", ORIGINAL): {
        BASELINE: [plain(rate) for rate in (3.5, 0.5, 1.0, 2.0, 2.8)],
        EMA: [
            ema(4.0, 0.99, 200),
            ema(4.0, 0.85, 100),
            ema(2.0, 0.85, 100),
            ema(2.0, 0.5, 100),
            ema(2.0, 0.5, 200),
        ],
        UTA: [
            uta(4.0, 50, 100),
            uta(4.0, 10, 100),
            uta(2.0, 10, 100),
            uta(2.0, 3, 100),
            uta(2.0, 3, 200),
        ],
    },
    ("eps1", SHIFT): {
        BASELINE: [plain(rate) for rate in (4.0, 0.5, 1.0, 2.0, 2.8)],
        EMA: [
            ema(4.0, 0.85, 200),
            ema(4.0, 0.85, 100),
            ema(2.0, 0.85, 100),
            ema(2.0, 0.95, 200),
            ema(2.0, 0.85, 200),
        ],
        UTA: [
            uta(4.0, 5, 200),
            uta(4.0, 20, 100),
            uta(2.0, 20, 100),
            uta(2.0, 20, 200),
            uta(2.0, 10, 200),
        ],
    },
    ("eps8", ORIGINAL): {
        BASELINE: [plain(rate) for rate in (4.0, 2.0, 1.0)],
        EMA: [ema(4.0, 0.85, 1500), ema(2.0, 0.5, 1600), ema(1.0, 0.5, 1600)],
        UTA: [uta(4.0, 50, 400), uta(2.0, 3, 1600), uta(1.0, 3, 1600)],
    },
    ("eps8", SHIFT): {
        BASELINE: [plain(rate) for rate in (5.0, 2.0, 1.0)],
        EMA: [ema(4.0, 0.85, 200), ema(2.0, 0.85, 1600), ema(1.0, 0.85, 1600)],
        UTA: [uta(4.0, 10, 50), uta(2.0, 10, 1600), uta(1.0, 10, 1600)],
    },
    # Averages as in the paper's rows for ε = 8, from two thirds of the run on.
    **{
        (REDUCED, task): {
            BASELINE: [plain(rate) for rate in (4.0, 2.0, 1.0, 8.0)],
            EMA: [ema(rate, 0.6, REDUCED_START) for rate in (2.0, 4.0, 1.0, 8.0)],
            UTA: [uta(rate, k, REDUCED_START) for rate in rates],
        }
        for task, k, rates in (
            (ORIGINAL, 2, (4.0, 2.0, 1.0, 8.0)),
            (SHIFT, 5, (2.0, 4.0, 1.0, 8.0)),
        )
    },
}

# What the causes are looked for with, without a shift, on validation data: the other
# reading of the training aggregation and runs without noise, at ε = 1.
PROBES: Mapping[str, tuple[str, Mapping[str, Any], Sequence[Settings]]] = {
    "iterate": (
        "eps1",
        {},
        [uta(4.0, 50, 100, "iterate"), uta(2.0, 50, 100, "iterate")],
    ),
    "no_noise": ("eps1", {"noise_multiplier": 0.0}, [plain(2.0), plain(4.0)]),
}
