"""What models are judged by: values with a name and a direction."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

Values = Mapping[str, float]


class Metric(NamedTuple):
    """A figure by which models are compared.

    Attributes:
      name: The column in tables and the key in values.
      higher_is_better: The direction.
      is_share: Whether it lies between 0 and 1 and is shown in percent.

    Example:
      >>> accuracy = Metric('accuracy', is_share=True)
      >>> accuracy.show(0.1234), accuracy.label
      ('12.34', 'accuracy %')
      >>> Metric('auc_loss', higher_is_better=False).better(0.2, 0.3)
      True
    """

    name: str
    higher_is_better: bool = True
    is_share: bool = False

    @property
    def label(self) -> str:
        """What tables and pictures call it, with its unit."""
        words = self.name.replace("_", " ")
        return f"{words} %" if self.is_share else words

    @property
    def scale(self) -> float:
        """What a value is multiplied with before it is shown."""
        return 100.0 if self.is_share else 1.0

    def show(self, value: float, digits: int = 2) -> str:
        """Formats a value for a table."""
        if not self.is_share:
            digits += 2
        return f"{self.scale * value:.{digits}f}"

    def better(self, value: float, other: float) -> bool:
        """Returns whether `value` beats `other`; NaN beats nothing and loses to all."""
        if math.isnan(value) or math.isnan(other):
            return math.isnan(other) and not math.isnan(value)
        return value > other if self.higher_is_better else value < other


ACCURACY = Metric("accuracy", is_share=True)


#: What a judge makes of one portion.
Part = TypeVar("Part")


class OutputJudge(NamedTuple, Generic[Part]):
    """How the combined outputs of several checkpoints are judged.

    A sample may be too large to hold all outputs at once. It is judged in portions,
    whose results are put together at the end.

    Attributes:
      of_scores: `of_scores(total, count, targets)` judges one portion by the sum of
        the scores of `count` checkpoints, [positions, classes].
      of_labels: `of_labels(labels, targets)` judges one portion by labels that were
        voted for; None where outputs are not labels, so that a vote means nothing.
      values: Turns the results of all portions into values by name.
      metrics: The names of those values.
      distributions: Whether scores are predicted distributions, between 0 and 1; any
        finite numbers where not.
    """

    of_scores: Callable[[np.ndarray, int, np.ndarray], Part]
    of_labels: Callable[[np.ndarray, np.ndarray], Part] | None
    values: Callable[[Sequence[Part]], dict[str, float]]
    metrics: tuple[str, ...]
    distributions: bool = True


def accuracy_judge() -> OutputJudge[tuple[int, int]]:
    """Returns the judge that counts right labels.

    Example:
      >>> judge = accuracy_judge()
      >>> part = judge.of_labels(np.array([1, 2]), np.array([1, 3]))
      >>> judge.values([part])
      {'accuracy': 0.5}
    """

    def of_labels(labels: np.ndarray, targets: np.ndarray) -> tuple[int, int]:
        return int(np.count_nonzero(labels == targets)), len(targets)

    def of_scores(
        total: np.ndarray, count: int, targets: np.ndarray
    ) -> tuple[int, int]:
        return of_labels(total.argmax(axis=1), targets)

    def values(parts: Iterable[tuple[int, int]]) -> dict[str, float]:
        right, total = (sum(column) for column in zip(*parts, strict=True))
        return {ACCURACY.name: right / total if total else math.nan}

    return OutputJudge(of_scores, of_labels, values, (ACCURACY.name,))
