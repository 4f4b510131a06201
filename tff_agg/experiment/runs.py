"""A run's checkpoints, bound to the task and the data they belong to."""

import dataclasses
import functools
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tff_agg import fields
from tff_agg.aliases import Json
from tff_agg.experiment.config import RunConfig
from tff_agg.experiment.run.run_folder import RunFolder
from tff_agg.experiment.task import Task, Weights
from tff_agg.recycling.metrics import Values

# With more of them a kind of runs is named by its first and last.
_MOST_NAMES = 3


@dataclasses.dataclass(frozen=True)
class Run:
    """A run folder, with the task that was trained.

    Attributes:
      opened: The folder.
      task: The task, bound to the run's configuration.

    Example:
      run = Run.open(StackOverflow, 'runs/uta')
      run.rounds()[-1]  # 2000
      weights = run.load(2000)
    """

    opened: RunFolder
    task: Task

    @classmethod
    def open(
        cls,
        task_class: type[Task],
        folder: str | os.PathLike,
        data: str | None = None,
        bind: Callable[[Any], Task] | None = None,
    ) -> "Run":
        """Opens a run.

        Args:
          task_class: The task that was trained.
          folder: The run's folder.
          data: Where the data are, if they are not where the run found them.
          bind: Returns the task under a configuration, where the data are open already;
            by default they are opened.
        """
        opened = RunFolder.open(folder)
        return cls(opened, opened.task(task_class, data, bind))

    def __reduce__(self) -> tuple[object, ...]:
        """Sent to another process, a run is opened there."""
        field = fields.data_field(type(self.config))
        data = field and getattr(self.task.config, field)
        return Run.open, (type(self.task), self.folder, data)

    @property
    def folder(self) -> pathlib.Path:
        """Where it is."""
        return self.opened.path

    @property
    def config(self) -> Any:
        """The configuration of the run."""
        return self.task.config

    def rounds(self, name: str = "iterate") -> list[int]:
        """Returns the rounds that have a checkpoint."""
        rounds = self.opened.store.rounds(name)
        if not rounds:
            raise ValueError(f"{self.folder} has no {name!r} checkpoints")
        return rounds

    def load(self, round_number: int, name: str = "iterate") -> Weights:
        """Returns the weights of a round by name."""
        return self.task.named(self.opened.store.load(round_number, name))

    def loader(self, name: str = "iterate") -> Callable[[int], Weights]:
        """Returns `load` for one name."""
        return functools.partial(self.load, name=name)

    def scorer(self, split: str, examples: int) -> Callable[[Weights], Values]:
        """Returns `score(weights)`: the values of all metrics on a fixed sample.

        It is the very sample of training if `examples` is the same.
        """
        evaluate = self.task.evaluator()
        sample = self.task.fixed_sample(split, examples)
        names = [metric.name for metric in self.task.metrics]

        def score(weights: Weights) -> Values:
            values = evaluate(weights, sample)["all"]
            return {name: values[name] for name in names}

        return score


def open_runs(
    task_class: type[Task], folders: Sequence[str], data: str | None = None
) -> list[Run]:
    """Opens runs whose models are alike."""
    if not folders:
        raise ValueError("no run folders were given")
    runs = [Run.open(task_class, folder, data) for folder in folders]
    first = runs[0]
    for run in runs[1:]:
        if dict(run.task.shapes) != dict(first.task.shapes):
            raise ValueError(
                f"{run.folder} has a model of other sizes than {first.folder}: "
                f"{dict(run.task.shapes)} instead of {dict(first.task.shapes)}"
            )
    return runs


class Kind(NamedTuple):
    """Runs that differ in seeds and places only.

    Attributes:
      name: The names of its runs.
      folders: Where they are.
      config: The configuration of the first.
      own: The settings in which it differs from the other kinds.
    """

    name: str
    folders: tuple[str, ...]
    config: RunConfig
    own: Mapping[str, Json]

    def in_words(self) -> str:
        """Writes the settings of its own."""
        return ", ".join(f"{name}={value}" for name, value in self.own.items())

    def last_round(self, series: str) -> int:
        """Returns the round of the newest checkpoint, which is that of all its runs.

        Raises:
          ValueError: There is none, or some runs are longer: a mean of them says
            nothing.
        """
        ends = {}
        for folder in self.folders:
            if not (rounds := RunFolder.open(folder).store.rounds(series)):
                raise ValueError(f"{folder} has no {series!r} checkpoints")
            ends[folder] = rounds[-1]
        if len(set(ends.values())) > 1:
            each = ", ".join(f"{folder} at round {end}" for folder, end in ends.items())
            raise ValueError(
                f"runs of one kind must end at the same round; these are {each}. "
                "Finish those that are behind, or leave them out."
            )
        return max(ends.values())


def kinds(
    task_class: type[Task], folders: Sequence[str], data: str | None = None
) -> list[Kind]:
    """Groups runs that differ in seeds and places only; opens no data.

    Args:
      task_class: The task that was trained.
      folders: The runs' folders.
      data: Where the data are, if they are not where the runs found them.
    """
    if not folders:
        raise ValueError("no run folders were given")
    names = names_of(folders)
    grouped: dict[str, dict[str, RunConfig]] = {}
    for folder in folders:
        config = RunFolder.open(folder).config_at(task_class, data)
        settings = fields.values(config, "process", "cohort", "watching")
        grouped.setdefault(json.dumps(settings), {})[folder] = config
    settings_of: list[dict[str, Json]] = [json.loads(kind) for kind in grouped]
    every = list(dict.fromkeys(itertools.chain(*settings_of)))
    different = [f for f in every if len({repr(s.get(f)) for s in settings_of}) > 1]
    return [
        Kind(
            _shortened([names[folder] for folder in members]),
            tuple(members),
            next(iter(members.values())),
            {name: settings.get(name) for name in different},
        )
        for settings, members in zip(settings_of, grouped.values(), strict=True)
    ]


def names_of(folders: Sequence[str]) -> dict[str, str]:
    """Names runs by as much of their paths as tells them apart.

    Example:
      >>> names_of(['runs/a/seed0', 'runs/b/seed0'])
      {'runs/a/seed0': 'a/seed0', 'runs/b/seed0': 'b/seed0'}
    """
    paths = {folder: os.path.realpath(folder) for folder in folders}
    if len(set(paths.values())) < len(folders):
        raise ValueError(f"runs={','.join(folders)}: the same folder is given twice")
    top = os.path.commonpath([os.path.dirname(path) for path in paths.values()])
    return {folder: os.path.relpath(path, top) for folder, path in paths.items()}


def _shortened(names: Sequence[str]) -> str:
    """Names several runs together."""
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]} ({len(names)} runs)"
