"""Writes a run's numbers: tables, event files, and what an observer hears."""

import math
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pds import sampler
from stackoverflow import config as configs
from stackoverflow import event_files, metrics, model
from stackoverflow.token_store import TokenStore
from tff_agg import loop, privacy, tables

WEIGHTS = ("iterate", "aggregate")
GROUPS = ("all", "question", "answer")
SCORES = ("accuracy", "accuracy_with_oov", "loss", "perplexity")
VALIDATION_SEED = 1
TEST_SEED = 2

Scores = dict[str, dict[str, dict[str, float]]]


class Outcome(NamedTuple):
    """What a finished run has come to.

    Attributes:
      folder: The run's folder.
      test: By weights ('iterate', 'aggregate') and group ('all', 'question',
        'answer'), the scores on the test sample; no groups where it was left alone.
      plan: The privacy plan.
    """

    folder: pathlib.Path
    test: Scores
    plan: privacy.Plan


class Observer:
    """What a run tells while it goes on; override what you want to hear."""

    def on_plan(self, plan: privacy.Plan, cohorts: sampler.Sampler) -> None:
        """Hears the privacy plan before anything is computed."""

    def on_start(self, done: int, rounds: int) -> None:
        """Hears how many rounds earlier processes have done."""

    def on_round(self, done: int, facts: dict[str, float]) -> None:
        """Hears a round's numbers; 'validation_accuracy' where it was measured."""

    def on_end(self, outcome: Outcome) -> None:
        """Hears the result."""


def evaluation_rows(
    data: TokenStore, split: str, sentences: int, seed: int
) -> dict[str, np.ndarray]:
    """Draws a fixed sample of a split, with questions and answers in their shares."""
    counts = {kind: data.summary[split][f"{kind}s"] for kind in GROUPS[1:]}
    total = sum(counts.values())
    if not total:
        raise ValueError(f"the split {split!r} of {data.path} has no sentences")
    rows = {}
    for kind, count in counts.items():
        if wanted := round(min(sentences, total) * count / total):
            rows[kind] = data.sample_rows(split, int(wanted), seed, kind)
    return rows


