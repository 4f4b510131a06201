"""Where a run starts: at the task's own weights, or at another run's model."""

import json
import pathlib

from tff_agg.aliases import Weights
from tff_agg.checkpoints import CheckpointStore
from tff_agg.experiment.task import Task

_SERIES = "aggregate"


def first_weights(task: Task) -> Weights:
    """Returns the weights of round 0: the task's, or those of `start_from`.

    Raises:
      ValueError: `start_from` is no run, or its model is another one.
    """
    if task.config.start_from is None:
        return task.initial_weights()
    folder = pathlib.Path(task.config.start_from)
    store = CheckpointStore(folder / "checkpoints")
    rounds = store.rounds(_SERIES) if (folder / "checkpoints").is_dir() else []
    if not rounds:
        raise ValueError(
            f"start_from={task.config.start_from}: is no folder of a run with a "
            "checkpoint"
        )
    try:
        return task.named(store.load(rounds[-1], _SERIES))
    except ValueError as error:
        raise ValueError(f"start_from={task.config.start_from}: {error}") from error


def in_words(task: Task) -> str | None:
    """Says where the weights of round 0 come from, for the privacy report."""
    start = task.config.start_from
    if start is None:
        return task.privacy_facts().initial_weights
    said = f"they are the newest model of the run {pathlib.Path(start).resolve().name}"
    config = _object(pathlib.Path(start) / "config.json")
    if config.get("data_fingerprint") != task.fingerprint:
        return (
            f"{said}, which was trained on other data; where people are in both, its ε "
            "adds to the one here"
        )
    said = f"this does not hold here: {said}"
    guarantee = _object(pathlib.Path(start) / "privacy_report.json").get("guarantee")
    epsilon = (guarantee or {}).get("epsilon")
    if epsilon is None:
        return (
            f"{said}, which was trained on these very data WITHOUT a guarantee: no "
            "figure here holds for the model"
        )
    return (
        f"{said}, which was trained on these very data with ε = {epsilon:.4g}: the "
        "figures here are of this run alone, and both runs together have spent more"
    )


def _object(path: pathlib.Path) -> dict:
    """Returns what a JSON file holds; nothing where there is none."""
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}
