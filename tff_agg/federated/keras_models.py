"""Any Keras model as a function of its weights, for TFF.

A Keras model is built and traced once, eagerly, with its weights as arguments. TFF's
graphs call the trace; no code of Keras's runs in them. So whatever Keras can build can
be trained: operations between layers, layers within layers, several inputs, integers.

Weights that are not trained are constants of the trace. Those that training would
change, such as the moving statistics of batch normalisation, are refused: they follow
from data that no clipping and no noise has touched.
"""

import contextlib
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.aliases import Specs, Structure

#: `loss(y_true, y_pred)`: a loss of Keras's, or a function that returns a mean.
Loss = Callable[[Any, Any], tf.Tensor]
MetricsConstructor = Callable[[], OrderedDict[str, Any]]


class UpdatedByDataError(ValueError):
    """A model has weights that data change without clipping and noise."""


@contextlib.contextmanager
def building() -> Iterator[None]:
    """Inside the block Keras builds models that keep no state but their weights.

    Layers that draw at random, such as dropout, would otherwise count their draws in a
    variable.
    """
    random = tf.keras.backend.experimental
    counted = random.is_tf_random_generator_enabled()
    random.disable_tf_random_generator()
    try:
        yield
    finally:
        if counted:
            random.enable_tf_random_generator()


def weight_names(model: tf.keras.Model) -> list[str]:
    """Names the trained weights, each once, in the order of `trainable_weights`.

    A name is the place and the kind of a layer of the model, and the weight's own name
    with those of the layers inside. Numbers that Keras counts through a process are
    left out: they would differ from one process to the next.

    Example:
      weight_names(model)  # ['0_conv2d/kernel', '0_conv2d/bias', …]
    """
    layers: dict[int, tuple[str, str]] = {}
    for place, layer in enumerate(model.layers):
        for weight in layer.trainable_weights:
            kind = type(layer).__name__.lower()
            layers.setdefault(id(weight), (f"{place}_{kind}", layer.name))
    seen: Counter[str] = Counter()
    names = []
    for weight in model.trainable_weights:
        prefix, layer_name = layers.get(id(weight), ("model", model.name))
        parts = weight.name.partition(":")[0].split("/")
        own = parts[1:] if parts[0] == layer_name else parts
        name = "/".join([prefix, *(re.sub(r"_\d+$", "", part) for part in own)])
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return names


def functional_model(
    model: tf.keras.Model,
    loss: Loss,
    input_spec: tuple[Specs, Specs],
    metrics: MetricsConstructor | None = None,
) -> tff.learning.models.FunctionalModel:
    """Returns a Keras model as a function of its trained weights.

    Args:
      model: A built model, made within `building` if it draws at random.
      loss: The loss of a batch: an instance of a loss of Keras's, or any function of
        labels and outputs that returns a scalar.
      input_spec: The `tf.TensorSpec`s of features and labels; the first dimension is
        that of the examples.
      metrics: Builds metrics of Keras's, by name; none if not given.

    Returns:
      A model whose `initial_weights` are the trained weights, and none besides: those
      that are not trained are constants.

    Raises:
      UpdatedByDataError: Training would change weights by other ways than its steps.
      ValueError: The model keeps other state, which no trace can hold.

    Example:
      with keras_models.building():
        model = keras_model()
      trained = functional_model(
          model, tf.keras.losses.MeanSquaredError(),
          (tf.TensorSpec([None, 3]), tf.TensorSpec([None])))
    """
    features, _ = input_spec
    traces = {
        training: _trace(model, features, training=training)
        for training in (True, False)
    }

    @tf.function(autograph=False)
    def predict_on_batch(
        weights: Structure, x: Structure, training: bool = True
    ) -> Any:
        trainable, _ = weights
        leaves = tf.nest.flatten(x, expand_composites=True)
        return traces[training](*trainable, *leaves)

    def loss_fn(output: Any, label: Any, sample_weight: Any = None) -> Any:
        del sample_weight
        return tf.reduce_mean(loss(label, output))

    functions: dict[str, Any] = {}
    if metrics is not None:
        made = tff.learning.metrics.create_functional_metric_fns(metrics)
        functions["metrics_fns"] = made
    return tff.learning.models.FunctionalModel(
        initial_weights=(tuple(w.numpy() for w in model.trainable_weights), ()),
        predict_on_batch_fn=predict_on_batch,
        loss_fn=loss_fn,
        input_spec=input_spec,
        **functions,
    )


def _trace(
    model: tf.keras.Model, features: Specs, *, training: bool
) -> Callable[..., Any]:
    """Traces a forward pass: a function of the trained weights and the features."""
    trained, constant = model.trainable_weights, model.non_trainable_weights
    weights = [tf.TensorSpec(w.shape, w.dtype) for w in trained]
    fixed = [w.numpy() for w in constant]

    def forward(*arguments: tf.Tensor) -> Any:
        given = arguments[: len(trained)]
        x = tf.nest.pack_sequence_as(features, arguments[len(trained) :])
        values = [*given, *map(tf.constant, fixed)]
        with _replaced([*trained, *constant], values) as changed:
            outputs = model(x, training=training)
        if changed:
            raise UpdatedByDataError(
                f"the model {model.name!r} has weights that data change without "
                f"clipping and noise: {', '.join(changed)}. Freeze their layer "
                "(trainable=False), or use one without them, for example group "
                "instead of batch normalisation"
            )
        return outputs

    try:
        traced = tf.function(forward, autograph=False).get_concrete_function(
            *weights, *tf.nest.flatten(features)
        )
    except UpdatedByDataError as error:
        # Without the trace that TensorFlow adds to the text.
        raise UpdatedByDataError(str(error).partition("\n")[0]) from None
    captured = list(traced.captured_inputs)
    if any(tensor.dtype == tf.resource for tensor in captured):
        raise ValueError(
            f"the model {model.name!r} keeps state outside of its weights; build it in "
            "keras_model, and without layers that count or look up"
        )
    # A graph of TFF's cannot hold tensors from outside.
    constants = [tensor.numpy() for tensor in captured]
    traced.set_external_captures([lambda v=v: tf.constant(v) for v in constants])
    return traced


@contextlib.contextmanager
def _replaced(
    variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]
) -> Iterator[list[str]]:
    """Makes variables stand for tensors; yields the names of those assigned to."""
    changed: list[str] = []
    kinds = [type(variable) for variable in variables]
    for variable, value in zip(variables, values, strict=True):
        variable.__class__ = _standing_for(type(variable), value, changed)
    try:
        yield changed
    finally:
        for variable, kind in zip(variables, kinds, strict=True):
            variable.__class__ = kind


def _standing_for(kind: type, value: tf.Tensor, changed: list[str]) -> type:
    """Returns a class of variables that are read as `value` and only note changes."""

    def read(self, *_, **__):
        return tf.identity(value)

    def gather(self, indices, name=None):
        return tf.gather(value, indices, name=name)

    def gather_nd(self, indices, name=None):
        return tf.gather_nd(value, indices, name=name)

    def assign(self, *_, **__):
        if self.name not in changed:
            changed.append(self.name)
        return self

    own: dict[str, Any] = dict.fromkeys(("value", "read_value"), read)
    own |= {"sparse_read": gather, "gather_nd": gather_nd}
    # Operations are placed beside it.
    own["handle"] = property(lambda self: value)
    own |= dict.fromkeys(("assign", "assign_add", "assign_sub"), assign)
    return type(f"StandsFor{kind.__name__}", (kind,), own)
