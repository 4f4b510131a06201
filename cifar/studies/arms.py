"""The arms of the CIFAR tables: what each may choose from.

All arms of a level have equally many candidates, of which the paper's parameters are
one. A training aggregation that steps from its aggregate takes smaller steps from τ on
(with EMA by the factor 1 − β exactly), so that candidates differ in β or k and in τ,
too.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cifar.task import CifarConfig
from tff_agg.experiment.study.declare import Settings
from tff_agg.recycling.methods import Method, parse_methods

BASELINE, EMA, UTA = "DP-SGD", "EMA_tr", "UTA_tr"
ORIGINAL, SHIFT = "original", "shift"
SHIFTS = (ORIGINAL, SHIFT)

METHODS = parse_methods(
    "ema:0.6,0.8,0.9,0.95,0.99 uta:5,10,20,50,100 opa:5,10,20,50 omv:5,10,20,50"
)
# For runs eight times as long: averages over as large a part of them, too.
LONG_METHODS = parse_methods(
    "ema:0.6,0.8,0.9,0.95,0.99,0.995,0.998 uta:5,10,20,50,100,200,400 "
    "opa:5,10,20,50 omv:5,10,20,50"
)


class Level(NamedTuple):
    """A level of privacy: for the features as the paper's tables print it.

    Attributes:
      steps: Steps of a run.
      noise_multiplier: The noise; None where `fields` give ε.
      curve: At which steps curves are drawn.
      separations: Steps from one checkpoint to the next, for uncertainty.
      methods: The inference aggregations that are tuned, kind by kind.
      period: Of the shift.
      fields: What else of a CifarConfig is not as with the features.
    """

    steps: int
    noise_multiplier: float | None
    curve: tuple[int, ...]
    separations: tuple[int, ...]
    methods: tuple[Method, ...] = METHODS
    period: int = 50
    fields: Mapping[str, Any] = {}

    def step_variance(self, rate: float) -> float:
        """Returns the variance that the noise of one step gives every weight."""
        assert self.noise_multiplier is not None
        return (rate * self.noise_multiplier / BATCH) ** 2


# Images in a batch on average; the clip norm is 1.
BATCH = 16384

# CIFAR-10 at a size that a core can do. The narrowest layer has four channels in each
# group, as the paper's network has: sixteen groups of one would take out what tells
# small images apart.
_REDUCED_STEPS, _REDUCED_START = 60, 40
_REDUCED: Mapping[str, Any] = {
    "dataset": "cifar10",
    "model": "wide_resnet",
    "depth": 10,
    "width": 1,
    "groups": 4,
    "shrink": 2,
    "batch_size": 512,
}


def _reduced(epsilon: float) -> Level:
    return Level(
        _REDUCED_STEPS,
        None,
        tuple(range(5, _REDUCED_STEPS + 1, 5)),
        (1, 2, 5, 10),
        parse_methods("ema:0.6,0.8,0.9 uta:3,5,10,20 opa:3,5,10 omv:3,5,10"),
        20,
        {**_REDUCED, "epsilon": epsilon},
    )


LEVELS: Mapping[str, Level] = {
    "eps1": Level(250, 21.1, tuple(range(10, 251, 10)), (1, 2, 5, 10, 25, 50)),
    "eps8": Level(
        2000,
        9.4,
        (*range(200, 1800, 200), *range(1800, 2001, 10)),
        (1, 5, 10, 25, 50, 100, 200, 400),
        LONG_METHODS,
    ),
    "cifar10_eps1": _reduced(1.0),
    "cifar10_eps8": _reduced(8.0),
}


def base(level: str, shift: str, data_dir: str) -> CifarConfig:
    """Returns what all arms share; its seeds are anybody's."""
    facts = LEVELS[level]
    fields: dict[str, Any] = {
        "data_dir": data_dir,
        "rounds": facts.steps,
        "batch_size": BATCH,
        "noise_multiplier": facts.noise_multiplier,
        "delta": 1e-5,
        "pds": shift == SHIFT,
        "pds_period": facts.period,
    }
    return CifarConfig(**fields | dict(facts.fields))


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


Several = Mapping[str, Sequence[Settings]]
_Rates = Sequence[float]
_LOW: _Rates = (2.0, 1.0, 0.5, 4.0)
_HIGH: _Rates = (4.0, 2.0, 1.0, 8.0)
_LOW_FIRST: _Rates = (2.0, 4.0, 1.0, 8.0)


def _of(rates: _Rates, averages: Sequence[Any], windows: Sequence[Any]) -> Several:
    """Returns the arms' candidates: rates, (rate, decay, start), (rate, k, start)."""
    return {
        BASELINE: [plain(rate) for rate in rates],
        EMA: [ema(*average) for average in averages],
        UTA: [uta(*window) for window in windows],
    }


def _of_reduced(
    decay: float, k: int, rates: _Rates, averages: _Rates, windows: _Rates
) -> Several:
    """Returns the same by their rates, from two thirds of the run on."""
    start = _REDUCED_START
    own = [(rate, decay, start) for rate in averages]
    return _of(rates, own, [(rate, k, start) for rate in windows])


# The paper's parameters come first.
CANDIDATES: Mapping[tuple[str, str], Several] = {
    ("eps1", ORIGINAL): _of(
        (3.5, 0.5, 1.0, 2.0, 2.8),
        ((4.0, 0.99, 200), (4.0, 0.85, 100), (2.0, 0.85, 100), (2.0, 0.5, 100),
         (2.0, 0.5, 200)),
        ((4.0, 50, 100), (4.0, 10, 100), (2.0, 10, 100), (2.0, 3, 100), (2.0, 3, 200)),
    ),
    ("eps1", SHIFT): _of(
        (4.0, 0.5, 1.0, 2.0, 2.8),
        ((4.0, 0.85, 200), (4.0, 0.85, 100), (2.0, 0.85, 100), (2.0, 0.95, 200),
         (2.0, 0.85, 200)),
        ((4.0, 5, 200), (4.0, 20, 100), (2.0, 20, 100), (2.0, 20, 200), (2.0, 10, 200)),
    ),
    ("eps8", ORIGINAL): _of(
        (4.0, 2.0, 1.0),
        ((4.0, 0.85, 1500), (2.0, 0.5, 1600), (1.0, 0.5, 1600)),
        ((4.0, 50, 400), (2.0, 3, 1600), (1.0, 3, 1600)),
    ),
    ("eps8", SHIFT): _of(
        (5.0, 2.0, 1.0),
        ((4.0, 0.85, 200), (2.0, 0.85, 1600), (1.0, 0.85, 1600)),
        ((4.0, 10, 50), (2.0, 10, 1600), (1.0, 10, 1600)),
    ),
    ("cifar10_eps1", ORIGINAL): _of_reduced(0.5, 2, _LOW, _LOW, _LOW),
    ("cifar10_eps1", SHIFT): _of_reduced(0.6, 3, _LOW, _LOW, _LOW),
    ("cifar10_eps8", ORIGINAL): _of_reduced(0.6, 2, _HIGH, _LOW_FIRST, _HIGH),
    ("cifar10_eps8", SHIFT): _of_reduced(0.6, 5, _HIGH, _LOW_FIRST, _LOW_FIRST),
}  # fmt: skip
