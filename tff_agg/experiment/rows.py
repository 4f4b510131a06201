"""Tasks whose examples are rows: features with a label each."""

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import tree

from tff_agg.aliases import Structure
from tff_agg.experiment.task import Sample, Scores, Task, Weights
from tff_agg.recycling import problems
from tff_agg.recycling.metrics import Metric, OutputJudge
from tff_agg.recycling.outputs import Predictions

#: Features and labels. Features are an array, or several as a dict or a tuple; all have
#: the examples along their first axis.
Examples = tuple[Structure, np.ndarray]


class RowsTask(Task):
    """Samples and scores of a model, from its predictions for rows of features.

    Class attributes:
      problem: What outputs mean: `problems.CLASSIFICATION`, `problems.REGRESSION`, or a
        `Problem` of one's own. It gives the task its metrics.
    """

    problem: ClassVar[problems.Problem] = problems.CLASSIFICATION
    metrics: ClassVar[tuple[Metric, ...]] = problems.CLASSIFICATION.metrics

    def __init_subclass__(cls, **more: Any):
        """Takes over what the problem says, where the class says nothing itself."""
        super().__init_subclass__(**more)
        if "problem" in cls.__dict__:
            for name in ("metrics", "no_vote"):
                if name not in cls.__dict__:
                    setattr(cls, name, getattr(cls.problem, name))

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
        drawn = {}
        for number, (name, (features, labels)) in enumerate(groups.items()):
            count = max(1, round(share * len(labels)))
            chosen = np.sort(
                np.random.default_rng([seed, number]).permutation(len(labels))[:count]
            )
            drawn[name] = (_taken(features, chosen), labels[chosen])
        return drawn

    def flat_sample(self, sample: Sample) -> "Rows":
        """Returns all examples, to be sliced together with their labels."""
        features, labels = zip(*sample.values(), strict=True)
        joined = tree.map_structure(lambda *parts: np.concatenate(parts), *features)
        return Rows(joined, np.concatenate(labels))

    def evaluator(self) -> Callable[[Weights, Sample], Scores]:
        """Returns the means of the problem's metrics."""
        predict = self.predictor()

        def evaluate(weights: Weights, sample: Sample) -> Scores:
            return self._scores(sample, lambda rows: predict(weights, rows))

        return evaluate

    def trivial(self, sample: Sample) -> Scores:
        """Returns the scores of the shares of the classes, or of the mean of labels."""
        if self.problem.constant is None:
            return {}
        constant = self.problem.constant(self.flat_sample(sample).labels)
        return self._scores(
            sample,
            lambda rows: Predictions(
                np.repeat(constant, len(rows), axis=0), rows.labels
            ),
        )

    def _scores(
        self, sample: Sample, predict: Callable[["Rows"], Predictions]
    ) -> Scores:
        """Returns the problem's means by group, and over all groups."""
        sums = {
            name: self.problem.sums(*predict(Rows(*part)))
            for name, part in sample.items()
        }
        by_group = {name: problems.means([part]) for name, part in sums.items()}
        return by_group | {"all": problems.means(list(sums.values()))}

    def judge(self) -> OutputJudge:
        """Returns how the problem judges mean outputs."""
        return self.problem.judge()


class Rows:
    """Features with their labels, sliced together."""

    def __init__(self, features: Structure, labels: np.ndarray):
        self.features, self.labels = features, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, part: slice) -> "Rows":
        return Rows(*self.part(part))

    def part(self, chosen: slice | np.ndarray) -> Examples:
        """Returns some of the features, and their labels."""
        return _taken(self.features, chosen), self.labels[chosen]


def _taken(features: Structure, part: slice | np.ndarray) -> Structure:
    return tree.map_structure(lambda array: array[part], features)
