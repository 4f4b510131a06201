"""The work that all systems of a comparison do: cohorts, and the sizes of the models.

It needs numpy only, so that it runs in the environment of every peer.
"""

import argparse
import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Next-word prediction: an embedding, an LSTM, a projection and an output layer.

    Attributes:
      ids: Token ids; 0 is padding.
      width: Of the embedding and the projection.
      units: Of the LSTM.
      steps: Predictions in a row; a row has one token more.
      batch: Rows in a client's step.
    """

    ids: int
    width: int
    units: int
    steps: int = 20
    batch: int = 16


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Classification of pictures.

    Attributes:
      shape: Of a picture.
      classes: How many.
      convolutions: A convolutional net with two layers, or else a linear model.
      batch: Pictures in a client's step.
    """

    shape: tuple[int, ...]
    classes: int
    convolutions: bool
    batch: int = 20


#: The 4,050,748 parameters of the paper's model: the arithmetic decides.
LARGE_LSTM = Sentences(ids=10_004, width=96, units=670)
#: About 40,000 parameters: the overhead decides.
SMALL_LSTM = Sentences(ids=504, width=24, units=48)
LOGISTIC = Pictures(shape=(784,), classes=10, convolutions=False)
CNN = Pictures(shape=(28, 28, 1), classes=62, convolutions=True)

TASKS: dict[str, Sentences | Pictures] = {
    "large_lstm": LARGE_LSTM,
    "lstm": SMALL_LSTM,
    "logistic": LOGISTIC,
    "cnn": CNN,
}
CLIP_NORM = 1.0
NOISE_MULTIPLIER = 0.3
CLIENT_RATE = 0.5


def arguments() -> argparse.Namespace:
    """Parses the command line of a peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", choices=sorted(TASKS), required=True)
    parser.add_argument("--users", type=int, required=True)
    parser.add_argument("--examples", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def sentences(
    task: Sentences, users: int, count: int, seed: int = 0
) -> list[np.ndarray]:
    """Returns int64 [count, steps + 1] for each user: token ids, then padding.

    Lengths are those of forum posts, about 13 of 20 tokens on average and often all
    of them, so that a system that computes on padding pays for it. Words follow a
    power law.
    """
    rng = np.random.default_rng(seed)
    places = np.arange(task.steps + 1)
    cohort = []
    for _ in range(users):
        lengths = 2 + rng.gamma(3.0, 4.6, size=(count, 1)).astype(int)
        words = 1 + rng.zipf(1.3, size=(count, task.steps + 1)) % (task.ids - 1)
        cohort.append(np.where(places < np.maximum(lengths, 3), words, 0))
    return cohort


def pictures(
    task: Pictures, users: int, count: int, seed: int = 0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns (float32 [count, *shape], int64 [count]) for each user."""
    rng = np.random.default_rng(seed)
    return [
        (
            rng.uniform(size=(count, *task.shape)).astype(np.float32),
            rng.integers(task.classes, size=count),
        )
        for _ in range(users)
    ]
