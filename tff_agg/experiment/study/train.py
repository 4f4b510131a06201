"""How the models of a study come about: trained and saved, in memory, or loaded."""

import abc
import dataclasses
import functools
import logging
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tff_agg import digests, fields
from tff_agg.aliases import JsonObject, Weights
from tff_agg.checkpoints.retention import Retention
from tff_agg.experiment.run import run_folder
from tff_agg.experiment.run.recording import Observer, SampleScorer
from tff_agg.experiment.run.run_folder import RunFolder
from tff_agg.experiment.runs import Run
from tff_agg.experiment.study import progress
from tff_agg.experiment.study.declare import (
    Job,
    Place,
    Question,
    Rows,
    Score,
    Train,
    Trial,
)
from tff_agg.experiment.study.scores import Key, digest, known_of, missing, rows_of
from tff_agg.experiment.task import Sample, Task
from tff_agg.recycling import methods
from tff_agg.recycling.methods import LAST, Method
from tff_agg.recycling.series import NAMES, Passing, Series, Stored

_log = logging.getLogger(__name__)

#: What OPA and OMV may hold of predictions, in bytes.
OUTPUT_BYTES = 1 << 30
# What the windows of a run in memory may take.
_WINDOW_BYTES = 8 << 30


def saved(memory_budget: int = OUTPUT_BYTES, until: int | None = None) -> Train:
    """Runs in folders `runs/{digest of settings and seed}`, which resume.

    Args:
      memory_budget: In bytes, for the outputs that OPA and OMV combine.
      until: Runs stop after so many rounds of their plan; they can go on.
    """
    return _Saved(memory_budget, until)


def in_memory(
    keep: Retention | None = None,
    *,
    initial: bool = False,
    memory_budget: int = _WINDOW_BYTES,
) -> Train:
    """Runs of which nothing stays but scores.

    Args:
      keep: Which checkpoints averagers fold over and windows see; None: all.
      initial: Whether the weights of round 0 are among them.
      memory_budget: In bytes, what the checkpoints that are held may take. Without
        `keep` they are those of the longest window.
    """
    return _InMemory(keep, initial, memory_budget)


def loaded(data: str | None = None, memory_budget: int = OUTPUT_BYTES) -> Train:
    """Runs that are there, the `folders` of arms; finished or not.

    Args:
      data: Where the data lie now, if not where the runs' configurations say; the arms'
        configurations name it, too.
      memory_budget: In bytes, for the outputs that OPA and OMV combine.
    """
    return _Loaded(data, memory_budget)


def identity_of(task: Task) -> str:
    """Names what is trained: all but where that takes place, and the data."""
    return digest(run_folder.identifying(task))


class _InFolders(Train):
    """Runs in folders, which can be asked again."""

    keeps = True
    memory_budget: int

    @abc.abstractmethod
    def opened(self, trial: Trial, place: Place) -> Run:
        """Returns a trial's run, as far as it is wanted."""

    def answer(self, jobs: Sequence[Job], place: Place) -> Iterator[tuple[Trial, Rows]]:
        """Evaluates; where that ends early, what was found before is yielded."""
        for trial, questions in jobs:
            run = self.opened(trial, place)
            rows: list[Score] = []
            try:
                for score in answers(run, questions, self.memory_budget):
                    rows.append(score)
            finally:
                yield trial, rows


@dataclasses.dataclass(frozen=True)
class _Saved(_InFolders):
    """See `saved`."""

    memory_budget: int
    until: int | None = None

    def folder(self, trial: Trial, place: Place) -> pathlib.Path:
        """Returns the run's folder."""
        return place.out / "runs" / identity_of(place.task(trial))[:16]

    def run(self, trial: Trial, place: Place) -> str | None:
        """Names a run that is done by what it has released."""
        folder, task = self.folder(trial, place), place.task(trial)
        history = RunFolder(folder).history
        last = self.until or task.config.rounds
        if history is None or last not in history.reported:
            return None
        if self.until:
            # Its newest weights may be later ones.
            return digest(run_folder.identifying(task) | {"until": last})
        return digest(run_folder.identifying(task), _newest_weights(folder))

    def opened(self, trial: Trial, place: Place) -> Run:
        """Trains to the end, from wherever the folder stands."""
        from tff_agg.experiment.run import run as training

        task, folder = place.task(trial), self.folder(trial, place)
        training.run(
            task, folder, _Telling(trial), compiled=place.shared, until=self.until
        )
        return Run(RunFolder(folder), task)


