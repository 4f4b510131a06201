"""How a study stands: its runs by name, their scores, and what has failed."""

import os
import pathlib
from collections.abc import Iterable, Sequence

from tff_agg.experiment.build import Compiled
from tff_agg.experiment.config import RunConfig
from tff_agg.experiment.study.declare import (
    VALIDATION,
    Chosen,
    Job,
    Line,
    Place,
    Question,
    Settings,
    Study,
    Trial,
    Use,
)
from tff_agg.experiment.study.scores import Key, Scores
from tff_agg.experiment.study.train import identity_of
from tff_agg.experiment.task import Task
from tff_agg.recycling.methods import Method

#: How often a trial of a search may fail before it is left out.
ATTEMPTS = 2


class Standing:
    """A study and what there is of it.

    Args:
      study: The study.
      out: Its folder.
      shared: Opens its data.

    Attributes:
      scores: What has been scored.
    """

    def __init__(self, study: Study, out: str | os.PathLike, shared: Compiled):
        self.study, self.out = study, pathlib.Path(out)
        self.place = Place(study.task, self.out, shared)
        self.scores = Scores(out)
        self.scores.refresh()
        self._names: dict[Trial, str] = {}

    def name(self, trial: Trial) -> str | None:
        """Returns what a trial's run is called; None while there is none."""
        if trial not in self._names:
            name = self.study.train.run(trial, self.place)
            if name is None:
                return None
            self._names[trial] = name
        return self._names[trial]

    def folder(self, trial: Trial) -> pathlib.Path | None:
        """Returns a trial's run folder; None: nothing of it is saved."""
        return self.study.train.folder(trial, self.place)

    def task(self, line: Line) -> Task:
        """Returns the task of a line, whose data all of its candidates share."""
        trial = self.search_trials(line, line.arm.grid[0])[0]
        return self.place.task(trial)

    def config(self, trial: Trial) -> RunConfig:
        """Returns the configuration that a study declares by: of its run, or its arm.

        A task may have found what its configuration leaves open. A run that is there
        goes by what its folder says.
        """
        return trial.config if trial.folder else self.place.task(trial).config

    def rounds(self, trial: Trial) -> tuple[int, ...]:
        """Returns the rounds over which a value is the mean."""
        return self.study.rounds(self.config(trial))

    # What is asked.

    def question(
        self, trial: Trial, use: Use, split: str, rounds: Sequence[int] | None = None
    ) -> Question:
        """Returns what a use asks of a trial; by default at the study's rounds."""
        at = self.rounds(trial) if rounds is None else tuple(rounds)
        return Question(split, self.study.examples[split], use.series, use.methods, at)

    def search_trials(self, line: Line, settings: Settings) -> list[Trial]:
        """Returns a candidate with each seed that choices are made with."""
        return self.study.trials(line, settings, self.study.choosing_seeds)

    def final_questions(
        self, line: Line, chosen: Chosen
    ) -> list[tuple[Trial, list[Question]]]:
        """Returns what is asked of a chosen line's runs: the only look at test data."""
        study = self.study
        if study.final is None:
            return []
        use = Use((chosen.method,), line.use.series)
        asked = []
        for trial in study.trials(line, chosen.settings, study.seeds):
            questions = [self.question(trial, use, study.final)]
            if drawn := study.drawn(line, self.config(trial)):
                questions.append(self.question(trial, use, study.drawn_on, drawn))
            asked.append((trial, questions))
        return asked

    def jobs(self, asked: Iterable[tuple[Trial, Sequence[Question]]]) -> list[Job]:
        """Returns what is not known yet, a job for each trial."""
        together: dict[Trial, list[Question]] = {}
        for trial, questions in asked:
            together.setdefault(trial, []).extend(questions)
        found = [
            Job(trial, tuple(self.scores.missing(self.name(trial), questions)))
            for trial, questions in together.items()
        ]
        return [job for job in found if job.questions]

    # What is known.

    def values(
        self, trial: Trial, series: str, method: Method, split: str, metric: str
    ) -> list[float] | None:
        """Returns a metric at each of the study's rounds; None where one lacks it."""
        rounds = self.rounds(trial)
        values = self.by_round(trial, series, method, split, metric, rounds)
        return [*values.values()] if len(values) == len(rounds) else None

    def by_round(
        self,
        trial: Trial,
        series: str,
        method: Method,
        split: str,
        metric: str,
        rounds: Iterable[int],
    ) -> dict[int, float]:
        """Returns a metric at those of some rounds at which it is known."""
        name = self.name(trial)
        if name is None:
            return {}
        examples = self.study.examples[split]
        keys = {n: Key(series, str(method), n, split, examples) for n in rounds}
        known = {n: self.scores.values(name, key) or {} for n, key in keys.items()}
        return {n: values[metric] for n, values in known.items() if metric in values}

    def metrics(
        self, trial: Trial, series: str, method: Method, split: str
    ) -> list[str]:
        """Returns the metrics that a method has; none while it is not scored."""
        name = self.name(trial)
        key = Key(
            series, str(method), self.rounds(trial)[-1], split,
            self.study.examples[split],
        )  # fmt: skip
        return list(self.scores.values(name, key) or ()) if name is not None else []

    def is_known(self, trial: Trial, use: Use, split: str) -> bool:
        """Returns whether a use of a trial has been scored."""
        name = self.name(trial)
        asked = [self.question(trial, use, split)]
        return name is not None and not self.scores.missing(name, asked)

    def validations(
        self, line: Line, settings: Settings, method: Method, series: str, metric: str
    ) -> list[list[float]] | None:
        """Returns a candidate's values on validation data, by seed and round."""
        found = []
        for trial in self.search_trials(line, settings):
            values = self.values(trial, series, method, VALIDATION, metric)
            if values is None:
                return None
            found.append(values)
        return found

    def looked_at(self, trial: Trial) -> set[str]:
        """Returns the methods that a trial was scored by on validation data."""
        name = self.name(trial)
        keys = [] if name is None else self.scores.keys(name)
        return {key.method for key in keys if key.split == VALIDATION}

    # Trials that failed.

    def attempts(self, trial: Trial) -> list[str]:
        """Returns what each attempt at a trial has failed of."""
        path = self._failed(trial)
        return path.read_text("utf-8").splitlines() if path.exists() else []

    def note_failure(self, trial: Trial, error: Exception) -> None:
        """Notes an attempt that has failed."""
        path = self._failed(trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = " ".join(f"{type(error).__name__}: {error}".split())
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    def is_given_up(self, trial: Trial) -> bool:
        """Returns whether a trial has failed for good."""
        return len(self.attempts(trial)) >= ATTEMPTS

    def _failed(self, trial: Trial) -> pathlib.Path:
        name = identity_of(self.place.task(trial))[:16]
        return self.out / "failed" / f"{name}.txt"
