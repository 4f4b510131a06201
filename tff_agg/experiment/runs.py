"""A run's checkpoints, bound to the task and the data they belong to."""

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tff_agg import fields
from tff_agg.aliases import Json
from tff_agg.experiment.run.run_folder import RunFolder
from tff_agg.experiment.task import Task, Weights
from tff_agg.recycling.metrics import Values


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

    @property
    def kind(self) -> str:
        """Distinguishes runs that differ in more than their seeds and places."""
        return json.dumps(fields.values(self.config, "process", "cohort", "watching"))

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
            found = evaluate(weights, sample)["all"]
            return {name: found[name] for name in names}

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


def kinds(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Groups runs that differ in seeds and places only; names each by what is its own.

    The name lists the fields in which the groups differ.
    """
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(run.kind, []).append(run)
    configs: list[Mapping[str, Json]] = [json.loads(kind) for kind in grouped]
    every = list(dict.fromkeys(key for config in configs for key in config))
    different = [f for f in every if len({str(c.get(f)) for c in configs}) > 1]
    names = [
        ", ".join(f"{field}={config.get(field)}" for field in different) or "all runs"
        for config in configs
    ]
    return dict(zip(names, grouped.values(), strict=True))
