"""Recipes of DP-FTRL by name: what `--preset=` sets where no flag says otherwise.

The defaults of a `TrainConfig` are the best that we know (docs/first_run.md). A preset
is what another recipe changes in them. What follows from the population, such as how
far apart a user's rounds are, is part of none.

Example:
  TrainConfig(**PRESETS["paper_uta"].settings, epsilon=8.0)
"""

from collections.abc import Mapping
from typing import NamedTuple


class Preset(NamedTuple):
    """A recipe.

    Attributes:
      line: What it is, in a line.
      settings: The fields of a `TrainConfig` that it changes.
    """

    line: str
    settings: Mapping[str, object]


_PAPER: Mapping[str, object] = {
    "mechanism": "tree",
    "server_momentum": 0.95,
    "averager": "last",
    "clip_norm": 1.0,
    "server_learning_rate": 0.5,
    "client_learning_rate": 1.0,
    "batch_size": 16,
    "rounds": 2000,
}

BEST = "best"
#: All of them by name, the default first.
PRESETS: Mapping[str, Preset] = {
    BEST: Preset("BLT noise, schedule-free, no momentum: the defaults", {}),
    "momentum": Preset(
        "BLT noise and momentum: each round's own model, to be averaged afterwards",
        {"averager": "last", "server_momentum": 0.95},
    ),
    "paper_baseline": Preset("the paper's DP-FTRL: tree noise and momentum", _PAPER),
    "paper_uta": Preset(
        "the paper's UTA_tr: broadcasts the mean of the last three models",
        {**_PAPER, "averager": "uta", "clip_norm": 0.3, "server_learning_rate": 2.0},
    ),
    "paper_ema": Preset(
        "the paper's EMA_tr: broadcasts an exponential average",
        {**_PAPER, "averager": "ema", "ema_weight": 0.95},
    ),
}


def described() -> str:
    """Returns all of them, for the help of the flag."""
    return "; ".join(f"{name}: {preset.line}" for name, preset in PRESETS.items())
