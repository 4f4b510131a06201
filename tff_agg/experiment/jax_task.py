"""Tasks whose model is in JAX, trained on one example at a time."""

import abc
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tff_agg.experiment.rows import Rows, RowsTask
from tff_agg.experiment.task import ExampleTask, Weights
from tff_agg.recycling.outputs import Predictions

if TYPE_CHECKING:
    import jax

_BATCH = 1000


class JaxTask(RowsTask, ExampleTask):
    """A model in JAX, trained by DP-SGD.

    A task of your own says what the examples are (`training_arrays`), what the model is
    (`sample_model`, `initial_weights`, `logits`) and what it is judged on
    (`evaluation_examples`).
    """

    @abc.abstractmethod
    def logits(
        self, weights: Mapping[str, "jax.Array"], features: "jax.Array"
    ) -> "jax.Array":
        """Returns one logit per class, [examples, classes]; in JAX, to be compiled."""

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of all examples, those of training first."""
        digest = hashlib.blake2b(self.example_digests.tobytes(), digest_size=16)
        for split in ("heldout", "test"):
            for name, arrays in sorted(self.evaluation_examples(split).items()):
                digest.update(name.encode())
                for array in arrays:
                    digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def predictor(self) -> Callable[[Weights, Rows], Predictions]:
        """Returns the predictions: softmax of the outputs where they are of classes."""
        import jax

        def predicted(
            weights: Mapping[str, "jax.Array"], x: "jax.Array"
        ) -> "jax.Array":
            outputs = self.logits(weights, x)
            return jax.nn.softmax(outputs) if self.problem.distributions else outputs

        run = jax.jit(predicted)

        def predict(weights: Weights, rows: Rows) -> Predictions:
            named = self.named(weights)
            scores = [np.zeros((0, self.classes), np.float32)]
            features = np.asarray(rows.features)
            for first in range(0, len(rows), _BATCH):
                part = features[first : first + _BATCH]
                # One shape, compiled once.
                padded = np.zeros((_BATCH, *part.shape[1:]), part.dtype)
                padded[: len(part)] = part
                scores.append(np.asarray(run(named, padded))[: len(part)])
            return Predictions(np.concatenate(scores), rows.labels)

        return predict
