"""Handwritten digits by user, as a task of the experiment layer."""

import dataclasses
from typing import Any

import numpy as np

from examples.emnist import data
from examples.emnist.data import Writer
from pds.groups import Group
from tff_agg.experiment.config import TrainConfig
from tff_agg.experiment.keras_task import Examples, KerasTask
from tff_agg.fields import described


@dataclasses.dataclass(frozen=True)
class EmnistConfig(TrainConfig):
    """What every run has, and what is this task's own."""

    writers: int = described(2000, "users to train on", at_least=2, role="cohort")
    filters: int = described(8, "filters of the convolution", at_least=1)


class Emnist(KerasTask):
    """A small convolutional network; even and odd digits are the shifting groups."""

    package = "examples.emnist"
    Config = EmnistConfig
    config: EmnistConfig
    data: list[Writer]

    def open_data(self) -> list[Writer]:
        """Makes the writers."""
        return data.make_writers("train", self.config.writers)

    @property
    def fingerprint(self) -> str:
        """A digest of what is trained on."""
        return data.fingerprint(self.data)

    def users(self) -> np.ndarray:
        """Writers are numbered."""
        return np.arange(len(self.data))

    def examples_of(self, user: int, group: str) -> Examples:
        """A writer brings all digits, whichever group the writer was drawn from."""
        return self.data[user].images, self.data[user].labels

    def shifting_groups(self) -> list[Group]:
        """Writers of mostly even and of mostly odd digits."""
        parities = np.array([writer.parity for writer in self.data])
        return [Group(p, np.flatnonzero(parities == p)) for p in data.PARITIES]

    def evaluation_examples(self, split: str) -> dict[str, Examples]:
        """Digits of 100 other writers, by the writer's parity."""
        writers = data.make_writers(split, 100)
        found = {}
        for parity in data.PARITIES:
            own = [writer for writer in writers if writer.parity == parity]
            found[parity] = (
                np.concatenate([writer.images for writer in own]),
                np.concatenate([writer.labels for writer in own]),
            )
        return found

    def keras_model(self, seed: int) -> Any:
        """One convolution, one pooling, one dense layer: about 1,400 weights."""
        import tensorflow as tf

        first, second = (
            tf.keras.initializers.GlorotUniform(seed=2 * seed + i) for i in (1, 2)
        )
        return tf.keras.Sequential(
            [
                tf.keras.layers.InputLayer([8, 8, 1]),
                tf.keras.layers.Conv2D(
                    self.config.filters, 3, padding="same", activation="relu",
                    kernel_initializer=first,
                ),
                tf.keras.layers.MaxPooling2D(2),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(10, kernel_initializer=second),
            ]
        )  # fmt: skip