@dataclasses.dataclass(frozen=True)
class _Loaded(_InFolders):
    """See `loaded`."""

    data: str | None
    memory_budget: int

    def folder(self, trial: Trial, place: Place) -> pathlib.Path:
        """Returns the run's folder."""
        if trial.folder is None:
            raise ValueError(f"{trial}: its arm has no folders to load runs from")
        return pathlib.Path(trial.folder)

    def run(self, trial: Trial, place: Place) -> str | None:
        """Names a run by its settings and its newest weights."""
        folder = self.folder(trial, place)
        config = RunFolder.open(folder).config(place.task_class.Config)
        facts = fields.values(config, *fields.SETTINGS)
        return digest(facts, place.task(trial).fingerprint, _newest_weights(folder))

    def opened(self, trial: Trial, place: Place) -> Run:
        """Opens what is there."""
        open_task = functools.partial(place.shared.task, place.task_class)
        folder = self.folder(trial, place)
        return Run.open(place.task_class, folder, self.data, open_task)


@dataclasses.dataclass(frozen=True)
class _InMemory(Train):
    """See `in_memory`."""

    keep: Retention | None
    initial: bool
    memory_budget: int

    def run(self, trial: Trial, place: Place) -> str | None:
        """Names a run by what is trained, and by what its averages are of."""
        seen: JsonObject = {"keep": repr(self.keep), "initial": self.initial}
        return digest(run_folder.identifying(place.task(trial)) | seen)

    def answer(self, jobs: Sequence[Job], place: Place) -> Iterator[tuple[Trial, Rows]]:
        """Trains, and evaluates in passing."""
        from tff_agg.experiment.build import build, rounds, start

        for trial, questions in jobs:
            task = place.task(trial)
            self._check_room(trial, task, questions)
            passing = {
                name: _Kept(self.keep) if self.keep else Passing(asked)
                for name, asked in methods_of(questions).items()
            }
            if self.initial:
                first = start.first_weights(task)
                for series in passing.values():
                    series.add(0, first)
            evaluator = Evaluator(task)
            rows: list[Score] = []
            for number, iterate, aggregate in rounds(build(task, place.shared)):
                for name, weights in zip(NAMES, (iterate, aggregate), strict=True):
                    if name in passing:
                        passing[name].add(number, weights)
                rows += evaluator.rows_at(number, questions, passing)
                progress.tell(str(trial), number, task.config.rounds)
            yield trial, rows

    def _check_room(
        self, trial: Trial, task: Task, questions: Sequence[Question]
    ) -> None:
        """Refuses windows that do not fit into memory."""
        held = 0
        for asked in methods_of(questions).values():
            if self.keep is None:
                held += max((m.window or 1) * m.apart for m in asked)
                continue
            rounds = range(1, task.config.rounds + 1)
            held += len(rounds) - len(self.keep.dropped("", rounds))
        needed = 4 * task.num_parameters * held
        if needed > self.memory_budget:
            raise MemoryError(
                f"{trial}: {held} checkpoints of {task.num_parameters:,} numbers take "
                f"{needed >> 20:,} MB, and memory_budget is "
                f"{self.memory_budget >> 20:,} MB: ask for shorter windows, or save "
                "the runs"
            )


class _Kept:
    """The checkpoints of a run in memory that a store would keep."""

    def __init__(self, keep: Retention):
        self._keep = keep
        self._weights: dict[int, Weights] = {}

    def add(self, number: int, weights: Weights) -> None:
        """Takes the next checkpoint, and drops what need not stay."""
        self._weights[number] = weights
        for old in self._keep.dropped("", list(self._weights)):
            del self._weights[old]

    @property
    def rounds(self) -> Sequence[int]:
        """The rounds that are still there."""
        return list(self._weights)

    def load(self, number: int) -> Weights:
        """Returns the weights of one of them."""
        return self._weights[number]

    def folded(
        self, averagers: Mapping[Method, Any], rounds: Sequence[int]
    ) -> Iterator[tuple[int, Method, Weights]]:
        """Folds over what there is."""
        return Stored(self.rounds, self.load).folded(averagers, rounds)


