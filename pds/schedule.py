"""How the share of the first population moves over the rounds.

A schedule is a function of the round number alone. With period T and t counted from 0:

| name | share of group 1 |
|---|---|
| linear | the absolute value of 2 (t mod T) / T − 1 |
| cosine | (1 + cos(2π t / T)) / 2 |
| step | 1 in the first half of a period, 0 in the second |
| constant | always the same |

The three periodic ones start with all clients from group 1, reach none of them half a
period later and average one half over a period.
"""

import dataclasses
import math
from collections.abc import Callable

from tff_agg import checks

_SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda phase: abs(2.0 * phase - 1.0),
    "cosine": lambda phase: 0.5 * (1.0 + math.cos(2.0 * math.pi * phase)),
    "step": lambda phase: 1.0 if phase < 0.5 else 0.0,
}


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The share of clients from group 1 in each round; use the functions below.

    Attributes:
      shape: `'linear'`, `'cosine'`, `'step'` or `'constant'`.
      period: Rounds in a period; None for a constant.
      value: The share of a constant schedule; None for the others.

    Example:
      >>> [linear(4).share(t) for t in range(5)]
      [1.0, 0.5, 0.0, 0.5, 1.0]
    """

    shape: str
    period: int | None = None
    value: float | None = None

    def __post_init__(self):
        if self.shape == "constant":
            if self.period is not None:
                raise ValueError(f"period={self.period}: a constant has no period")
            checks.number("value", self.value, "[0, 1]")
            return
        checks.choice("shape", self.shape, (*_SHAPES, "constant"))
        if self.value is not None:
            raise ValueError(f"value={self.value}: only a constant has a value")
        checks.whole("period", self.period, least=2)

    def share(self, t: int) -> float:
        """Returns the probability that a client of round `t` comes from group 1."""
        if t < 0:
            raise ValueError(f"t={t}: rounds are counted from 0")
        if self.value is not None:
            return self.value
        assert self.period is not None
        return _SHAPES[self.shape]((t % self.period) / self.period)

    def describe(self) -> str:
        """Returns the schedule in words."""
        if self.value is not None:
            return f"constant share {self.value:g}"
        return f"{self.shape} shift with a period of {self.period} rounds"


def linear(period: int) -> Schedule:
    """Returns the triangle wave of the paper: from 1 down to 0 and back up.

    Example:
      >>> linear(period=200).share(50)
      0.5
    """
    return Schedule("linear", period=period)


def cosine(period: int) -> Schedule:
    """Returns a smooth wave from 1 down to 0 and back up.

    Example:
      >>> cosine(period=200).share(100)
      0.0
    """
    return Schedule("cosine", period=period)


def step(period: int) -> Schedule:
    """Returns a square wave: half a period of group 1 only, then of group 2 only.

    Example:
      >>> step(period=200).share(100)
      0.0
    """
    return Schedule("step", period=period)


def constant(value: float) -> Schedule:
    """Returns the same share in all rounds.

    Example:
      >>> constant(0.5).share(7)
      0.5
    """
    return Schedule("constant", value=float(value))
