"""What a model's outputs mean, and how they are judged."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_agg.recycling.metrics import (
    ACCURACY,
    Metric,
    OutputJudge,
    accuracy_judge,
)

LOSS = Metric("loss", higher_is_better=False)


class Problem(NamedTuple):
    """What the outputs of a model are, and the metrics that judge them.

    Attributes:
      metrics: The metrics; the first is the one that is tuned.
      values: `values(predictions, labels)` returns by metric the value of each
        example. Scores are their means.
      label_type: What labels are numbers of.
      distributions: Whether predictions are distributions over classes. They are then
        the softmax of the outputs; otherwise the outputs themselves.
      no_vote: Why a vote over labels means nothing; empty where it means something.
      constant: `constant(labels)` returns the one prediction that suits all examples
        best, as an array of one row; None where there is no such thing.

    Example:
      >>> loss = Metric('loss', higher_is_better=False)
      >>> hinge = Problem(
      ...     (loss,), lambda out, y: {'loss': np.maximum(0, 1 - y * out[:, 0])},
      ...     label_type=np.float32, distributions=False, no_vote='margins, no labels')
      >>> hinge.judge().values([hinge.judge().of_scores(
      ...     np.array([[0.5], [2.0]]), 1, np.array([1.0, 1.0]))])
      {'loss': 0.25}
    """

    metrics: tuple[Metric, ...]
    values: Callable[[np.ndarray, np.ndarray], Mapping[str, np.ndarray]]
    label_type: type[Any] = np.float32
    distributions: bool = False
    no_vote: str = "outputs are not labels: an average of them is what can be used"
    constant: Callable[[np.ndarray], np.ndarray] | None = None

    def sums(
        self, predictions: np.ndarray, labels: np.ndarray
    ) -> tuple[dict[str, float], int]:
        """Returns the sums of the examples' values, and how many examples they are."""
        values = self.values(predictions, labels)
        sums = {n: float(v.sum(dtype=np.float64)) for n, v in values.items()}
        return sums, len(labels)

    def judge(self) -> OutputJudge:
        """Returns how the mean of several checkpoints' predictions is judged."""
        if not self.no_vote:
            return accuracy_judge()

        def of_scores(
            total: np.ndarray, count: int, targets: np.ndarray
        ) -> tuple[dict[str, float], int]:
            return self.sums(total / count, targets)

        names = tuple(metric.name for metric in self.metrics)
        return OutputJudge(of_scores, None, means, names, self.distributions)


def means(parts: Sequence[tuple[Mapping[str, float], int]]) -> dict[str, float]:
    """Returns the means over all parts of a sample, from the sums of each."""
    count = sum(number for _, number in parts)
    names = parts[0][0]
    return {
        name: sum(sums[name] for sums, _ in parts) / count if count else math.nan
        for name in names
    }


def _of_classes(scores: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    chosen = scores[np.arange(len(labels)), labels]
    return {
        "accuracy": scores.argmax(axis=1) == labels,
        "loss": -np.log(np.maximum(chosen, np.finfo(np.float32).tiny)),
    }


def _of_numbers(outputs: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    errors = outputs.reshape(labels.shape).astype(np.float64) - labels
    errors = errors.reshape(len(labels), -1)
    return {
        "loss": np.square(errors).mean(axis=1),
        "absolute_error": np.abs(errors).mean(axis=1),
    }


def _shares_of_classes(labels: np.ndarray) -> np.ndarray:
    return np.bincount(labels)[None] / len(labels)


def _mean_of_numbers(labels: np.ndarray) -> np.ndarray:
    return labels.mean(axis=0, dtype=np.float64).reshape(1, -1)


#: Labels are classes; judged by accuracy and mean cross entropy.
CLASSIFICATION = Problem(
    (ACCURACY, LOSS), _of_classes, np.int32, distributions=True, no_vote="",
    constant=_shares_of_classes,
)  # fmt: skip
#: Labels are numbers; judged by mean squared and mean absolute error.
REGRESSION = Problem(
    (LOSS, Metric("absolute_error", higher_is_better=False)),
    _of_numbers,
    no_vote=(
        "labels are numbers, of which no two models predict the same one; the mean of "
        "the outputs (OPA) is an average of predictions"
    ),
    constant=_mean_of_numbers,
)