class Evaluation:
    """Scores weights on a fixed sample, over all and apart for each group."""

    def __init__(self, sizes: model.ModelConfig, rows: dict[str, np.ndarray]):
        """Takes the model's sizes and the sample's rows by group."""
        from stackoverflow import evaluation

        self._evaluate = evaluation.evaluator(sizes)
        self._rows = rows

    @property
    def num_groups(self) -> int:
        """How many groups are scored, the whole sample among them."""
        return 1 + len(self._rows)

    def __call__(self, weights: Sequence[np.ndarray]) -> dict[str, dict[str, float]]:
        """Returns the scores by group."""
        sums = {
            kind: self._evaluate(weights, rows) for kind, rows in self._rows.items()
        }
        scores = {kind: metrics.finalize(found) for kind, found in sums.items()}
        return {"all": metrics.finalize(metrics.add(sums.values()))} | scores

    def of_both(
        self, iterate: list[np.ndarray], aggregate: list[np.ndarray]
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Returns the scores of θ and θ^AGG; evaluates once where they are the same."""
        first = self(iterate)
        second = first if aggregate is iterate else self(aggregate)
        return dict(zip(WEIGHTS, (first, second), strict=True))


class Recorder:
    """Keeps the tables and event files of one run folder."""

    def __init__(
        self,
        config: configs.TrainConfig,
        folder: pathlib.Path,
        data: TokenStore,
        sizes: model.ModelConfig,
        plan: privacy.Plan,
        observer: Observer,
    ):
        """Draws the evaluation samples; writes nothing yet."""
        self._config, self._plan, self._observer = config, plan, observer
        self._folder = folder
        self._done = 0
        self._events: event_files.EventFiles | None = None
        self._metrics: tables.RoundTable | None = None
        columns = ["round", "weights", "group", *SCORES]
        self._validation = tables.RoundTable(folder / "validation.csv", columns)
        self._tests = tables.RoundTable(folder / "test.csv", columns)
        self._timing = tables.RoundTable(folder / "timing.csv", ["round", "seconds"])
        wanted = config.validation_sentences
        self._validate = Evaluation(
            sizes, evaluation_rows(data, "heldout", wanted, VALIDATION_SEED)
        )
        # Where the test data are to be left alone, the sample is not even drawn.
        self._test: Evaluation | None = None
        if wanted := config.test_sentences:
            self._test = Evaluation(
                sizes, evaluation_rows(data, "test", wanted, TEST_SEED)
            )

    def start(self, done: int) -> None:
        """Cuts the tables back to the rounds that are done, and opens them."""
        self._done = done
        tested = [] if self._test is None else [self._tests]
        for table in (self._validation, self._timing, *tested):
            table.keep_until(done)
        self._events = event_files.EventFiles(self._folder / "tensorboard")
        self._observer.on_start(done, self._config.rounds)

    def record(self, report: loop.Report) -> None:
        """Writes down a round, and validates when it is time to."""
        config, done = self._config, report.round
        spent = self._spent(done)
        row = {"round": done, **report.metrics, "epsilon_so_far": spent}
        if self._metrics is None:
            self._metrics = tables.RoundTable(self._folder / "metrics.csv", list(row))
            self._metrics.keep_until(self._done)
        self._metrics.append(row)
        self._timing.append({"round": done, "seconds": round(report.seconds, 4)})
        facts = {k: v for k, v in row.items() if isinstance(v, int | float)}
        if done % config.evaluate_every == 0 or done == config.rounds:
            scores = self._validate.of_both(report.iterate, report.aggregate)
            self._write(self._validation, done, scores)
            for weights, by_group in scores.items():
                for group, found in by_group.items():
                    for name in SCORES:
                        facts[f"validation/{weights}/{group}/{name}"] = found[name]
            facts["validation_accuracy"] = scores["aggregate"]["all"]["accuracy"]
        if self._events is not None:
            self._events.write(done, facts)
        self._observer.on_round(done, facts)

    def is_tested(self) -> bool:
        """Tells whether all wanted scores of the last model on test data are there."""
        if self._test is None:
            return True
        path = self._folder / "test.csv"
        wanted = len(WEIGHTS) * self._test.num_groups
        return path.exists() and len(tables.read_rows(path)) == wanted

    def tested(self) -> Scores:
        """Reads the scores on the test sample back; none where it is left alone."""
        found: Scores = {weights: {} for weights in WEIGHTS}
        if self._test is None:
            return found
        for row in tables.read_rows(self._folder / "test.csv"):
            scores = {name: float(row[name]) for name in SCORES}
            found[row["weights"]][row["group"]] = scores
        return found

    def test(self, iterate: list[np.ndarray], aggregate: list[np.ndarray]) -> Scores:
        """Scores the last model on the test sample, or reads what was scored."""
        if self._test is not None and not self.is_tested():
            self._tests.keep_until(-1)  # a kill may have left part of it
            scores = self._test.of_both(iterate, aggregate)
            self._write(self._tests, self._config.rounds, scores)
        if self._events is not None:
            self._events.close()
        return self.tested()

    def _spent(self, done: int) -> float | str:
        """Returns the ε of the rounds so far, from a ρ rounded up to three digits.

        It is for a stopping round that was fixed in advance, and "none" where the run
        has no guarantee.

        The tight conversion takes a tenth of a second: few different ρ, few of them.
        """
        if self._plan.no_guarantee:
            return "none"
        rho = self._plan.rho_after(done)
        digit = 10.0 ** (math.floor(math.log10(rho)) - 2)
        rounded = math.ceil(rho / digit) * digit
        return min(self._plan.epsilon_of(rounded), self._plan.epsilon)

    def _write(self, table: tables.RoundTable, done: int, scores: Scores) -> None:
        for weights, by_group in scores.items():
            for group, found in by_group.items():
                row = {"round": done, "weights": weights, "group": group}
                table.append(row | {name: found[name] for name in SCORES})
