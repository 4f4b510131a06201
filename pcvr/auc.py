"""The AUC-loss, 1 − AUC: how often a conversion is ranked below a non-conversion."""

import math
from collections.abc import Sequence

import numpy as np

from tff_agg.recycling.metrics import Metric, OutputJudge

AUC_LOSS = Metric("auc_loss", higher_is_better=False)
LOG_LOSS = Metric("loss", higher_is_better=False)
_LEAST = 1e-12


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Returns the share of pairs (conversion, other) in the right order.

    A pair of equal scores counts one half. NaN where one of the two is missing.

    Example:
      >>> auc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1]))
      0.875
    """
    scores, labels = np.asarray(scores), np.asarray(labels)
    positives = int(np.count_nonzero(labels))
    negatives = len(labels) - positives
    if not positives or not negatives or np.isnan(scores).any():
        return math.nan
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    converted = np.bincount(place, labels, len(counts))
    others = counts - converted
    below = np.cumsum(others) - others
    # Whole and half numbers: exact up to 2⁵³ pairs.
    return float(converted @ (below + others / 2)) / (positives * negatives)


def values(chances: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns all metrics of predicted chances of a conversion."""
    right = np.where(labels == 1, chances, 1.0 - chances).astype(np.float64)
    log_loss = -np.log(np.maximum(right, _LEAST)).mean() if len(right) else math.nan
    return {AUC_LOSS.name: 1 - auc(chances, labels), LOG_LOSS.name: float(log_loss)}


def judge() -> OutputJudge:
    """Returns how mean outputs are judged: by their ranks, over the whole sample.

    There is no vote: what is used are the chances themselves, not labels.
    """

    def keep(
        total: np.ndarray, count: int, targets: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return total[:, 1] / count, targets

    def joined(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
        chances, targets = zip(*parts, strict=True)
        return values(np.concatenate(chances), np.concatenate(targets))

    return OutputJudge(keep, None, joined, (AUC_LOSS.name, LOG_LOSS.name))