class Evaluator:
    """Asks questions of the series of one run; samples are drawn once."""

    def __init__(
        self,
        task: Task,
        memory_budget: int = OUTPUT_BYTES,
        on_progress: methods.Progress | None = None,
    ):
        self._task, self._memory_budget = task, memory_budget
        self._on_progress = on_progress
        self._scorers: dict[tuple[str, int], SampleScorer] = {}
        self._outputs: dict[tuple[str, int], methods.Outputs] = {}

    def rows(self, series: Series, question: Question) -> Iterator[Score]:
        """Yields the scores that a question asks for."""
        split, examples = question.split, question.examples
        if (split, examples) not in self._scorers:
            self._scorers[split, examples] = SampleScorer(self._task, split, examples)
        scorer = self._scorers[split, examples]
        outputs = None
        if any(method.facts.combine for method in question.methods):
            outputs = self._outputs_on(split, examples, scorer.sample)
        found = methods.evaluate(
            series,
            question.methods,
            question.rounds,
            scorer,
            outputs,
            self._on_progress,
        )
        for method, number, grouped in found:
            key = Key(question.series, str(method), number, split, examples)
            yield from rows_of(key, grouped)

    def rows_at(
        self, number: int, questions: Iterable[Question], passing: Mapping[str, Series]
    ) -> list[Score]:
        """Returns what is asked of a round that has just passed, by series."""
        rows: list[Score] = []
        for question in questions:
            if number in question.rounds:
                at = question._replace(rounds=(number,))
                rows += self.rows(passing[question.series], at)
        return rows

    def _outputs_on(self, split: str, examples: int, sample: Sample) -> methods.Outputs:
        task = self._task
        if (split, examples) not in self._outputs:
            self._outputs[split, examples] = methods.Outputs(
                predict=task.predictor(),
                examples=task.flat_sample(sample),
                classes=task.classes,
                judge=task.judge(),
                positions_per_example=task.positions_per_example,
                memory_budget=self._memory_budget,
            )
        return self._outputs[split, examples]


def of_ledger(folder: pathlib.Path, task: Task) -> Rows:
    """Returns the scores that training has made already, of what it released."""
    history, config = RunFolder(folder).history, task.config
    if history is None:
        return []
    made = [
        ("heldout", config.validation_examples, number, facts.get("validation", {}))
        for number, facts in history.reported.items()
    ]
    if history.tested is not None:
        made.append(("test", config.test_examples, history.last, history.tested))
    return [
        row
        for split, examples, number, of_both in made
        for name in NAMES
        if (grouped := of_both.get(name)) is not None
        for row in rows_of(Key(name, str(LAST), number, split, examples), grouped)
    ]


def answers(
    run: Run, questions: Iterable[Question], memory_budget: int = OUTPUT_BYTES
) -> Iterator[Score]:
    """Yields what a run's ledger says, then scores what is asked besides.

    Args:
      run: The run.
      questions: What is asked of it.
      memory_budget: In bytes, for the outputs that OPA and OMV combine.
    """
    known = of_ledger(run.folder, run.task)
    yield from known
    evaluator = Evaluator(run.task, memory_budget, progress.tell)
    for question in missing(known_of(known), questions):
        series = Stored(run.rounds(question.series), run.loader(question.series))
        _warn_of_windows(run, series, question)
        yield from evaluator.rows(series, question)


def _warn_of_windows(run: Run, series: Series, question: Question) -> None:
    """Warns of windows that are not what their k says; the first of each kind.

    A curve begins before its windows are full: that they are at its end matters.
    """
    found = []
    for method in question.methods:
        ends = [
            number
            for number in question.rounds
            if number == max(question.rounds)
            or len(method.members(series.rounds, number)) == method.window
        ]
        found += methods.warnings(series, [method], ends)
    if found:
        more = f" ({len(found) - 1} more such windows)" if len(found) > 1 else ""
        _log.warning("%s: %s%s", run.folder, found[0], more)


def _newest_weights(folder: str | os.PathLike) -> str:
    """Returns a digest of the newest weights in a run folder."""
    store = RunFolder(folder).store
    newest = {name: store.rounds(name)[-1:] for name in NAMES}
    found = [store.load(number, name) for name, rounds in newest.items()
             for number in rounds]  # fmt: skip
    arrays = [
        np.asarray(array)
        for weights in found
        for array in (weights.values() if isinstance(weights, Mapping) else weights)
    ]
    return f"{sorted(newest.items())} {digests.of_arrays(arrays)}"


def methods_of(questions: Iterable[Question]) -> dict[str, list[Method]]:
    """Returns what is asked of each series."""
    asked: dict[str, list[Method]] = {}
    for question in questions:
        asked.setdefault(question.series, []).extend(question.methods)
    return asked


class _Telling(Observer):
    """Tells how many rounds of a run are done."""

    def __init__(self, trial: Trial):
        self._name, self._rounds = str(trial), trial.config.rounds

    def on_start(self, done: int, rounds: int) -> None:
        """Tells what earlier processes have done."""
        self._rounds = rounds
        progress.tell(self._name, done, rounds)

    def on_round(self, done: int, facts: dict[str, float]) -> None:
        """Tells a round."""
        progress.tell(self._name, done, self._rounds)
