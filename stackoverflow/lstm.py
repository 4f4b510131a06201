"""The next-word model's forward pass on packed rows."""

from typing import Any

import tensorflow as tf

from stackoverflow import packing


def hidden_states(weights: list[Any], packed: packing.Packed) -> tf.Tensor:
    """Returns the projected LSTM outputs [n, embedding] of packed predictions.

    The output layer is left to the caller: for many rows its result, n × ids, is the
    one thing that is too large to hold.
    """
    embedding, kernel, recurrent, bias, dense_kernel, dense_bias = weights[:6]
    read = tf.matmul(tf.gather(embedding, packed.inputs), kernel) + bias
    steps = packed.sizes.shape[0]
    parts = tf.split(read, packed.sizes, num=steps)
    outputs: list[tf.Tensor] = []
    state: Any = None
    cell: Any = None
    for step, part in enumerate(parts):
        if step:
            size = packed.sizes[step]
            part += tf.matmul(state[:size], recurrent)
            cell = cell[:size]
        taken, kept, new, shown = tf.split(part, 4, axis=1)
        new = tf.sigmoid(taken) * tf.tanh(new)
        cell = new if cell is None else tf.sigmoid(kept) * cell + new
        state = tf.sigmoid(shown) * tf.tanh(cell)
        outputs.append(state)
    return tf.matmul(tf.concat(outputs, 0), dense_kernel) + dense_bias
