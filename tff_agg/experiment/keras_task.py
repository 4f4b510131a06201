"""Tasks whose model is a Keras model: what is left to say is data and layers."""

import abc
import functools
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tree

from tff_agg.aliases import Json, Structure
from tff_agg.experiment.rows import Examples, Rows, RowsTask
from tff_agg.experiment.task import Client, UserTask, Weights
from tff_agg.recycling.outputs import Predictions

if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_federated as tff

    from tff_agg.federated.keras_models import Loss

__all__ = ["Examples", "KerasTask"]

_BATCH = 512


class KerasTask(RowsTask, UserTask):
    """Any Keras model, trained by plain gradient descent on each client.

    A task of your own says who the users are (`users`), what they have (`examples_of`),
    what models are judged on (`evaluation_examples`), and which layers the model has
    (`keras_model`). By default it classifies: labels are classes and the last layer
    gives one logit for each. `problem` says otherwise, and `loss` for a loss of one's
    own. `docs/your_own_task.md` shows all of it.
    """

    @abc.abstractmethod
    def keras_model(self, seed: int) -> "tf.keras.Model":
        """Builds the model, its initial weights a function of the seed.

        Weights of layers with `trainable=False` stay as they are built here.
        """

    @abc.abstractmethod
    def examples_of(self, user: int, group: str) -> Examples:
        """Returns a user's features and labels, in a fixed order.

        Features are one array, or a dict or tuple of arrays for a model with several
        inputs; the examples are along the first axis of each.
        """

    def loss(self) -> "Loss":
        """Returns the loss of a batch, a function of labels and outputs.

        By default cross entropy of the logits where the problem's predictions are
        distributions, and the mean squared error where not.
        """
        import tensorflow as tf

        if self.problem.distributions:
            return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return tf.keras.losses.MeanSquaredError()

    # What a client trains on.

    def client(self, user: int, group: str, round_number: int) -> Client:
        """Returns a user's features and labels."""
        return self._client(f"user {user}", *self.examples_of(user, group))

    def _client(self, name: str, features: Structure, labels: np.ndarray) -> Client:
        return Client(name, [*tree.flatten(features), labels], len(labels))

    def heldout_clients(self, number: int) -> Sequence[Client]:
        """Returns pieces of the held-out examples, of four batches each."""
        size = 4 * self.config.batch_size
        rows = self.flat_sample(self.fixed_sample("heldout", number * size))
        order = np.random.default_rng(0).permutation(len(rows))
        # What is over is left out, unless that is all.
        pieces = [order[i * size :][:size] for i in range(max(1, len(rows) // size))]
        return [self._client("a held-out piece", *rows.part(p)) for p in pieces]

    def dataset(self, client: Client) -> "tf.data.Dataset":
        """Returns a user's examples in batches."""
        import tensorflow as tf

        examples = tf.data.Dataset.from_tensor_slices(self._as_specified(client.arrays))
        return examples.batch(self.config.batch_size)

    def scored_on(self, client: Client) -> Structure:
        """Returns a user's features and labels."""
        return self._as_specified(client.arrays)

    def group(self, clients: Sequence[Client]) -> "tf.data.Dataset":
        """Returns the batches of several users."""
        from tff_agg.federated import grouping

        batches = [list(self._batches(client)) for client in clients]
        return grouping.group_batches(batches, self._input_spec)

    def _batches(self, client: Client) -> Iterator[Structure]:
        examples, size = self._as_specified(client.arrays), self.config.batch_size
        for first in range(0, client.examples, size):
            part = slice(first, first + size)
            yield tree.map_structure(lambda array, part=part: array[part], examples)

    def _as_specified(self, arrays: Sequence[np.ndarray]) -> Structure:
        """Returns arrays in the structure and of the types that the model takes."""
        specs = tree.flatten(self._input_spec)
        cast = [
            np.asarray(array).astype(spec.dtype.as_numpy_dtype, copy=False)
            for array, spec in zip(arrays, specs, strict=True)
        ]
        return tree.unflatten_as(self._input_spec, cast)

    # The model.

    def _build(self) -> "tf.keras.Model":
        """Builds the model; one that is a class of its own by calling it once."""
        from tff_agg.federated import keras_models

        with keras_models.building():
            model = self.keras_model(self.config.seed)
            if not model.built:
                model(_zeros(self._specs_for(model)[0]))
            return model

    @functools.cached_property
    def _built(self) -> "tf.keras.Model":
        """The model, built once for its shapes, initial weights and trace."""
        return self._build()

    @functools.cached_property
    def _input_spec(self) -> tuple[Structure, "tf.TensorSpec"]:
        """What batches of features and labels look like."""
        return self._specs_for(self._built)

    def _specs_for(self, model: "tf.keras.Model") -> tuple[Structure, "tf.TensorSpec"]:
        """The shapes are those of a user's data; the model says which numbers it wants.

        A model that does not say so takes what the data have, floats in single
        precision.
        """
        import tensorflow as tf

        first = self.population()[0]
        features, labels = self.examples_of(int(first.users[0]), first.name)
        arrays = tree.flatten(features)
        wanted: list[Any] = [
            np.float32 if np.asarray(a).dtype.kind == "f" else a.dtype for a in arrays
        ]
        if inputs := list(getattr(model, "inputs", None) or []):
            if len(inputs) != len(arrays):
                raise ValueError(
                    f"examples_of of {self.package} returns {len(arrays)} arrays of "
                    f"features; its model has {len(inputs)} inputs"
                )
            if isinstance(features, Mapping):
                by_name = dict(zip(model.input_names, inputs, strict=True))
                inputs = [by_name[name] for name in sorted(features)]
            wanted = [tensor.dtype for tensor in inputs]

        def spec(array: np.ndarray, dtype: Any) -> tf.TensorSpec:
            return tf.TensorSpec([None, *np.shape(array)[1:]], tf.as_dtype(dtype))

        specs = tree.unflatten_as(features, list(map(spec, arrays, wanted)))
        if isinstance(specs, Mapping):  # TFF wants an order
            specs = OrderedDict(sorted(specs.items()))
        return specs, spec(labels, self.problem.label_type)

    @functools.cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The trained weights, by their layer's place and kind and their own names."""
        from tff_agg.federated import keras_models

        weights = self._built.trainable_weights
        if not weights:
            raise ValueError(
                f"the model of {self.package} has no weights to train; build it in "
                "keras_model, with its inputs' shapes"
            )
        names = keras_models.weight_names(self._built)
        return {n: tuple(w.shape) for n, w in zip(names, weights, strict=True)}

    @functools.cached_property
    def constants_digest(self) -> str:
        """A digest of the weights that are not trained; empty where there are none."""
        digest = hashlib.blake2b(digest_size=16)
        for weight in (fixed := self._built.non_trainable_weights):
            digest.update(np.ascontiguousarray(weight.numpy()).tobytes())
        return digest.hexdigest() if fixed else ""

    @functools.cached_property
    def group_size(self) -> int:
        """Users train side by side where that is faster: see `vectorized.pays`."""
        from tff_agg.federated import vectorized

        if self.config.group_users is None and not vectorized.pays(self.model()):
            return 1
        return self.config.group_size(self.num_parameters)

    @functools.cache  # noqa: B019  One model for the process and all groups.
    def model(self) -> "tff.learning.models.FunctionalModel":
        """Returns the model as TFF trains it."""
        from tff_agg.federated import keras_models

        return keras_models.functional_model(
            self._built, self.loss(), self._input_spec, self._training_metrics
        )

    def _training_metrics(self) -> OrderedDict[str, Any]:
        import tensorflow as tf

        if not self.problem.distributions:
            return OrderedDict()
        return OrderedDict(accuracy=tf.keras.metrics.SparseCategoricalAccuracy())

    def initial_weights(self) -> Weights:
        """Returns the weights that the model was built with."""
        return self.named([w.numpy() for w in self._built.trainable_weights])

    def to_keras(self, weights: Weights) -> "tf.keras.Model":
        """Returns the model with these weights."""
        model = self._build()
        _assign(model, self.named(weights))
        return model

    def export_texts(self) -> Mapping[str, str]:
        """Nothing but the model is needed."""
        return {}

    def export_facts(self) -> Mapping[str, Json]:
        """The model says all of itself."""
        return {}

    # Predictions.

    @functools.cached_property
    def classes(self) -> int:
        """The width of the model's output: the numbers that it gives for an example."""
        outputs = self._built(_zeros(self._input_spec[0]), training=False)
        return int(np.prod(outputs.shape[1:]))

    def predictor(self) -> Callable[[Weights, Rows], Predictions]:
        """Returns the predictions: distributions, or the outputs themselves."""
        import tensorflow as tf

        model = self._build()
        specs, _ = self._input_spec

        @functools.partial(tf.function, input_signature=[specs])
        def run(features: Structure) -> tf.Tensor:
            outputs = model(features, training=False)
            if self.problem.distributions:
                return tf.nn.softmax(outputs)
            return tf.reshape(outputs, [tf.shape(outputs)[0], self.classes])

        def predict(weights: Weights, rows: Rows) -> Predictions:
            _assign(model, self.named(weights))
            scores = [np.zeros((0, self.classes), np.float32)]
            for first in range(0, len(rows), _BATCH):
                part = tree.flatten(rows[first : first + _BATCH].features)
                cast = [
                    tf.constant(array, spec.dtype)
                    for array, spec in zip(part, tree.flatten(specs), strict=True)
                ]
                scores.append(run(tree.unflatten_as(specs, cast)).numpy())
            return Predictions(np.concatenate(scores), rows.labels)

        return predict


def _assign(model: "tf.keras.Model", weights: Weights) -> None:
    for variable, value in zip(model.trainable_weights, weights.values(), strict=True):
        variable.assign(value)


def _zeros(specs: Structure) -> Structure:
    """Returns features of one example, of zeros."""
    import tensorflow as tf

    return tree.map_structure(lambda s: tf.zeros([1, *s.shape[1:]], s.dtype), specs)
