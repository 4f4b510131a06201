"""Runs of which nothing is kept but their scores: the candidates of a search.

A candidate is trained in memory and judged by what it broadcasts and by the means of
its last iterates (UTA_inf). The scores are written to one file for each candidate,
named after what identifies its run, so that a stopped search resumes.
"""

import collections
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tff_agg import files
from tff_agg.experiment.build import Compiled, build, rounds
from tff_agg.experiment.run import run_folder
from tff_agg.experiment.task import Task, Weights
from tff_agg.recycling.metrics import Values

# (round, iterate, aggregate), in order.
Models = Iterator[tuple[int, Weights, Weights]]

# The name of what training broadcasts, among the models that are judged.
BROADCAST = "broadcast"


@dataclasses.dataclass(frozen=True)
class Judging:
    """By what a candidate is judged.

    Attributes:
      ks: How many of the last iterates UTA_inf averages.
      rounds: The rounds whose models are scored; their mean is the score.
      split: The data: 'heldout', and 'test' for what was chosen.
    """

    ks: tuple[int, ...]
    rounds: tuple[int, ...]
    split: str = "heldout"


class Scored(NamedTuple):
    """The result of a candidate.

    Attributes:
      values: By the model ('broadcast', 'UTA_inf 100'), the metrics' means over the
        judged rounds.
      curve: (round, metrics) of what was broadcast, in the judged rounds and, on
        validation data, wherever a run validates.
    """

    values: Mapping[str, Values]
    curve: Sequence[tuple[int, Values]]


def recycled(k: int) -> str:
    """Names the mean of the last k iterates among the models that are judged."""
    return f"UTA_inf {k}"


def train(task: Task, compiled: Compiled) -> Models:
    """Yields (round, iterate, aggregate) of a run of which nothing is kept."""
    return rounds(build(task, compiled))


def score(task: Task, judging: Judging, models: Models) -> Scored:
    """Scores a candidate, as `train` yields it."""
    from tff_agg.experiment.run import recording

    config = task.config
    evaluate = recording.SampleScorer(task, judging.split, config.validation_examples)
    every = config.evaluate_every if judging.split == "heldout" else config.rounds + 1
    tail: collections.deque[Weights] = collections.deque(maxlen=max(judging.ks))
    found: dict[str, list[Values]] = {}
    curve: list[tuple[int, Values]] = []
    for number, iterate, aggregate in models:
        tail.append(iterate)
        judged = number in judging.rounds
        if not judged and number % every:
            continue
        curve.append((number, evaluate(aggregate)["all"]))
        if judged:
            found.setdefault(BROADCAST, []).append(curve[-1][1])
            for k in judging.ks:
                mean = _mean(list(tail)[-k:])
                found.setdefault(recycled(k), []).append(evaluate(mean)["all"])
    values = {
        model: {
            metric.name: float(np.mean([one[metric.name] for one in several]))
            for metric in task.metrics
        }
        for model, several in found.items()
    }
    return Scored(values, curve)


def remembered(
    task: Task,
    judging: Judging,
    folder: str | os.PathLike,
    models: Callable[[], Models],
) -> Scored:
    """Returns a candidate's scores, from the folder's file if it was scored before."""
    path = score_file(task, folder, judging.split)
    how = json.loads(json.dumps(dataclasses.asdict(judging)))
    if path.exists():
        known = json.loads(path.read_text())
        if known["judging"] == how:
            return Scored(known["values"], [(n, found) for n, found in known["curve"]])
    scored = score(task, judging, models())
    content = {"config": task.config.to_json(), "judging": how} | scored._asdict()
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, json.dumps(content) + "\n")
    return scored


def score_file(
    task: Task, folder: str | os.PathLike, split: str = "heldout"
) -> pathlib.Path:
    """Returns the file that a candidate's scores are kept in."""
    text = json.dumps(run_folder.identifying(task), sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    return pathlib.Path(folder) / f"{name}-{split}.json"


def _mean(tail: Sequence[Weights]) -> Weights:
    return {name: np.mean([w[name] for w in tail], axis=0) for name in tail[0]}
