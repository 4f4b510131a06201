"""Membership inference: does a model's loss give away whom it was trained on?

The attacker knows a user's data and calls a user a member whose loss is low. It is the
attack of Yeom et al. (2018), by a threshold, on users instead of examples. What it
finds is a lower bound of what a model gives away: one weak attacker who finds nothing
proves nothing.

What differential privacy allows at most holds for this attacker as for all others,
where those who were not trained on are like those who were: the rate of true positives
is then the mean of that of all users, and so is that of false ones.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from tff_agg.aliases import JsonObject
from tff_agg.privacy import gaussian
from tff_agg.privacy.losses import Loss

#: The rates of false positives at which true ones are reported.
RATES = (0.01, 0.001)


class Interval(NamedTuple):
    """A figure with its confidence interval.

    Attributes:
      value: The figure.
      low: Where the interval begins.
      high: Where it ends.
    """

    value: float
    low: float
    high: float


class Found(NamedTuple):
    """What an attack by one score found.

    Attributes:
      name: The score: 'round 100', or several.
      auc: The chance that a member has a higher score than somebody else.
      advantage: The largest difference of the rates of true and false positives.
      true_positives: By the rate of false positives, the rate of true ones; None where
        there are too few others to see such a rate.
      curve: The rates of false and of true positives, at every threshold.
    """

    name: str
    auc: Interval
    advantage: float
    true_positives: Mapping[float, float | None]
    curve: tuple[np.ndarray, np.ndarray]

    def to_json(self) -> JsonObject:
        """Returns the figures, without the curve, as JSON values."""
        return {
            "attack": self.name,
            "auc": self.auc.value,
            "interval": [self.auc.low, self.auc.high],
            "advantage": self.advantage,
            "true_positives_at": {
                f"{rate:g}": value for rate, value in self.true_positives.items()
            },
        }


class Allowed(NamedTuple):
    """What a guarantee allows an attacker at most.

    Attributes:
      loss: The privacy loss of all that is released.
      epsilon: ε at `delta`.
      delta: δ.
    """

    loss: Loss
    epsilon: float
    delta: float

    @property
    def is_gaussian(self) -> bool:
        """Whether the loss is that of a Gaussian mechanism and nothing else."""
        return not (self.loss.kinds or self.loss.other_rho)

    def by_epsilon(self, rates: np.ndarray) -> np.ndarray:
        """Returns the most true positives that (ε, δ) alone allows.

        Example:
          >>> Allowed(Loss(mu=1.0), 1.0, 0.1).by_epsilon(np.array([0.0, 1.0])).tolist()
          [0.1, 1.0]
        """
        rates = np.asarray(rates, float)
        if math.isinf(self.epsilon) or self.epsilon > 700:
            return np.ones_like(rates)
        steep = math.exp(self.epsilon) * rates + self.delta
        flat = 1 - math.exp(-self.epsilon) * (1 - self.delta - rates)
        return np.minimum(np.minimum(steep, flat), 1.0)

    def true_positives(self, rates: np.ndarray) -> np.ndarray:
        """Returns the most true positives at rates of false ones.

        Exactly those of the run's Gaussian mechanism, or those that (ε, δ) allows
        where something else was released as well.
        """
        if self.is_gaussian:
            return gaussian.power(self.loss.mu, rates)
        return self.by_epsilon(rates)

    @property
    def auc(self) -> float:
        """The largest area under the curve.

        Example:
          >>> round(Allowed(Loss(mu=1.0), 4.0, 1e-5).auc, 4)
          0.7602
        """
        if self.is_gaussian:
            return float(ndtr(self.loss.mu / math.sqrt(2)))
        rates = np.linspace(0, 1, 100_001)
        return float(np.trapz(self.by_epsilon(rates), rates))

    @property
    def advantage(self) -> float:
        """The largest difference of true and false positives."""
        if self.is_gaussian:
            return float(2 * ndtr(self.loss.mu / 2) - 1)
        e = self.epsilon
        return math.tanh(e / 2) + self.delta * (1 - math.tanh(e / 2))

    def to_json(self) -> JsonObject:
        """Returns the figures as JSON values."""
        most = self.true_positives(np.array(RATES))
        return {
            "auc": self.auc,
            "advantage": self.advantage,
            "true_positives_at": {
                f"{rate:g}": float(value)
                for rate, value in zip(RATES, most, strict=True)
            },
        }


def least_epsilon(auc: float, delta: float) -> float:
    """Returns the ε at δ of the weakest Gaussian mechanism that allows an area.

    Example:
      >>> least_epsilon(0.5, 1e-6)
      0.0
      >>> round(least_epsilon(0.76024993890652337, 1e-5), 2)
      4.38
    """
    if auc <= 0.5:
        return 0.0
    return gaussian.epsilon(math.sqrt(2) * float(ndtri(auc)), delta)


def attack(
    name: str, members: np.ndarray, others: np.ndarray, *, confidence: float = 0.95
) -> Found:
    """Calls those members whose score is high, at every threshold.

    Args:
      name: What the score is called.
      members: The scores of those who were trained on.
      others: The scores of those who were not.
      confidence: Of the area's interval: that of DeLong et al. (1988), over the
        choice of members and of others.

    Raises:
      ValueError: There are fewer than two of either, or a score is not a number.

    Example:
      >>> found = attack('toy', np.array([2.0, 3.0, 4.0]), np.array([1.0, 2.5]))
      >>> round(found.auc.value, 3), round(found.advantage, 3)
      (0.833, 0.667)
    """
    members, others = (np.asarray(x, float) for x in (members, others))
    if min(len(members), len(others)) < 2:
        raise ValueError(
            f"members and others must be two each at least; got {len(members)} and "
            f"{len(others)}"
        )
    if not (np.isfinite(members).all() and np.isfinite(others).all()):
        raise ValueError("members and others must be finite numbers")
    false, true = curve(members, others)
    return Found(
        name,
        _area(members, others, confidence),
        float(np.max(true - false)),
        {rate: _at(rate, members, others) for rate in RATES},
        (false, true),
    )


def curve(members: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rates of false and of true positives, from (0, 0) to (1, 1).

    Example:
      >>> false, true = curve(np.array([1.0, 2.0]), np.array([0.0, 1.0]))
      >>> false.tolist(), true.tolist()
      ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    thresholds = np.unique(np.concatenate([members, others]))[::-1]
    found = []
    for scores in (others, members):
        below = np.searchsorted(np.sort(scores), thresholds, side="left")
        above = (len(scores) - below) / len(scores)
        found.append(np.concatenate([[0.0], above]))
    return found[0], found[1]


def best(found: Sequence[Found]) -> Found:
    """Returns the attack with the largest area, the first of equals."""
    return max(found, key=lambda one: one.auc.value)


def _area(members: np.ndarray, others: np.ndarray, confidence: float) -> Interval:
    """Returns the share of pairs in which the member is higher; a tie is a half."""
    beaten, beating = _below(members, others), 1 - _below(others, members)
    area = float(beaten.mean())
    variance = sum(shares.var(ddof=1) / len(shares) for shares in (beaten, beating))
    wide = float(ndtri((1 + confidence) / 2)) * math.sqrt(variance)
    return Interval(area, max(area - wide, 0.0), min(area + wide, 1.0))


def _below(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns for each score the share of others that are below it."""
    ranked = np.sort(others)
    below, not_above = (np.searchsorted(ranked, scores, s) for s in ("left", "right"))
    return (below + not_above) / 2 / len(others)


def _at(rate: float, members: np.ndarray, others: np.ndarray) -> float | None:
    """Returns the true positives at the lowest threshold that keeps a rate."""
    let_in = math.floor(rate * len(others) + 1e-9)
    if not let_in:
        return None
    threshold = np.sort(others)[-let_in - 1]
    return float((members > threshold).mean())
