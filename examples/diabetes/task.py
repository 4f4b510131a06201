"""A regression by user, as a task of the experiment layer.

The measurements of 442 patients come with scikit-learn. The users are made up: doctors
with a few patients each.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from tff_agg import digests
from tff_agg.experiment.config import TrainConfig
from tff_agg.experiment.keras_task import Examples, KerasTask
from tff_agg.fields import described
from tff_agg.recycling import problems

SPLITS = {"train": slice(300), "heldout": slice(300, 370), "test": slice(370, None)}


class Patients(NamedTuple):
    """Measurements [n, 10] and how far the disease has gone [n]."""

    measurements: np.ndarray
    progress: np.ndarray


@dataclasses.dataclass(frozen=True)
class DiabetesConfig(TrainConfig):
    """What every run has, and what is this task's own."""

    doctors: int = described(1000, "users to train on", at_least=2, role="cohort")
    patients: int = described(6, "patients of each", at_least=1, role="cohort")


class Diabetes(KerasTask):
    """A small network with one output; the labels are numbers."""

    package = "examples.diabetes"
    Config = DiabetesConfig
    problem = problems.REGRESSION
    config: DiabetesConfig
    data: Patients

    def open_data(self) -> Patients:
        """Reads the patients; measurements and labels have about unit size."""
        from sklearn import datasets

        found = datasets.load_diabetes()
        order = np.random.default_rng(0).permutation(len(found.target))
        # A public scale: numbers of about one train with the usual rates.
        return Patients(20.0 * found.data[order], (found.target[order] - 150) / 80)

    @property
    def fingerprint(self) -> str:
        """A digest of all patients."""
        return digests.of_arrays(self.data)

    def users(self) -> np.ndarray:
        """Doctors are numbered."""
        return np.arange(self.config.doctors)

    def examples_of(self, user: int, group: str) -> Examples:
        """A doctor's patients, drawn from those of training."""
        chosen = np.random.default_rng([1, user]).choice(300, self.config.patients)
        return self.data.measurements[chosen], self.data.progress[chosen]

    def evaluation_examples(self, split: str) -> dict[str, Examples]:
        """Patients whom no doctor of training has."""
        part = SPLITS[split]
        return {"all": (self.data.measurements[part], self.data.progress[part])}

    def keras_model(self, seed: int) -> Any:
        """Two dense layers."""
        import tensorflow as tf

        first, second = (
            tf.keras.initializers.GlorotUniform(seed=2 * seed + i) for i in (1, 2)
        )
        return tf.keras.Sequential(
            [
                tf.keras.layers.InputLayer([10]),
                tf.keras.layers.Dense(16, "relu", kernel_initializer=first),
                tf.keras.layers.Dense(1, kernel_initializer=second),
            ]
        )
