"""A study is a list of lines; everything else follows from them.

A line of a table says: these candidate settings, these methods, chosen by this. What is
trained, what is asked of which run, what is left to do, choosing on validation data,
testing once and pairing by seed are `tff_agg.experiment.study.search`'s. Runs that two
lines share are trained once.

Nothing is computed here, and nothing heavy imported: a command reads a study's options
from a module that declares it.
"""

import abc
import dataclasses
import pathlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tff_agg.experiment.config import RunConfig
from tff_agg.recycling.methods import LAST, Method

if TYPE_CHECKING:
    from tff_agg.experiment.build import Compiled
    from tff_agg.experiment.task import Task

#: The data that choices are made on.
VALIDATION = "heldout"
#: Fields of a configuration that a candidate changes, with their values.
Settings = Mapping[str, Any]


class Use(NamedTuple):
    """Models that are judged. The best of them on validation data is tested.

    Attributes:
      methods: How checkpoints are used.
      series: Which checkpoints: 'iterate' (θ_t) or 'aggregate' (θ^AGG_t).
    """

    methods: tuple[Method, ...] = (LAST,)
    series: str = "iterate"


#: What training broadcasts, as it is.
BROADCAST = Use((LAST,), "aggregate")


@dataclasses.dataclass(frozen=True, eq=False)
class Arm:
    """A way of training: what its candidates share, and in what they differ.

    Attributes:
      name: What it is called.
      config: What its candidates share. Its seeds are replaced by the study's.
      grid: What each candidate changes.
      folders: Runs that are there already, one for each seed, instead of runs that are
        to be trained; with `loaded`.
    """

    name: str
    config: RunConfig
    grid: tuple[Settings, ...] = ({},)
    folders: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.grid:
            raise ValueError(f"grid=() of the arm {self.name!r}: needs a candidate")


@dataclasses.dataclass(frozen=True, eq=False)
class Line:
    """A line, or a cell, of a table.

    Attributes:
      row: In which row of the table, or which part of it, the line is.
      name: What it is called there; (row, name) is unique within a study.
      arm: What is trained.
      use: The models that are judged.
      chosen_by: By what the settings are chosen, if not by `use`. The method among
        `use` is then chosen at these settings.
      like: (row, name) of a line. Candidates have the settings that were chosen for
        it, and on top of them what the arm's grid changes.
      note: Such as 'as published'.
    """

    row: str
    name: str
    arm: Arm
    use: Use = BROADCAST
    chosen_by: Use | None = None
    like: tuple[str, str] | None = None
    note: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """(row, name)."""
        return self.row, self.name


class Question(NamedTuple):
    """What is asked of a run.

    Attributes:
      split: 'heldout' or 'test'.
      examples: The size of the sample.
      series: 'iterate' or 'aggregate'.
      methods: How checkpoints are used.
      rounds: The newest checkpoints.
    """

    split: str
    examples: int
    series: str
    methods: tuple[Method, ...]
    rounds: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Trial:
    """An arm's settings with a seed. Trials of one configuration are one run.

    Attributes:
      config: What is trained.
      folder: The run's, where it is there already.
      row: The row of a line that asks for it.
      arm: The arm's name.
      settings: What the candidate changes.
      seed: The study's.
    """

    config: RunConfig
    folder: str | None = None
    row: str = dataclasses.field(default="", compare=False)
    arm: str = dataclasses.field(default="", compare=False)
    settings: Settings = dataclasses.field(default_factory=dict, compare=False)
    seed: int = dataclasses.field(default=0, compare=False)

    def __str__(self) -> str:
        what = [self.row, self.arm, in_words(self.settings), f"seed {self.seed}"]
        return ", ".join(text for text in what if text)


class Chosen(NamedTuple):
    """What was picked on validation data.

    Attributes:
      settings: What the arm's candidate changes.
      method: How checkpoints are used.
      validation: The mean of the metric over seeds and rounds; None where there was
        nothing to choose.
    """

    settings: Settings
    method: Method
    validation: float | None


class Score(NamedTuple):
    """One value of one model of a run; the run is said by whoever holds it."""

    series: str
    method: str
    round: int
    split: str
    examples: int
    group: str
    metric: str
    value: float


Rows = Sequence[Score]


class Job(NamedTuple):
    """What is still to be asked of a trial."""

    trial: Trial
    questions: tuple[Question, ...]


class TrialsFailedError(RuntimeError):
    """Trials of a search have failed, and nothing was chosen yet."""


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """Where trials are trained or loaded.

    Attributes:
      task_class: What is trained.
      out: The study's folder.
      shared: What was opened and compiled in this process.
    """

    task_class: "type[Task]"
    out: pathlib.Path
    shared: "Compiled"
    _tasks: "dict[Trial, Task]" = dataclasses.field(default_factory=dict, init=False)

    def task(self, trial: Trial) -> "Task":
        """Returns the task of a trial."""
        if trial not in self._tasks:
            self._tasks[trial] = self.shared.task(self.task_class, trial.config)
        return self._tasks[trial]


