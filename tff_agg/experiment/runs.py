"""A finished run's checkpoints, bound to the model and the data they belong to."""

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stackoverflow.data.token_store import TokenStore
from stackoverflow.model import next_word as model
from tff_agg.checkpoints import CheckpointStore
from tff_agg.experiment import config as configs
from tff_agg.experiment import recording
from tff_agg.recycling.outputs import Predictions

SPLITS = {"heldout": recording.VALIDATION_SEED, "test": recording.TEST_SEED}
# Fields in which runs of the same kind may differ.
_NOT_THE_KIND = ("seed", "insecure_noise_seed", "store")


@dataclasses.dataclass(frozen=True)
class Run:
    """A run folder that `python -m stackoverflow.train` has written.

    Attributes:
      folder: Where it is.
      config: Its config.json.
      checkpoints: Its checkpoints.
      data: The token store it was trained on.

    Example:
      >>> run = Run.open('runs/uta')
      >>> run.rounds()[-1]
      2000
      >>> weights = run.load(2000)
    """

    folder: pathlib.Path
    config: dict[str, Any]
    checkpoints: CheckpointStore
    data: TokenStore

    @classmethod
    def open(cls, folder: str | os.PathLike, store: str | None = None) -> "Run":
        """Opens a run.

        Args:
          folder: The run's folder.
          store: The token store, if it is not where the run found it.
        """
        folder = pathlib.Path(folder)
        path = folder / "config.json"
        if not path.is_file():
            raise FileNotFoundError(f"{folder} is no run folder: it has no config.json")
        config = configs.with_defaults(json.loads(path.read_text(encoding="utf-8")))
        data = TokenStore.open(store or config["store"])
        known = config.get("store_fingerprint")
        if known is not None and known != data.fingerprint:
            raise ValueError(f"{folder} was trained on other data than {data.path}")
        checkpoints = CheckpointStore(folder / "checkpoints")
        return cls(folder, config, checkpoints, data)

    @property
    def sizes(self) -> model.ModelConfig:
        """The sizes of the model."""
        return model.ModelConfig(
            vocab_size=len(self.data.vocabulary.words),
            embedding_size=self.config["embedding_size"],
            lstm_size=self.config["lstm_size"],
            max_tokens=self.data.max_tokens,
        )

    @property
    def kind(self) -> str:
        """Tells runs apart that differ in more than their seeds."""
        kept = {k: v for k, v in self.config.items() if k not in _NOT_THE_KIND}
        return json.dumps(kept, sort_keys=True)

    def rounds(self, name: str = "iterate") -> list[int]:
        """Returns the rounds that have a checkpoint."""
        rounds = self.checkpoints.rounds(name)
        if not rounds:
            raise ValueError(f"{self.folder} has no {name!r} checkpoints")
        return rounds

    def load(self, round: int, name: str = "iterate") -> list[np.ndarray]:
        """Returns the weights of a round."""
        return self.checkpoints.load(round, name)

    def loader(self, name: str = "iterate") -> Callable[[int], list[np.ndarray]]:
        """Returns `load` for one name."""
        return functools.partial(self.load, name=name)

    def rows(self, split: str, sentences: int) -> np.ndarray:
        """Returns the sample of a split that training validates and tests on.

        It is the very sample of training if `sentences` is the same.
        """
        if split not in SPLITS:
            raise ValueError(f"split={split!r} must be one of {', '.join(SPLITS)}")
        parts = recording.evaluation_rows(self.data, split, sentences, SPLITS[split])
        return np.concatenate(list(parts.values()))


def open_runs(folders: Sequence[str], store: str | None = None) -> list[Run]:
    """Opens runs whose models and data are alike."""
    if not folders:
        raise ValueError("no run folders were given")
    runs = [Run.open(folder, store) for folder in folders]
    for run in runs[1:]:
        if run.sizes != runs[0].sizes:
            raise ValueError(
                f"{run.folder} has a model of other sizes than {runs[0].folder}: "
                f"{run.sizes} instead of {runs[0].sizes}"
            )
    return runs


def kinds(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Groups runs that differ in their seeds only; names each group by what is its own.

    The name lists the fields in which the groups differ.
    """
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(run.kind, []).append(run)
    configs = [json.loads(kind) for kind in grouped]
    fields = sorted({key for config in configs for key in config})
    different = [f for f in fields if len({str(c.get(f)) for c in configs}) > 1]
    names = [
        ", ".join(f"{field}={config.get(field)}" for field in different) or "all runs"
        for config in configs
    ]
    return dict(zip(names, grouped.values(), strict=True))


def scorer(
    sizes: model.ModelConfig, rows: np.ndarray
) -> Callable[[Sequence[np.ndarray]], tuple[int, int]]:
    """Returns `score(weights) -> (correct, countable)`: the paper's accuracy."""
    from stackoverflow.model import scoring as evaluation

    evaluate = evaluation.evaluator(sizes)

    def score(weights: Sequence[np.ndarray]) -> tuple[int, int]:
        sums = evaluate(weights, rows)
        return int(sums["correct"]), int(sums["countable"])

    return score


def predictor(
    sizes: model.ModelConfig,
) -> Callable[[Sequence[np.ndarray], np.ndarray], Predictions]:
    """Returns `predict(weights, rows)`: distributions at the words that count.

    They come in the order of the words, whatever the portions of rows.
    """
    from stackoverflow.model import scoring as evaluation

    def predict(weights: Sequence[np.ndarray], rows: np.ndarray) -> Predictions:
        parts = list(evaluation.predict_scores(sizes, weights, rows))
        count = sum(len(part.targets) for part in parts)
        scores = np.empty((count, sizes.num_ids), np.float32)
        targets = np.empty(count, np.int32)
        places = np.concatenate([np.zeros((0, 2), int), *(p.positions for p in parts)])
        order = np.empty(count, int)
        order[np.lexsort((places[:, 1], places[:, 0]))] = np.arange(count)
        start = 0
        for part in parts:
            here = order[start : start + len(part.targets)]
            scores[here], targets[here] = part.probabilities, part.targets
            start += len(here)
        return Predictions(scores, targets)

    return predict
