"""What a study has come to: chosen lines, their values seed by seed, their curves."""

import copy
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from tff_agg import files
from tff_agg.experiment.config import RunConfig
from tff_agg.experiment.study import show
from tff_agg.experiment.study.declare import (
    Chosen,
    Line,
    Settings,
    Study,
    Trial,
    Use,
    in_words,
)
from tff_agg.experiment.study.show import Table
from tff_agg.recycling.metrics import Metric

if TYPE_CHECKING:
    import polars

    from tff_agg.experiment.study.choices import Choices
    from tff_agg.experiment.study.standing import Standing

#: Labels of a run.
LABELS = ("row", "arm", "settings", "seed", "folder")


class Curve(NamedTuple):
    """One line's values over rounds, a row for each seed.

    Attributes:
      rounds: [points].
      values: [seeds, points].
    """

    rounds: Sequence[float]
    values: Sequence[Sequence[float]]


class Results:
    """The results of a study, also of one that is not finished.

    Attributes:
      study: The study.
      out: Its folder.
      lines: Those that have a choice, in the order of the study.
      chosen: What was picked for each of them.
      seeds: Those for which every line has a value; of arms that are trained.
    """

    study: Study
    out: pathlib.Path
    lines: tuple[Line, ...]
    chosen: Mapping[Line, Chosen]
    seeds: tuple[int, ...]

    def __init__(self, standing: "Standing", choices: "Choices"):
        """Made by `search.perform` and `search.results`."""
        self._standing, self._asked = standing, choices.asked
        self.study, self.out = standing.study, standing.out
        self.chosen = self._choices = choices.chosen
        self.lines = tuple(self.chosen)
        self._split = self.study.final or "heldout"
        self.seeds = self._whole_seeds()

    def line(self, row: str, name: str) -> Line:
        """Returns the line of a row and name."""
        return self.study.line(row, name)

    def rows(self) -> dict[str, dict[str, Line]]:
        """Returns the lines by their row and name, in order."""
        rows: dict[str, dict[str, Line]] = {}
        for line in self.lines:
            rows.setdefault(line.row, {})[line.name] = line
        return rows

    def over_first(self) -> dict[Line, Line]:
        """Returns, for all other lines, the first of their row."""
        pairs: dict[Line, Line] = {}
        for first, *others in (lines.values() for lines in self.rows().values()):
            pairs |= dict.fromkeys(others, first)
        return pairs

    def values(
        self, line: Line, metric: Metric | str | None = None, split: str | None = None
    ) -> list[float]:
        """Returns a value for each seed, the mean over the study's rounds.

        None at all where a seed has no value: a method may lack metrics.

        Args:
          line: A chosen line.
          metric: Of which metric; the task's first if not given.
          split: On which data; the study's `final` if not given.
        """
        settings, method, _ = self.chosen[line]
        found = []
        for trial in self._trials(line, settings):
            values = self._standing.values(
                trial, line.use.series, method, split or self._split, self._name(metric)
            )
            if values is None:
                return []
            found.append(fmean(values))
        return found

    def metrics(self, line: Line, split: str | None = None) -> dict[str, list[float]]:
        """Returns by its name every metric that a line has: a value for each seed."""
        names = [metric.name for metric in self.study.task.metrics]
        every = {name: self.values(line, name, split) for name in names}
        return {name: values for name, values in every.items() if values}

    def trivial(self, split: str | None = None) -> dict[str, float]:
        """Returns what always the same answer scores, by metric.

        Nothing where the task says nothing of it, or lines are of different data.

        Args:
          split: On which data; the study's `final` if not given.
        """
        split, study = split or self._split, self.study
        tasks = [self._standing.task(line) for line in self.lines]
        if not tasks or not all(t.has_data_of(tasks[0].config) for t in tasks):
            return {}
        sample = tasks[0].fixed_sample(split, study.examples[split])
        return tasks[0].trivial(sample).get("all", {})

    def curve(self, line: Line, metric: Metric | str | None = None) -> Curve:
        """Returns the scores of a chosen line over the study's drawn rounds.

        Args:
          line: A chosen line.
          metric: Of which metric; the task's first if not given.
        """
        settings, method, _ = self.chosen[line]
        of = line.use.series, method, self.study.drawn_on, self._name(metric)
        by_seed = [
            self._standing.by_round(
                trial, *of, self.study.drawn(line, self._standing.config(trial))
            )
            for trial in self._trials(line, settings)
        ]
        common = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
        return Curve(common, [[values[n] for n in common] for values in by_seed])

    def candidates(
        self, line: Line, metric: Metric | str | None = None
    ) -> list[tuple[Settings, str, list[float]]]:
        """Returns (settings, method, value by seed on validation data) of a choice.

        Candidates that have failed are left out.
        """
        found = []
        use = line.chosen_by or line.use
        for settings in self._settings(line):
            for method in use.methods:
                values = self._standing.validations(
                    line, settings, method, use.series, self._name(metric)
                )
                if values is not None:
                    means = [fmean(of_seed) for of_seed in values]
                    found.append((settings, str(method), means))
        return found

    def best(self, lines: Iterable[Line] | None = None) -> Line:
        """Returns the line that is best on validation data; of equals the first."""
        metric = self.study.task.metrics[0]
        best: Line | None = None
        for line in self.lines if lines is None else lines:
            value = self.chosen[line].validation
            if value is None:
                raise ValueError(
                    f"line {line.key}: nothing was chosen for it, so that it has no "
                    "value on validation data"
                )
            least = None if best is None else self.chosen[best].validation
            if least is None or metric.better(value, least):
                best = line
        if best is None:
            raise ValueError("lines=(): there is none that could be best")
        return best

    def only(self, lines: Iterable[Line]) -> "Results":
        """Returns the results of some lines, in that order, with all their seeds."""
        fewer = copy.copy(self)
        fewer.chosen = {line: self.chosen[line] for line in lines}
        fewer.lines = tuple(fewer.chosen)
        fewer.seeds = fewer._whole_seeds()
        return fewer

    def config(self, line: Line, seed: int = 0) -> RunConfig:
        """Returns the configuration of a chosen line's run."""
        (trial, *_) = self.study.trials(line, self.chosen[line].settings, [seed])
        return self._standing.config(trial)

    def folders(self, line: Line) -> list[pathlib.Path]:
        """Returns the run folders of a chosen line; none of runs in memory."""
        trials = self._trials(line, self.chosen[line].settings)
        found = map(self._standing.folder, trials)
        return [folder for folder in found if folder is not None]

    def runs(self, line: Line) -> list[str]:
        """Returns the names of a chosen line's runs, by which their scores go."""
        found = map(self._standing.name, self._trials(line, self.chosen[line].settings))
        return [name for name in found if name is not None]

    def looks(self, line: Line) -> int:
        """Counts the settings and methods of a line that were ever tested."""
        final = self.study.final
        return sum(
            any(
                self._standing.is_known(trial, Use((method,), line.use.series), final)
                for trial in self.study.trials(line, settings, self.study.seeds)
            )
            for settings in self._settings(line)
            for method in line.use.methods
            if final is not None
        )

    @property
    def frame(self) -> "polars.DataFrame":
        """All scores of the study, joined with the labels of its runs."""
        import polars

        types = dict.fromkeys(("run", *LABELS), polars.String)
        labels = polars.DataFrame(
            self._labels(), schema=types | {"seed": polars.Int64}, orient="row"
        )
        scores = self._standing.scores.frame(labels["run"].to_list())
        return labels.join(scores, on="run", maintain_order="left_right").drop("run")

    def write(self) -> None:
        """Writes what a notebook reads: trials.csv, choices.csv and scores.csv.

        The first names the run of every trial, the second what was chosen for every
        line; the third has all scores with the labels of their runs.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        trials = Table(("run", *LABELS), self._labels())
        show.save(trials, self.out / "trials.csv")
        header = ("row", "line", "arm", "settings", "series", "method", "validation")
        rows: list[list[object]] = []
        for line, (settings, method, value) in self.chosen.items():
            labels = [line.row, line.name, line.arm.name, in_words(settings)]
            shown = "" if value is None else value
            rows.append([*labels, line.use.series, method, shown, line.note])
        show.save(Table((*header, "note"), rows), self.out / "choices.csv")
        files.write_text(self.out / "scores.csv", self.frame.write_csv())

    def _labels(self) -> list[tuple[str, str, str, str, int, str]]:
        """Returns the run and the `LABELS` of all trials that have been run.

        The folder is that of a run that was there before the study.
        """
        trials = [trial for trial, _ in self._asked]
        for line, chosen in self.chosen.items():
            trials += [t for t, _ in self._standing.final_questions(line, chosen)]
        found = []
        for trial in trials:
            if (name := self._standing.name(trial)) is not None:
                words = in_words(trial.settings)
                labels = (trial.row, trial.arm, words, trial.seed, trial.folder or "")
                found.append((name, *labels))
        return list(dict.fromkeys(found))

    def _whole_seeds(self) -> tuple[int, ...]:
        study = self.study
        every = study.seeds if study.final else study.choosing_seeds
        return tuple(seed for seed in every if self.chosen and self._is_whole(seed))

    def _is_whole(self, seed: int) -> bool:
        """Returns whether every line of a trained arm has its value for a seed."""
        return all(
            self._standing.is_known(
                trial, Use((chosen.method,), line.use.series), self._split
            )
            for line, chosen in self.chosen.items()
            if not line.arm.folders
            for trial in self.study.trials(line, chosen.settings, [seed])
        )

    def _trials(self, line: Line, settings: Settings) -> list[Trial]:
        return self.study.trials(line, settings, self.seeds)

    def _settings(self, line: Line) -> Sequence[Settings]:
        if line.like is None:
            return line.arm.grid
        given = self._choices[self.study.line(*line.like)].settings
        return [{**given, **candidate} for candidate in line.arm.grid]

    def _name(self, metric: Metric | str | None) -> str:
        if isinstance(metric, str):
            return metric
        return (metric or self.study.task.metrics[0]).name
