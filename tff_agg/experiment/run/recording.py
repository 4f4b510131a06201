"""Writes a run's numbers: tables, event files, and what an observer receives."""

import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tff_agg import privacy
from tff_agg.aliases import Json, JsonObject
from tff_agg.experiment.build import needs
from tff_agg.experiment.run import event_files, loop, tables
from tff_agg.experiment.task import Scores, Task, Weights

WEIGHTS = ("iterate", "aggregate")
# The scores of θ and of θ^AGG.
ScoresOfBoth = dict[str, Scores]

_log = logging.getLogger(__name__)


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


class SampleScorer:
    """Scores weights on a fixed sample, over all and apart for each group."""

    def __init__(self, task: Task, split: str, examples: int):
        """Draws the sample."""
        self._evaluate = task.evaluator()
        self._sample = task.fixed_sample(split, examples)

    @property
    def num_groups(self) -> int:
        """How many groups are scored, the whole sample among them."""
        return len({"all", *self._sample})

    def __call__(self, weights: Weights) -> Scores:
        """Returns the scores by group."""
        return self._evaluate(weights, self._sample)

    def of_both(self, iterate: Weights, aggregate: Weights) -> ScoresOfBoth:
        """Returns the scores of θ and θ^AGG; evaluates once where they are the same."""
        first = self(iterate)
        second = first if aggregate is iterate else self(aggregate)
        return dict(zip(WEIGHTS, (first, second), strict=True))


