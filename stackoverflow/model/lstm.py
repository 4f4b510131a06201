"""The next-word model on packed rows: forward pass, loss and gradients by hand.

The gradients are those of the mean cross entropy over the real tokens of a batch, which
is what Keras' `SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)` has.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from stackoverflow.model import packing, recurrence

# Up to here exp neither overflows nor underflows to nothing, summed over all ids.
_SAFE_LOGIT = 60.0


class Step(NamedTuple):
    """The outcome of one batch.

    Attributes:
      embedding: [n, embedding], the gradient of the embedding, one row for each
        prediction, to be added at the row of its input token.
      others: Gradients of all other weights, in their order.
      losses: [n], the cross entropy of each prediction.
      predicted: int32 [n], the most likely id.
    """

    embedding: tf.Tensor
    others: list[tf.Tensor]
    losses: tf.Tensor
    predicted: tf.Tensor


class Scored(NamedTuple):
    """Logits compared with targets.

    Attributes:
      mass: [n, ids], softmax before its normalisation.
      totals: [n], the sums of its rows.
      losses: [n], the cross entropy of each prediction.
      predicted: int32 [n], the most likely id.
    """

    mass: tf.Tensor
    totals: tf.Tensor
    losses: tf.Tensor
    predicted: tf.Tensor


def hidden_states(weights: list[Any], packed: packing.Packed) -> tf.Tensor:
    """Returns the projected LSTM outputs [n, embedding] of packed predictions.

    The output layer is left to the caller: for many rows its result, n × ids, is the
    one thing that is too large to hold.
    """
    embedding, kernel, recurrent, bias, dense_kernel, dense_bias = weights[:6]
    inputs = tf.gather(embedding, packed.inputs)
    states, _ = recurrence.forward(inputs, packed.sizes, kernel, recurrent, bias)
    return tf.matmul(states, dense_kernel) + dense_bias


def gradients(weights: list[Any], packed: packing.Packed, scale: Any) -> Step:
    """Returns the gradients of the mean loss, multiplied by `scale`.

    The factor costs nothing here, where it goes into small tensors; afterwards it would
    be another pass over all weights.
    """
    embedding, kernel, recurrent, bias, dense, dense_bias, output, output_bias = weights
    inputs = tf.gather(embedding, packed.inputs)
    states, trace = recurrence.forward(inputs, packed.sizes, kernel, recurrent, bias)
    hidden = tf.matmul(states, dense) + dense_bias
    logits = tf.matmul(hidden, output) + output_bias
    mass, totals, losses, predicted = score(logits, packed.targets)
    # Now mass / totals becomes softmax minus one-hot. Dividing the thin factors of its
    # products instead saves a pass over n × ids.
    count = tf.shape(hidden)[0]
    at_targets = tf.stack([tf.range(count), packed.targets], 1)
    mass = tf.tensor_scatter_nd_sub(mass, at_targets, totals)
    mean = scale / tf.maximum(tf.cast(count, tf.float32), 1.0)
    factor = (mean / totals)[:, None]
    to_hidden = tf.matmul(mass, output, transpose_b=True) * factor
    lstm = recurrence.backward(
        tf.matmul(to_hidden, dense, transpose_b=True),
        packed.sizes,
        kernel,
        recurrent,
        trace,
    )
    others = [
        lstm.kernel,
        lstm.recurrent,
        lstm.bias,
        tf.matmul(states, to_hidden, transpose_a=True),
        tf.reduce_sum(to_hidden, 0),
        tf.matmul(hidden * factor, mass, transpose_a=True),
        tf.matmul(factor, mass, transpose_a=True)[0],
    ]
    return Step(lstm.inputs, others, losses, predicted)


def score(logits: tf.Tensor, targets: tf.Tensor) -> Scored:
    """Compares logits [n, ids] with the targets [n].

    TensorFlow's own cross entropy makes more passes over n × ids and takes twice as
    long.
    """
    rows = tf.range(tf.shape(logits)[0])
    predicted = tf.argmax(logits, axis=1, output_type=tf.int32)
    highest = tf.gather_nd(logits, tf.stack([rows, predicted], 1))
    right = tf.gather_nd(logits, tf.stack([rows, targets], 1))
    # Shifting by the highest logit is for safety only, and seldom needed. Comparisons
    # with NaN are false, so that NaN takes the safe way too and stays NaN.
    tame = tf.reduce_all(tf.abs(highest) < _SAFE_LOGIT)
    shift = tf.where(tame, tf.zeros_like(highest), highest)
    shifted = tf.cond(tame, lambda: logits, lambda: logits - shift[:, None])
    mass = tf.exp(shifted)
    totals = tf.reduce_sum(mass, 1)
    return Scored(mass, totals, tf.math.log(totals) + shift - right, predicted)
