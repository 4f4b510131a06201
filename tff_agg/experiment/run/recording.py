"""Judges a run's models while it goes on, and tells an observer."""

import functools
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from tff_agg import privacy
from tff_agg.aliases import JsonObject
from tff_agg.experiment.build import needs
from tff_agg.experiment.run import projection
from tff_agg.experiment.run.releasing import Report
from tff_agg.experiment.run.run_folder import RunFolder
from tff_agg.experiment.task import Scores, Task, Weights
from tff_agg.recycling import series
from tff_agg.recycling.metrics import Metric

# The scores of θ and of θ^AGG, and of always the same answer where the task says it.
ScoresOfBoth = dict[str, Scores]


class Outcome(NamedTuple):
    """The result of a finished run.

    Attributes:
      folder: The run's folder.
      test: By weights ('iterate', 'aggregate') and group ('all' and those of the
        task), the scores on the test sample; no groups where it was left alone.
      plan: The privacy plan.
    """

    folder: pathlib.Path
    test: ScoresOfBoth
    plan: privacy.Plan


class Observer:
    """Receives what happens while a run goes on; override what you need."""

    def on_plan(self, plan: privacy.Plan, cohorts: privacy.Sampler) -> None:
        """Receives the privacy plan before anything is computed."""

    def on_signal(self, lines: Sequence[str]) -> None:
        """Receives what the noise leaves of the signal, in words; see `run.told`."""

    def on_disk(self, disk: needs.Disk) -> None:
        """Receives what the run will take on the disk."""

    def on_start(self, done: int, rounds: int) -> None:
        """Receives how many rounds earlier processes have done."""

    def on_round(self, done: int, facts: dict[str, float]) -> None:
        """Receives a round's numbers; 'validation' where the metric was measured."""

    def on_end(self, outcome: Outcome) -> None:
        """Receives the result."""


def below_trivial(scores: ScoresOfBoth, metrics: Sequence[Metric]) -> str:
    """Says so where what was broadcast is no better than always the same answer.

    Returns:
      A sentence; empty where it is better by the first metric, or nobody knows.
    """
    if series.TRIVIAL not in scores or "all" not in scores.get("aggregate", {}):
        return ""
    own, trivial = scores["aggregate"]["all"], scores[series.TRIVIAL]["all"]
    first = metrics[0].name
    if metrics[0].better(own[first], trivial[first]):
        return ""
    figures = ", ".join(
        f"{metric.label} {metric.show(own[metric.name])} against "
        f"{metric.show(trivial[metric.name])}"
        for metric in metrics
    )
    return (
        "This model is no better than always the same answer, the most frequent one or "
        f"the mean ({figures}). docs/first_run.md says what helps."
    )


class SampleScorer:
    """Scores weights on a fixed sample, over all and apart for each group.

    Attributes:
      sample: The sample.
    """

    def __init__(self, task: Task, split: str, examples: int):
        """Draws the sample."""
        self._evaluate = task.evaluator()
        self.sample = task.fixed_sample(split, examples)
        self._task = task

    def __call__(self, weights: Weights) -> Scores:
        """Returns the scores by group."""
        return self._evaluate(weights, self.sample)

    @functools.cached_property
    def _trivial(self) -> Scores:
        return self._task.trivial(self.sample)

    def of_both(self, iterate: Weights, aggregate: Weights) -> ScoresOfBoth:
        """Returns the scores of θ and θ^AGG; evaluates once where they are the same."""
        first = self(iterate)
        second = first if aggregate is iterate else self(aggregate)
        found = dict(zip(series.NAMES, (first, second), strict=True))
        return found | ({series.TRIVIAL: self._trivial} if self._trivial else {})


class Recorder:
    """Judges a run's models, enters that in the ledger, and tells the observer."""

    def __init__(
        self, task: Task, folder: RunFolder, plan: privacy.Plan, observer: Observer
    ):
        """Draws the evaluation samples; writes nothing yet."""
        self._config, self._plan, self._observer = task.config, plan, observer
        self._folder = folder
        names = [metric.name for metric in task.metrics]
        self._files = projection.Projection(folder, names)
        wanted = self._config.validation_examples
        self._validate = SampleScorer(task, "heldout", wanted)
        # Where the test data are to be left alone, the sample is not even drawn.
        self._test: SampleScorer | None = None
        if wanted := self._config.test_examples:
            self._test = SampleScorer(task, "test", wanted)

    def start(self, done: int) -> None:
        """Makes tables and event files say what the ledger says."""
        self._files.restore(self._folder.history)
        self._observer.on_start(done, self._config.rounds)

    def record(self, report: Report) -> JsonObject:
        """Validates when it is time to, writes a round down, returns what it found."""
        config, done = self._config, report.round
        scores: ScoresOfBoth = {}
        if done % config.evaluate_every == 0 or done == config.rounds:
            scores = self._validate.of_both(report.iterate, report.aggregate)
        found: JsonObject = {"epsilon_so_far": self._spent(done), "validation": scores}
        facts = self._files.add_round(done, report.metrics, report.seconds, found)
        self._observer.on_round(done, facts)
        return found

    @property
    def is_tested(self) -> bool:
        """Whether the last model was tested, or is not to be."""
        history = self._folder.history
        tested = history is not None and history.tested is not None
        return tested or self._test is None

    def end(self, iterate: Weights, aggregate: Weights) -> Outcome:
        """Tests the last model if that is wanted, and gives the observer the result."""
        if self._test is not None and not self.is_tested:
            scores = self._test.of_both(iterate, aggregate)
            # Before anybody sees them: there is no second look.
            self._folder.ledger.add_tested(scores)
            self._files.add_test(self._config.rounds, scores)
        return self.ended()

    def ended(self) -> Outcome:
        """Gives the observer the result of a run of which nothing is left to do."""
        self._files.close()
        history = self._folder.history
        tested = None if history is None else history.tested
        test = {name: {} for name in series.NAMES} if tested is None else tested
        outcome = Outcome(self._folder.path, test, self._plan)
        self._observer.on_end(outcome)
        return outcome

    def _spent(self, done: int) -> float | str:
        """Returns the ε of the rounds so far; "none" where there is no guarantee.

        It is for a stopping round that was fixed in advance.
        """
        if self._plan.no_guarantee:
            return "none"
        return self._plan.epsilon_so_far(done)
