"""Rows of tokens without their padding: sorted by length, one time step after another.

A row is `bos w1 … wn eos 0 0 …`. Its predictions are the pairs (token, next token) up
to the last real token. Packing lists the pairs of all rows time step by time step,
longest row first, so that the rows that are still alive at a time step are always the
first ones: a recurrent net then works on ever shorter prefixes and never on padding.
"""

from typing import NamedTuple

import tensorflow as tf


class Packed(NamedTuple):
    """The predictions of some rows, time-major and without padding.

    Attributes:
      inputs: int32 [n], the token that is read.
      targets: int32 [n], the token to be predicted.
      sizes: int32 [steps], how many rows have a prediction at each time step; they
        never grow. Their sum is n.
      order: int32 [rows], which row came first, second, … by length.
    """

    inputs: tf.Tensor
    targets: tf.Tensor
    sizes: tf.Tensor
    order: tf.Tensor


def pack(rows: tf.Tensor) -> Packed:
    """Packs rows of token ids; what follows a row's first pad (0) is left out.

    Args:
      rows: int32 [any, steps + 1].

    Example:
      >>> pack(tf.constant([[8, 1, 9, 0], [8, 2, 3, 9]])).inputs.numpy().tolist()
      [8, 8, 2, 1, 3]
    """
    steps = rows.shape[1] - 1
    # Not `rows != 0`: inside TFF's graphs that compares objects, not values.
    real = tf.cast(tf.not_equal(rows, 0), tf.int32)
    lengths = tf.reduce_sum(tf.math.cumprod(real, axis=1), axis=1) - 1
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    rows = tf.gather(rows, order)
    alive = tf.range(steps)[:, None] < tf.gather(lengths, order)[None, :]
    places = tf.where(tf.reshape(alive, [-1]))[:, 0]
    return Packed(
        inputs=tf.gather(tf.reshape(tf.transpose(rows[:, :-1]), [-1]), places),
        targets=tf.gather(tf.reshape(tf.transpose(rows[:, 1:]), [-1]), places),
        sizes=tf.reduce_sum(tf.cast(alive, tf.int32), axis=1),
        order=order,
    )


def positions(packed: Packed) -> tf.Tensor:
    """Says which row and which time step each prediction of `packed` belongs to.

    Returns:
      int32 [n, 2]: the row, as `pack` was given it, and the time step.
    """
    count = tf.shape(packed.order)[0]
    alive = tf.range(count)[None, :] < packed.sizes[:, None]
    places = tf.cast(tf.where(alive), tf.int32)
    return tf.stack([tf.gather(packed.order, places[:, 1]), places[:, 0]], axis=1)
