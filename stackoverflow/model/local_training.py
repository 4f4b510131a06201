"""A client's local training of the next-word model, without work on padding."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from stackoverflow.model import lstm, metrics, next_word, packing
from tff_agg import checks
from tff_agg.federated import trainers


def packed_trainer(
    config: next_word.ModelConfig,
    learning_rate: float,
    *,
    batch_size: int = 16,
    epochs: int = 1,
) -> trainers.Trainer:
    """Makes the local training: plain gradient descent on a client's token rows.

    Steps and gradients are those of the Keras model of `next_word.keras_model` with the
    mean cross entropy over the real tokens of each batch, to float precision.

    Args:
      config: The sizes of the model.
      learning_rate: The client's learning rate.
      batch_size: Rows in a step; rows are taken in the order given, the last step may
        have fewer.
      epochs: How many times a client goes through its rows.

    Returns:
      A `Trainer` of one user. A client's dataset has one kind of element, int32
      [any, row_length]: rows of token ids, `bos w1 … eos`, then padding. Several
      elements count as one, their rows in order. The number of examples is that of
      the rows; the metrics are those of `stackoverflow.model.metrics`, each batch's
      taken before its step.

    Example:
      trainer = packed_trainer(next_word.ModelConfig(), learning_rate=0.5)
      process = build_dp_ftrl_process(trainer, plan=plan)
      dataset = tf.data.Dataset.from_tensors(rows)
    """
    check_training(learning_rate, batch_size, epochs)
    spec = tf.TensorSpec([None, config.row_length], tf.int32)

    def initial_weights() -> tff.learning.models.ModelWeights:
        trainable = tuple(next_word.initial_weights(config))
        return tff.learning.models.ModelWeights(trainable, ())

    @tf.function(autograph=False)
    def update(weights, dataset):
        start = [tf.convert_to_tensor(w) for w in weights.trainable]
        rows = gather_elements(dataset, spec)
        final, sums = train_on_rows(
            config,
            start,
            rows,
            learning_rate=learning_rate,
            batch_size=batch_size,
            epochs=epochs,
        )
        deltas = [old - new for old, new in zip(start, final, strict=True)]
        delta = tf.nest.pack_sequence_as(weights.trainable, deltas)
        return delta, tf.cast(tf.shape(rows)[0], tf.float32), sums

    return trainers.Trainer(
        spec, initial_weights, trainers.one_user(update), finalize_metrics
    )


def train_on_rows(
    config: next_word.ModelConfig,
    weights: list[tf.Tensor],
    rows: tf.Tensor,
    *,
    learning_rate: float,
    batch_size: int = 16,
    epochs: int = 1,
) -> tuple[list[tf.Tensor], OrderedDict[str, tf.Tensor]]:
    """Trains on rows and returns the new weights and the sums of the metrics.

    Args:
      config: The sizes of the model.
      weights: In the order of `next_word.WEIGHT_NAMES`.
      rows: int32 [any, row_length].
      learning_rate: The step's size.
      batch_size: Rows in a step.
      epochs: How many times to go through the rows.
    """
    batches = (tf.shape(rows)[0] + batch_size - 1) // batch_size
    names = metrics.SUM_NAMES

    def body(done, sums, embedding, *others):
        first = (done % batches) * batch_size
        packed = packing.pack(rows[first : first + batch_size])
        step = lstm.gradients([embedding, *others], packed, learning_rate)
        # Only the rows of tokens that occurred change; TensorFlow does it in place.
        embedding = tf.tensor_scatter_nd_sub(
            embedding, packed.inputs[:, None], step.embedding
        )
        moved = [w - g for w, g in zip(others, step.others, strict=True)]
        new = metrics.sums(config, packed.targets, step.predicted, step.losses)
        sums = [old + new[name] for old, name in zip(sums, names, strict=True)]
        return done + 1, sums, embedding, *moved

    _, sums, *final = tf.while_loop(
        lambda done, *_: done < epochs * batches,
        body,
        (tf.constant(0), [tf.zeros([]) for _ in names], *weights),
        parallel_iterations=1,
    )
    return final, OrderedDict(zip(names, sums, strict=True))


def finalize_metrics(sums: Mapping[str, Any]) -> OrderedDict[str, tf.Tensor]:
    """Turns sums over all clients into metrics, in TensorFlow ops; 0 of 0 is 0."""

    def ratio(part, whole):
        return tf.math.divide_no_nan(sums[part], sums[whole])

    return OrderedDict(
        loss=ratio("loss", "tokens"),
        accuracy=ratio("correct", "countable"),
        accuracy_with_oov=ratio("correct_with_oov", "countable_with_oov"),
        accuracy_all=ratio("correct_all", "tokens"),
        tokens=tf.identity(sums["tokens"]),
    )


def check_training(learning_rate: float, batch_size: int, epochs: int) -> None:
    """Raises unless the three are what local training can be done with."""
    checks.number("learning_rate", learning_rate, "(0, inf)")
    checks.whole("batch_size", batch_size)
    checks.whole("epochs", epochs)


def gather_elements(dataset: tf.data.Dataset, spec: Any) -> Any:
    """Puts the elements of a dataset one below the other, tensor by tensor."""
    # A loop of the graph, not a reduction inside tf.data, so that the training itself
    # stands in the outermost graph. Nearly always there is exactly one element.
    iterator = iter(dataset)
    specs = tf.nest.flatten(spec)

    def body(element, *parts):
        new = tf.nest.flatten(element.get_value())
        longer = [tf.concat([p, n], 0) for p, n in zip(parts, new, strict=True)]
        return iterator.get_next_as_optional(), *longer

    empty = [tf.zeros([0, *s.shape[1:]], s.dtype) for s in specs]
    _, *parts = tf.while_loop(
        lambda element, *_: element.has_value(),
        body,
        (iterator.get_next_as_optional(), *empty),
        shape_invariants=(None, *(s.shape for s in specs)),
        parallel_iterations=1,
    )
    return tf.nest.pack_sequence_as(spec, parts)
