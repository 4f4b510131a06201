"""Runs side by side, from what their folders say: no data and no model are opened."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tff_agg import fields
from tff_agg.experiment.run import identity, ledger
from tff_agg.experiment.run.run_folder import RunFolder
from tff_agg.experiment.task import Task
from tff_agg.recycling.metrics import Metric

# Below them lies no other run, but there may be many files.
_NOT_SEARCHED = ("checkpoints", "tensorboard")


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a run's folder says of it.

    Attributes:
      folder: The run's folder.
      settings: Its configuration.
      rounds_done: How many rounds were released.
      epsilon: Of the whole plan; None where there is no guarantee.
      validation: The newest scores of θ^AGG on the validation sample, by metric; empty
        before the first.
      validated_round: Which round they are of; 0 before the first.
      test: The scores of θ^AGG on the test sample; empty before the end.
    """

    folder: pathlib.Path
    settings: Mapping[str, Any]
    rounds_done: int
    epsilon: float | None
    validation: Mapping[str, float]
    validated_round: int
    test: Mapping[str, float]


def find(folder: str | os.PathLike[str]) -> list[pathlib.Path]:
    """Returns the run folders at or below a folder, in order of their names.

    Raises:
      FileNotFoundError: There is none.
    """
    folders = []
    for path, inside, names in os.walk(os.fspath(folder)):
        inside[:] = sorted(set(inside) - set(_NOT_SEARCHED))
        if {"config.json", ledger.NAME} <= set(names):
            folders.append(pathlib.Path(path))
    if not folders:
        raise FileNotFoundError(f"{os.fspath(folder)} holds no runs")
    return sorted(folders)


def summary(task_class: type[Task], folder: pathlib.Path) -> Summary:
    """Reads what a run's folder says.

    Raises:
      ValueError: A file is damaged; the message names it.
      ledger.ResumeError: So is the ledger.
    """
    run = RunFolder.open(folder)
    settings = run.config(task_class.Config).to_json()
    settings["data_fingerprint"] = run.saved_config().get("data_fingerprint")
    history = run.history
    validated = {} if history is None else history.validated
    number = max(validated, default=0)
    tested = None if history is None else history.tested
    try:
        validation, test = map(_of_aggregate, (validated.get(number), tested))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{run.ledger.path} is damaged: {error!r}") from error
    return Summary(
        folder=folder,
        settings=settings,
        rounds_done=run.rounds_done,
        epsilon=run.epsilon,
        validation=validation,
        validated_round=number,
        test=test,
    )


def differing(task_class: type[Task], runs: Sequence[Summary]) -> list[str]:
    """Returns the settings in which runs differ, in the order of the configuration."""
    names = fields.names(task_class.Config, *fields.SETTINGS)
    return [n for n in names if len({repr(run.settings[n]) for run in runs}) > 1]


def rows(
    task_class: type[Task], runs: Sequence[Summary], top: str | os.PathLike
) -> list[list[str]]:
    """Returns a row for each run: name, rounds, ε, scores, settings of its own."""
    metric = task_class.metrics[0]
    names = differing(task_class, runs) if runs else []
    lines = []
    for run in runs:
        name = os.path.relpath(run.folder, top)
        own = ", ".join(f"{name}={run.settings[name]}" for name in names)
        lines.append(
            [
                os.path.basename(os.path.abspath(top)) if name == "." else name,
                f"{run.rounds_done} of {run.settings['rounds']}",
                "none" if run.epsilon is None else f"{run.epsilon:.4g}",
                _shown(metric, run.validation, run.validated_round),
                _shown(metric, run.test),
                own,
            ]
        )
    return lines


def compare(task_class: type[Task], first: Summary, second: Summary) -> list[list[str]]:
    """Returns rows (what, of the first, of the second) of all that differs."""
    both = (first, second)
    lines = [
        [name, *(str(run.settings[name]) for run in both)]
        for name in differing(task_class, both)
    ]
    data = [str(run.settings["data_fingerprint"]) for run in both]
    if data[0] != data[1]:
        lines.append(["data", *(fingerprint[:16] for fingerprint in data)])
    if identity.differences(first.epsilon, second.epsilon):
        shown = ["none" if r.epsilon is None else f"{r.epsilon:.4g}" for r in both]
        lines.append(["ε", *shown])
    lines.append(["rounds done", *(str(run.rounds_done) for run in both)])
    for metric in task_class.metrics:
        lines.append(
            [
                f"validation {metric.label}",
                *(_shown(metric, r.validation, r.validated_round) for r in both),
            ]
        )
        lines.append([f"test {metric.label}", *(_shown(metric, r.test) for r in both)])
    return lines


def _shown(metric: Metric, scores: Mapping[str, float], number: int = 0) -> str:
    if metric.name not in scores:
        return "–"
    shown = metric.show(scores[metric.name])
    return f"{shown} (round {number})" if number else shown


def _of_aggregate(scores: Mapping[str, Any] | None) -> dict[str, float]:
    """Returns the scores of θ^AGG over the whole sample."""
    values = scores["aggregate"]["all"] if scores else {}
    return {name: float(value) for name, value in values.items()}
