"""A sample-level task so small that its steps take milliseconds."""

import dataclasses

import numpy as np

from pds import groups
from tff_agg.experiment.jax_task import JaxTask
from tff_agg.experiment.sample_config import SampleConfig
from tff_agg.fields import described

CLASSES, WIDTH = 4, 6


@dataclasses.dataclass(frozen=True)
class TinyConfig(SampleConfig):
    """What every run has, and how many examples there are."""

    examples: int = described(200, "how many examples", at_least=1)


class Tiny(JaxTask):
    """Points around four centres, told apart by a linear layer."""

    package = "tests.experiment"
    Config = TinyConfig
    config: TinyConfig

    def open_data(self):
        return [_points(self.config.examples, seed) for seed in range(3)]

    def training_arrays(self):
        return self.data[0]

    def evaluation_examples(self, split):
        return {"all": self.data[1 if split == "heldout" else 2]}

    def shifting_groups(self):
        return groups.by_label_parity(self.data[0][1])

    @property
    def classes(self):
        return CLASSES

    @property
    def shapes(self):
        # Not in alphabetical order, in which structures are flattened.
        return {"kernel": (WIDTH, CLASSES), "bias": (CLASSES,)}

    def initial_weights(self):
        generator = np.random.default_rng(self.config.seed)
        kernel = 0.01 * generator.standard_normal((WIDTH, CLASSES))
        return {"bias": np.zeros(CLASSES, "f"), "kernel": kernel.astype("f")}

    def logits(self, weights, features):
        return features @ weights["kernel"] + weights["bias"]

    def sample_model(self):
        import jax

        from tff_agg.sample.per_example import SampleModel

        def loss(weights, example):
            features, label = example
            scores = jax.nn.log_softmax(self.logits(weights, features))
            return -scores[label]

        return SampleModel(loss)


def _points(count, seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(CLASSES, size=count).astype(np.int32)
    centres = 2 * np.random.default_rng(9).standard_normal((CLASSES, WIDTH))
    noise = generator.standard_normal((count, WIDTH))
    return (centres[labels] + noise).astype(np.float32), labels


def config(**changes):
    values = {
        "rounds": 12,
        "noise_multiplier": 1.0,
        "batch_size": 50,
        "learning_rate": 1.0,
        "evaluate_every": 4,
    }
    return TinyConfig(**(values | changes))