class Recorder:
    """Keeps the tables and event files of one run folder."""

    def __init__(
        self,
        task: Task,
        folder: pathlib.Path,
        plan: privacy.Plan,
        observer: Observer,
    ):
        """Draws the evaluation samples; writes nothing yet."""
        self._config, self._plan, self._observer = task.config, plan, observer
        self._names = [metric.name for metric in task.metrics]
        self._folder = folder
        self._events: event_files.EventFiles | None = None
        self._metrics: tables.RoundTable | None = None
        columns = ["round", "weights", "group", *self._names]
        self._validation = tables.RoundTable(folder / "validation.csv", columns)
        self._tests = tables.RoundTable(folder / "test.csv", columns)
        self._timing = tables.RoundTable(folder / "timing.csv", ["round", "seconds"])
        wanted = self._config.validation_examples
        self._validate = SampleScorer(task, "heldout", wanted)
        # Where the test data are to be left alone, the sample is not even drawn.
        self._test: SampleScorer | None = None
        if wanted := self._config.test_examples:
            self._test = SampleScorer(task, "test", wanted)

    def start(self, done: int, past: Sequence[loop.Past]) -> None:
        """Makes tables and event files say what the ledger says, and opens them."""
        rows = [_row(p.round, p.metrics, p.reported["epsilon_so_far"]) for p in past]
        if rows:
            self._open_metrics(rows)
        timing = [{"round": p.round, "seconds": p.seconds} for p in past]
        self._restore(self._timing, timing)
        validated = [(p.round, p.reported["validation"]) for p in past]
        validation = [r for n, scores in validated for r in self._score_rows(n, scores)]
        self._restore(self._validation, validation)
        if self._test is not None:
            self._tests.keep_until(done)
        self._events = event_files.EventFiles(self._folder / "tensorboard")
        for row, (number, scores) in zip(rows, validated, strict=True):
            self._events.write(number, self._scalars(row, scores))
        self._observer.on_start(done, self._config.rounds)

    def record(self, report: loop.Report) -> JsonObject:
        """Writes down a round, validates when it is time to, returns what it found."""
        config, done = self._config, report.round
        spent = self._spent(done)
        row = _row(done, report.metrics, spent)
        if self._metrics is None:
            self._open_metrics([], list(row))
        assert self._metrics is not None and self._events is not None
        self._metrics.append(row)
        self._timing.append({"round": done, "seconds": round(report.seconds, 4)})
        scores: ScoresOfBoth = {}
        if done % config.evaluate_every == 0 or done == config.rounds:
            scores = self._validate.of_both(report.iterate, report.aggregate)
            for found in self._score_rows(done, scores):
                self._validation.append(found)
        facts = self._scalars(row, scores)
        self._events.write(done, facts)
        self._observer.on_round(done, facts)
        return {"epsilon_so_far": spent, "validation": scores}

    def _open_metrics(
        self, rows: Sequence[tables.Row], columns: list[str] | None = None
    ) -> None:
        columns = columns or list(rows[0])
        self._metrics = tables.RoundTable(self._folder / "metrics.csv", columns)
        self._restore(self._metrics, rows)

    def _restore(self, table: tables.RoundTable, rows: Sequence[tables.Row]) -> None:
        if missing := table.restore(rows):
            _log.warning(
                "%s did not have what the run's ledger says of %d rounds, first round "
                "%d: it was written anew.",
                table.path,
                len(missing),
                missing[0],
            )

    def is_tested(self) -> bool:
        """Returns whether all scores of the last model on test data are there."""
        if self._test is None:
            return True
        path = self._folder / "test.csv"
        wanted = len(WEIGHTS) * self._test.num_groups
        return path.exists() and len(tables.read_rows(path)) == wanted

    def tested(self) -> ScoresOfBoth:
        """Reads the scores on the test sample back; none where it is left alone."""
        found: ScoresOfBoth = {weights: {} for weights in WEIGHTS}
        if self._test is None:
            return found
        for row in tables.read_rows(self._folder / "test.csv"):
            scores = {name: float(row[name]) for name in self._names}
            found[row["weights"]][row["group"]] = scores
        return found

    def test(self, iterate: Weights, aggregate: Weights) -> ScoresOfBoth:
        """Scores the last model on the test sample, or reads what was scored."""
        if self._test is not None and not self.is_tested():
            self._tests.keep_until(-1)  # a kill may have left part of it
            scores = self._test.of_both(iterate, aggregate)
            for row in self._score_rows(self._config.rounds, scores):
                self._tests.append(row)
        if self._events is not None:
            self._events.close()
        for table in (self._metrics, self._timing, self._validation, self._tests):
            if table is not None and table.path.exists():
                table.sync()
        return self.tested()

    def end(self, iterate: Weights, aggregate: Weights) -> Outcome:
        """Tests the last model if that is wanted, and gives the observer the result."""
        outcome = Outcome(self._folder, self.test(iterate, aggregate), self._plan)
        self._observer.on_end(outcome)
        return outcome

    def _spent(self, done: int) -> float | str:
        """Returns the ε of the rounds so far; "none" where there is no guarantee.

        It is for a stopping round that was fixed in advance.
        """
        if self._plan.no_guarantee:
            return "none"
        return self._plan.epsilon_so_far(done)

    def _score_rows(self, done: int, scores: ScoresOfBoth) -> list[tables.Row]:
        """Returns the rows of validation.csv or test.csv."""
        return [
            {"round": done, "weights": weights, "group": group}
            | {name: found[name] for name in self._names}
            for weights, by_group in scores.items()
            for group, found in by_group.items()
        ]

    def _scalars(
        self, row: Mapping[str, Json], scores: ScoresOfBoth
    ) -> dict[str, float]:
        """Returns a round's numbers for event files and observers."""
        facts: dict[str, float] = {
            k: v for k, v in row.items() if isinstance(v, int | float)
        }
        for weights, by_group in scores.items():
            for group, found in by_group.items():
                for name in self._names:
                    facts[f"validation/{weights}/{group}/{name}"] = found[name]
        if scores:
            facts["validation"] = scores["aggregate"]["all"][self._names[0]]
        return facts


def _row(done: int, metrics: Mapping[str, Json], spent: float | str) -> JsonObject:
    """Returns a round's row of metrics.csv."""
    return {"round": done, **metrics, "epsilon_so_far": spent}
