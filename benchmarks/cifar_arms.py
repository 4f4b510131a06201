"""The arms of the CIFAR-100 table: what each may choose from.

Every arm has five candidates, of which the paper's parameters are one. A training
aggregation that steps from its aggregate takes smaller steps from τ on (with EMA by the
factor 1 − β exactly), so that candidates differ in β or k and in τ, too.
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


class Level(NamedTuple):
    """A level of privacy as the paper's tables print it.

    Attributes:
      steps: Steps of a run.
      noise_multiplier: The noise.
      curve: At which steps curves are drawn.
      separations: Steps from one checkpoint to the next, for uncertainty.
    """

    steps: int
    noise_multiplier: float
    curve: tuple[int, ...]
    separations: tuple[int, ...]

    def step_variance(self, rate: float) -> float:
        """Returns the variance that the noise of one step gives every weight."""
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
    ),
}


def base(level: str, task: str, data_dir: str, seed: int) -> dict[str, Any]:
    """Returns the settings that all arms share, as fields of a CifarConfig."""
    shift = {"pds": True, "pds_period": 50} if task == SHIFT else {}
    return {
        "data_dir": data_dir,
        "rounds": LEVELS[level].steps,
        "batch_size": BATCH,
        "noise_multiplier": LEVELS[level].noise_multiplier,
        "delta": 1e-5,
        "insecure_noise_seed": seed,
        **shift,
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
}

# What the causes are looked for with, without a shift, on validation data: the other
# reading of the training aggregation and runs without noise, at ε = 1; and whether the
# rate that was chosen there is a good one at ε = 8.
PROBES: Mapping[str, tuple[str, Mapping[str, Any], Sequence[Settings]]] = {
    "iterate": (
        "eps1",
        {},
        [uta(4.0, 50, 100, "iterate"), uta(2.0, 50, 100, "iterate")],
    ),
    "no_noise": ("eps1", {"noise_multiplier": 0.0}, [plain(2.0), plain(4.0)]),
    "rates_eps8": ("eps8", {}, [plain(1.0), plain(2.0)]),
}