class Train(abc.ABC):
    """How the models of trials come about: trained, or loaded.

    Objects are sent to other processes.

    Attributes:
      together: Whether trials that are `near` are one job.
      keeps: Whether a run can be asked again without being trained again. Otherwise a
        search asks at once all that might be needed.
    """

    together = False
    keeps = False

    def folder(self, trial: Trial, place: Place) -> pathlib.Path | None:
        """Returns a trial's run folder, there or not; None: nothing of it is saved."""
        return None

    @abc.abstractmethod
    def run(self, trial: Trial, place: Place) -> str | None:
        """Names the run whose scores are a trial's; None while there is none."""

    @abc.abstractmethod
    def answer(self, jobs: Sequence[Job], place: Place) -> Iterator[tuple[Trial, Rows]]:
        """Trains or loads, and yields the scores that are asked for.

        Args:
          jobs: The trials; one unless `together`.
          place: Where they are.
        """


def last_round(config: RunConfig) -> tuple[int, ...]:
    """The last round alone."""
    return (config.rounds,)


def validated(config: RunConfig) -> tuple[int, ...]:
    """The rounds at which a run is validated."""
    every = config.evaluate_every
    return (*range(every, config.rounds, every), config.rounds)


def known(offset: int) -> Callable[[int], Settings]:
    """Seeds with known noise seeds: such runs have no privacy, and are repeatable."""
    return lambda seed: {"seed": seed, "insecure_noise_seed": offset + seed}


def secret(seed: int) -> Settings:
    """Seeds of sampling and initial weights; the noise's come from the system."""
    return {"seed": seed}


def process_key(trial: Trial) -> Hashable:
    """What trials share that can use one compiled process."""
    return trial.config.process_key()


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """Lines and how they are judged. Nothing is computed by declaring it.

    Attributes:
      task: What is trained.
      lines: The lines.
      seeds: Of the table. An arm of folders has a seed for each of them instead.
      search_seeds: Of choices; () for the table's own.
      seeding: What a seed changes in the configuration: `secret`, `known(offset)`, or a
        task's own.
      rounds: The rounds of a configuration over which a value is the mean.
      examples: The size of the sample by split.
      drawn: The rounds of a chosen run at which the curve of a line has points, on
        validation data where there are any; by default it has no curve.
      final: The data that chosen lines are judged on. None: a search alone.
      train: How models come about: `saved()`, `in_memory()`, `loaded()` of
        `tff_agg.experiment.study.train`, or a task's own.
      near: What trials share that belong in one process.
    """

    task: "type[Task]"
    lines: tuple[Line, ...]
    seeds: tuple[int, ...]
    train: Train
    search_seeds: tuple[int, ...] = ()
    seeding: Callable[[int], Settings] = secret
    rounds: Callable[[RunConfig], tuple[int, ...]] = last_round
    examples: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: {"heldout": 10_000, "test": 10_000}
    )
    drawn: Callable[[Line, RunConfig], Sequence[int]] = lambda line, config: ()
    final: str | None = "test"
    near: Callable[[Trial], Hashable] = process_key

    def __post_init__(self) -> None:
        keys = [line.key for line in self.lines]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise ValueError(f"lines={twice}: a row has two lines of one name")
        for line in self.lines:
            if line.like is not None and line.like not in keys:
                raise ValueError(
                    f"like={line.like!r} of the line {line.key} names none of the "
                    f"lines {keys}"
                )

    @property
    def drawn_on(self) -> str:
        """The data of curves."""
        return VALIDATION if VALIDATION in self.examples else str(self.final)

    @property
    def choosing_seeds(self) -> tuple[int, ...]:
        """The seeds that choices are made with."""
        return self.search_seeds or self.seeds

    def line(self, row: str, name: str) -> Line:
        """Returns the line of a row and name."""
        for line in self.lines:
            if line.key == (row, name):
                return line
        raise KeyError(f"row={row!r}, name={name!r}: no such line in the study")

    def trials(
        self, line: Line, settings: Settings, seeds: Sequence[int]
    ) -> list[Trial]:
        """Returns a candidate of a line with each seed.

        None of them looks at the test data: that is asked of what is chosen, once.
        """
        arm = line.arm
        if arm.folders:
            return [
                Trial(arm.config, folder, line.row, arm.name, settings, seed)
                for seed, folder in enumerate(arm.folders)
            ]
        return [
            Trial(
                dataclasses.replace(
                    arm.config, **settings, **self.seeding(seed), test_examples=0
                ),
                None, line.row, arm.name, settings, seed,
            )
            for seed in seeds
        ]  # fmt: skip


def distinct(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Drops a line whose candidates and methods an earlier one of its row has."""
    seen: list[list[Any]] = []
    kept = []
    for line in lines:
        configs = [
            dataclasses.replace(line.arm.config, **settings)
            for settings in line.arm.grid
        ]
        what: list[Any] = [line.row, configs, line.arm.folders, line.use]
        what += [line.chosen_by, line.like]
        if what not in seen:
            seen.append(what)
            kept.append(line)
    return tuple(kept)


def in_words(settings: Settings) -> str:
    """Names a candidate by what it changes.

    Example:
      >>> in_words({'averager': 'uta', 'k': 3, 'server_learning_rate': 0.5})
      'averager=uta k=3 server_learning_rate=0.5'
    """
    return " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in settings.items()
    )
