"""Tasks whose examples are rows of features with a label each."""

import abc
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from tff_agg.experiment.task import Sample, Scores, Task, Weights
from tff_agg.recycling.metrics import ACCURACY, Metric

Examples = tuple[np.ndarray, np.ndarray]


class ClassifierTask(Task):
    """Samples and scores of a classifier, from its predicted distributions."""

    metrics: ClassVar[tuple[Metric, ...]] = (
        ACCURACY,
        Metric("loss", higher_is_better=False),
    )

    @abc.abstractmethod
    def evaluation_examples(self, split: str) -> Mapping[str, Examples]:
        """Returns features and labels of a split, by group."""

    def sample(self, split: str, examples: int, seed: int) -> Sample:
        """Draws examples of all groups in their shares."""
        groups = self.evaluation_examples(split)
        total = sum(len(labels) for _, labels in groups.values())
        if not total:
            raise ValueError(f"the split {split!r} of {self.package} has no examples")
        share = min(1.0, examples / total)
        found = {}
        for number, (name, (features, labels)) in enumerate(groups.items()):
            count = max(1, round(share * len(labels)))
            chosen = np.sort(
                np.random.default_rng([seed, number]).permutation(len(labels))[:count]
            )
            found[name] = (features[chosen], labels[chosen])
        return found

    def flat_sample(self, sample: Sample) -> "Rows":
        """Returns all examples, to be sliced together with their labels."""
        features, labels = zip(*sample.values(), strict=True)
        return Rows(np.concatenate(features), np.concatenate(labels))

    def evaluator(self) -> Callable[[Weights, Sample], Scores]:
        """Returns accuracy and mean cross entropy."""
        predict = self.predictor()

        def sums(weights: Weights, examples: Examples) -> np.ndarray:
            scores, labels = predict(weights, Rows(*examples))
            chosen = scores[np.arange(len(labels)), labels]
            right = scores.argmax(axis=1) == labels
            loss = -np.log(np.maximum(chosen, np.finfo(np.float32).tiny))
            return np.array([right.sum(), loss.sum(dtype=np.float64), len(labels)])

        def evaluate(weights: Weights, sample: Sample) -> Scores:
            parts = {name: sums(weights, part) for name, part in sample.items()}
            parts["all"] = np.sum(list(parts.values()), axis=0)
            return {
                name: {"accuracy": right / count, "loss": loss / count}
                for name, (right, loss, count) in parts.items()
            }

        return evaluate


class Rows:
    """Features with their labels, sliced together."""

    def __init__(self, features: np.ndarray, labels: np.ndarray):
        self.features, self.labels = features, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, part: slice) -> "Rows":
        return Rows(self.features[part], self.labels[part])
