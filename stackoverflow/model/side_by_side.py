"""The next-word model on the rows of many users at once, each with weights of its own.

Before the first step all users have the same weights. Their rows are packed together,
as if they were one user's, and only the gradients of the weights are taken for each
user by itself (`first_step`). From the second step on the weights are stacked along a
users' axis, and so are the rows, padded to the user who has most (`later_step`).

Gradients are those of `lstm.gradients` for each user alone, to float precision.
"""

import itertools
from typing import Any, NamedTuple

import tensorflow as tf

from stackoverflow.model import lstm, packing, recurrence


class Users(NamedTuple):
    """The rows of some users.

    Attributes:
      rows: int32 [n, steps + 1], one user's rows after the other's.
      counts: int32 [users], how many rows each has; 0 is fine.
    """

    rows: tf.Tensor
    counts: tf.Tensor


class Step(NamedTuple):
    """The outcome of one batch of each user.

    Attributes:
      gradients: [users, …] for each weight, in the order of the weights.
      targets: int32 [users, most], what was to be predicted, 0 where a user has fewer
        predictions than the one who has most.
      losses: [users, most], the cross entropy of each prediction.
      predicted: int32 [users, most], the most likely id.
    """

    gradients: list[tf.Tensor]
    targets: tf.Tensor
    losses: tf.Tensor
    predicted: tf.Tensor


def first_step(weights: list[Any], users: Users, scale: float) -> Step:
    """Returns each user's gradients at weights that all of them share.

    Args:
      weights: In the order of `next_word.WEIGHT_NAMES`.
      users: The rows of one batch of each user.
      scale: The gradients are multiplied with it.
    """
    embedding, kernel, recurrent, bias, dense, dense_bias, output, output_bias = weights
    ids = embedding.shape[0]
    count = tf.shape(users.counts)[0]
    packed = packing.pack(users.rows)
    owners = tf.repeat(tf.range(count), users.counts)
    spread = _spread(packed, owners, count)
    inputs = tf.gather(embedding, packed.inputs)
    states, trace = recurrence.forward(inputs, packed.sizes, kernel, recurrent, bias)
    # From here to the loss in the users' order, so that what is largest, a number for
    # each prediction and id, is computed where each user's products need it.
    states = spread.out(states)
    hidden = tf.matmul(states, dense) + dense_bias
    targets = spread.out(packed.targets)
    scored, factor = _scored(
        tf.matmul(hidden, output) + output_bias, targets, spread.lengths, scale
    )
    to_hidden = tf.matmul(scored.mass, output, transpose_b=True) * factor
    drive = recurrence.drive_gradients(
        tf.matmul(tf.gather(to_hidden, spread.places), dense, transpose_b=True),
        packed.sizes,
        recurrent,
        trace,
    )
    by_input = tf.matmul(drive, kernel, transpose_b=True)
    read = tf.gather(owners, packing.positions(packed)[:, 0]) * ids + packed.inputs
    by_id = tf.math.unsorted_segment_sum(by_input, read, count * ids)
    before = tf.pad(trace.earlier, [[packed.sizes[0], 0], [0, 0]])
    seen = spread.out(tf.concat([inputs, before], 1))

    def for_each(tensor):
        return tf.reshape(tensor, [count, -1, tensor.shape[-1]])

    gradients = [
        tf.reshape(by_id, [count, ids, embedding.shape[1]]),
        *_layer(for_each(seen), for_each(spread.out(drive)), embedding.shape[1]),
        *_layer(for_each(states), for_each(to_hidden)),
        *_output_layer(for_each(hidden), for_each(factor), for_each(scored.mass)),
    ]
    most = [count, -1]
    return Step(
        gradients,
        tf.reshape(targets, most),
        tf.reshape(scored.losses, most),
        tf.reshape(scored.predicted, most),
    )


def later_step(weights: list[Any], users: Users, scale: float) -> Step:
    """Returns each user's gradients at weights of its own.

    Args:
      weights: Stacked: [users, …] for each, in the order of `next_word.WEIGHT_NAMES`.
      users: The rows of one batch of each user.
      scale: The gradients are multiplied with it.
    """
    embedding, kernel, recurrent, bias, dense, dense_bias, output, output_bias = weights
    ids, width = embedding.shape[1:]
    count = tf.shape(users.counts)[0]
    tokens, targets, sizes = _stack(users)
    lengths = tf.reduce_sum(tf.cast(tf.not_equal(targets, 0), tf.float32), 1)
    # Every user's embedding below the other's.
    read = tokens + ids * tf.range(count)[:, None]
    inputs = tf.gather(tf.reshape(embedding, [-1, width]), read)
    states, trace = recurrence.forward(inputs, sizes, kernel, recurrent, bias)
    hidden = tf.matmul(states, dense) + dense_bias[:, None]
    logits = tf.matmul(hidden, output) + output_bias[:, None]
    flat_targets = tf.reshape(targets, [-1])
    scored, factor = _scored(
        tf.reshape(logits, [-1, ids]), flat_targets, lengths, scale
    )
    mass = tf.reshape(scored.mass, tf.shape(logits))
    mass.set_shape(logits.shape)
    factor = tf.reshape(factor, [count, -1, 1])
    to_hidden = tf.matmul(mass, output, transpose_b=True) * factor
    drive = recurrence.drive_gradients(
        tf.matmul(to_hidden, dense, transpose_b=True), sizes, recurrent, trace
    )
    by_input = tf.reshape(tf.matmul(drive, kernel, transpose_b=True), [-1, width])
    by_id = tf.math.unsorted_segment_sum(by_input, tf.reshape(read, [-1]), count * ids)
    before = tf.pad(trace.earlier, [[0, 0], [sizes[0], 0], [0, 0]])
    gradients = [
        tf.reshape(by_id, [count, ids, width]),
        *_layer(tf.concat([inputs, before], 2), drive, width),
        *_layer(states, to_hidden),
        *_output_layer(hidden, factor, mass),
    ]
    most = [count, -1]
    return Step(
        gradients,
        targets,
        tf.reshape(scored.losses, most),
        tf.reshape(scored.predicted, most),
    )


