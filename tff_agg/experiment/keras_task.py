"""Tasks whose model is a Keras classifier: what is left to say is data and layers."""

import abc
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tff_agg.aliases import Json
from tff_agg.experiment.classifier import ClassifierTask, Examples, Rows
from tff_agg.experiment.task import Client, UserTask, Weights
from tff_agg.recycling.outputs import Predictions

if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_federated as tff

_BATCH = 512


class KerasTask(ClassifierTask, UserTask):
    """A classifier in Keras, trained by plain gradient descent on each client.

    A task of your own says who the users are (`users`), what they have (`examples_of`),
    what models are judged on (`evaluation_examples`), and which layers the model has
    (`keras_model`). The last layer gives one logit per class. `docs/your_own_task.md`
    shows one.
    """

    @abc.abstractmethod
    def keras_model(self, seed: int) -> "tf.keras.Model":
        """Builds the model, its initial weights a function of the seed."""

    @abc.abstractmethod
    def examples_of(self, user: int, group: str) -> Examples:
        """Returns a user's features and labels, in a fixed order."""

    def client(self, user: int, group: str, round_number: int) -> Client:
        """Returns a user's features and labels."""
        features, labels = self.examples_of(user, group)
        return Client(f"user {user}", [features, labels], len(labels))

    def dataset(self, client: Client) -> "tf.data.Dataset":
        """Returns a user's examples in batches."""
        import tensorflow as tf

        examples = tf.data.Dataset.from_tensor_slices(tuple(client.arrays))
        return examples.batch(self.config.batch_size)

    def group(self, clients: Sequence[Client]) -> "tf.data.Dataset":
        """Returns the batches of several users."""
        from tff_agg.learning import grouping

        batches = [list(self._batches(client)) for client in clients]
        return grouping.group_batches(batches, self.model().input_spec)

    def _batches(self, client: Client) -> Iterator[tuple[np.ndarray, ...]]:
        size = self.config.batch_size
        for first in range(0, client.examples, size):
            yield tuple(array[first : first + size] for array in client.arrays)

    @property
    def _features(self) -> "tf.TensorSpec":
        import tensorflow as tf

        return tf.TensorSpec([None, *self._built.input_shape[1:]], tf.float32)

    @functools.cached_property
    def _built(self) -> "tf.keras.Model":
        """The model, built once for its shapes and initial weights."""
        model = self.keras_model(self.config.seed)
        if model.non_trainable_weights:
            names = ", ".join(w.name for w in model.non_trainable_weights)
            raise ValueError(
                f"the model of {self.package} has weights that training does not "
                f"change through private updates ({names}), such as the statistics of "
                "batch normalisation; use layers without them, for example group "
                "normalisation"
            )
        return model

    @functools.cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The weights, by their layer's place and kind and their own names."""
        found = {}
        for place, layer in enumerate(self._built.layers):
            for weight in layer.trainable_weights:
                kind = type(layer).__name__.lower()
                own = weight.name.rpartition("/")[2].partition(":")[0]
                found[f"{place}_{kind}/{own}"] = tuple(weight.shape)
        return found

    @functools.cached_property
    def group_size(self) -> int:
        """Users train side by side where that is faster: see `vectorized.pays`."""
        from tff_agg.learning import vectorized

        if self.config.group_users is None and not vectorized.pays(self.model()):
            return 1
        return self.config.group_size(self.num_parameters)

    @functools.cache  # noqa: B019  One model for the process and all groups.
    def model(self) -> "tff.learning.models.FunctionalModel":
        """Returns the model as TFF trains it."""
        import tensorflow as tf
        import tensorflow_federated as tff

        return tff.learning.models.functional_model_from_keras(
            lambda: self.keras_model(self.config.seed),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            (self._features, tf.TensorSpec([None], tf.int32)),
            lambda: {"accuracy": tf.keras.metrics.SparseCategoricalAccuracy()},
        )

    def initial_weights(self) -> Weights:
        """Returns the weights that the model was built with."""
        return self.named([w.numpy() for w in self._built.trainable_weights])

    def to_keras(self, weights: Weights) -> "tf.keras.Model":
        """Returns the model with these weights."""
        model = self.keras_model(self.config.seed)
        values = self.named(weights).values()
        for variable, value in zip(model.trainable_weights, values, strict=True):
            variable.assign(value)
        return model

    def export_texts(self) -> Mapping[str, str]:
        """Nothing but the model is needed."""
        return {}

    def export_facts(self) -> Mapping[str, Json]:
        """The model says all of itself."""
        return {}

    @property
    def classes(self) -> int:
        """The width of the model's output."""
        return int(self._built.output_shape[-1])

    def predictor(self) -> Callable[[Weights, Rows], Predictions]:
        """Returns the predicted distributions."""
        import tensorflow as tf

        # Built here and traced at once: when TFF traces a model into its own graphs,
        # Keras invalidates the Python side of all models built before.
        model = self.keras_model(self.config.seed)
        variables = model.trainable_weights
        run = tf.function(
            lambda features: tf.nn.softmax(model(features, training=False))
        ).get_concrete_function(self._features)

        def predict(weights: Weights, rows: Rows) -> Predictions:
            values = self.named(weights).values()
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
            scores = [
                run(tf.constant(rows.features[i : i + _BATCH], tf.float32)).numpy()
                for i in range(0, len(rows), _BATCH)
            ]
            empty = np.zeros((0, self.classes), np.float32)
            return Predictions(np.concatenate([empty, *scores]), rows.labels)

        return predict