class _Spread(NamedTuple):
    """Where packed predictions stand in the users' order, padded to the longest.

    Attributes:
      source: int32 [users · most], which prediction is there; n: none.
      places: int32 [n], where each prediction is.
      lengths: float32 [users], how many predictions each has.
    """

    source: tf.Tensor
    places: tf.Tensor
    lengths: tf.Tensor

    def out(self, packed: tf.Tensor) -> tf.Tensor:
        """Brings packed values into the users' order, with zeros as padding."""
        padding = [[0, 1]] + [[0, 0]] * (packed.shape.rank - 1)
        return tf.gather(tf.pad(packed, padding), self.source)


def _spread(packed: packing.Packed, owners: tf.Tensor, count: tf.Tensor) -> _Spread:
    """Finds the places of packed predictions, given the owner of each row."""
    rows, times = tf.unstack(packing.positions(packed), axis=1)
    total = tf.shape(rows)[0]
    # Rows are in the users' order already: so are predictions sorted by row and time.
    order = tf.argsort(rows * tf.shape(packed.sizes)[0] + times)
    owner = tf.gather(owners, tf.gather(rows, order))
    lengths = tf.math.bincount(owner, minlength=count, maxlength=count)
    starts = tf.cumsum(lengths, exclusive=True)
    most = tf.maximum(tf.reduce_max(lengths), 1)
    place = tf.range(total) - tf.gather(starts, owner) + owner * most
    source = tf.tensor_scatter_nd_update(
        tf.fill([count * most], total), place[:, None], order
    )
    places = tf.scatter_nd(order[:, None], place, tf.shape(rows))
    return _Spread(source, places, tf.cast(lengths, tf.float32))


def _stack(users: Users) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Stacks rows by user: tokens and targets [users, most], and sizes [steps].

    Each user's predictions are in the order of steps, its longest row first. At a step
    every user has as many rows as the one who has most rows alive there; those of its
    own that have ended have the target 0.
    """
    steps = users.rows.shape[1] - 1
    count = tf.shape(users.counts)[0]
    ragged = tf.RaggedTensor.from_row_lengths(users.rows, users.counts, validate=False)
    rows = ragged.to_tensor(shape=[None, None, steps + 1])
    real = tf.cast(tf.not_equal(rows, 0), tf.int32)
    lengths = tf.reduce_sum(tf.math.cumprod(real, axis=2), axis=2) - 1
    order = tf.argsort(lengths, direction="DESCENDING", stable=True, axis=1)
    rows = tf.gather(rows, order, batch_dims=1)
    lengths = tf.gather(lengths, order, batch_dims=1)
    alive = tf.range(steps)[:, None, None] < lengths[None]
    by_user = tf.reduce_sum(tf.cast(alive, tf.int32), axis=2)
    sizes = tf.reduce_max(by_user, axis=1)
    # Of the grid of all steps and rows, those steps and rows that somebody is alive at.
    width = tf.shape(rows)[1]
    occupied = tf.where(tf.reshape(tf.range(width)[None] < sizes[:, None], [-1]))[:, 0]

    def laid_out(values):
        turned = tf.reshape(tf.transpose(values, [0, 2, 1]), [count, -1])
        return tf.gather(turned, occupied, axis=1)

    inside = tf.transpose(alive, [1, 2, 0])
    targets = tf.where(inside, rows[..., 1:], 0)
    return laid_out(rows[..., :-1]), laid_out(targets), sizes


def _scored(
    logits: tf.Tensor, targets: tf.Tensor, lengths: tf.Tensor, scale: float
) -> tuple[lstm.Scored, tf.Tensor]:
    """Compares logits with targets, both in the users' order and flat.

    Returns:
      The scores, whose mass divided by its totals is softmax minus one-hot; and the
      factor [n, 1] of each prediction in its user's mean, divided by the total, 0
      where there is only padding.
    """
    scored = lstm.score(logits, targets)
    total = tf.shape(targets)[0]
    at_targets = tf.stack([tf.range(total), targets], 1)
    mass = tf.tensor_scatter_nd_sub(scored.mass, at_targets, scored.totals)
    means = tf.repeat(scale / tf.maximum(lengths, 1.0), total // tf.shape(lengths)[0])
    factor = tf.where(tf.not_equal(targets, 0), means / scored.totals, 0.0)
    return scored._replace(mass=mass), factor[:, None]


def _layer(inputs: tf.Tensor, gradient: tf.Tensor, *cuts: int) -> list[tf.Tensor]:
    """Gradients of a layer's kernel, cut in two where asked for, and of its bias."""
    # The bias is one more row of the kernel, with an input of 1.
    ones = tf.ones_like(inputs[..., :1])
    whole = tf.matmul(tf.concat([inputs, ones], -1), gradient, transpose_a=True)
    edges = [0, *cuts, inputs.shape[-1]]
    kernels = [whole[:, low:high] for low, high in itertools.pairwise(edges)]
    return [*kernels, whole[:, -1]]


def _output_layer(
    hidden: tf.Tensor, factor: tf.Tensor, mass: tf.Tensor
) -> list[tf.Tensor]:
    """Gradients of the output layer; the factor goes into the thin side."""
    thin = tf.concat([hidden * factor, factor], -1)
    whole = tf.matmul(thin, mass, transpose_a=True)
    return [whole[:, :-1], whole[:, -1]]
