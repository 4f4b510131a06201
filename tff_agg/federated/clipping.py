"""A client's part of a round after training: clip every user's update, add them up.

What comes in has a first axis of users. Where TFF's client is one user, its length is
known to be one while the graph is made, and the axis costs nothing.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from tff_agg.aliases import Structure
from tff_agg.federated.trainers import Metrics
from tff_agg.privacy import Plan
from tff_agg.runtime.errors import MEMBER

NON_FINITE_CHOICES = ("drop", "error")


class Clipped(NamedTuple):
    """What the users of a client add up to.

    Attributes:
      total: The sum of the clipped updates, in float32 where they were in half
        precision.
      counts: To be summed over clients: `clients` (the users), `clipped`,
        `non_finite` and `norm`, before clipping.
      largest: The largest norm before clipping. An update that was dropped has norm 0.
    """

    total: Structure
    counts: Mapping[str, tf.Tensor]
    largest: tf.Tensor


def check_on_non_finite(on_non_finite: str) -> None:
    """Raises unless `on_non_finite` is one of the two choices."""
    if on_non_finite not in NON_FINITE_CHOICES:
        raise ValueError(
            f"on_non_finite must be one of {NON_FINITE_CHOICES}, got {on_non_finite!r}"
        )


def clip_users(updates: Structure, clip_norm: float, on_non_finite: str) -> Clipped:
    """Scales each user's update down to a global L2 norm and adds them up.

    To be called eagerly or in a `tf.function`, which runs the assertion.

    Args:
      updates: A structure of floating-point tensors with a first axis of users.
      clip_norm: The largest norm of a user's update; infinity clips nothing.
      on_non_finite: `'error'`, or `'drop'`, which takes zeros in place of an update
        that is not finite.

    Example:
      >>> stack = [tf.constant([[3.0, 4.0], [0.0, 0.5]])]
      >>> total, counts, largest = clip_users(stack, 1.0, 'error')
      >>> total[0].numpy(), int(counts['clipped']), float(largest)
      (array([0.6, 1.3], dtype=float32), 1, 5.0)
    """
    leaves = [_at_least_float32(leaf) for leaf in tf.nest.flatten(updates)]
    is_one = is_one_user(leaves[0])
    # A NaN or an infinity anywhere makes a norm not finite; so do numbers whose squares
    # overflow.
    norms = tf.sqrt(tf.add_n([_squares(leaf, is_one) for leaf in leaves]))
    finite = tf.math.is_finite(norms)
    too_long = norms > clip_norm
    scales = tf.where(too_long, clip_norm / norms, 1.0)
    if on_non_finite == "error":
        norms = _all_finite(norms, finite, is_one)
    else:
        scales = tf.where(finite, scales, 0.0)
        norms = tf.where(finite, norms, 0.0)
    counts = OrderedDict(
        clients=tf.shape(norms, tf.int64)[0],
        clipped=tf.reduce_sum(tf.cast(finite & too_long, tf.int64)),
        non_finite=tf.reduce_sum(tf.cast(~finite, tf.int64)),
        norm=tf.reduce_sum(norms),
    )
    add = _scaled if is_one else _added
    total = [add(leaf, scales, finite) for leaf in leaves]
    return Clipped(
        tf.nest.pack_sequence_as(updates, total), counts, tf.reduce_max(norms)
    )


def is_one_user(leaf: tf.Tensor) -> bool:
    """Returns whether the users' axis is known to have length one."""
    return leaf.shape[0] == 1


def summed_metrics(metrics: Metrics, on_non_finite: str) -> Metrics:
    """Adds metrics up over their first axis, that of users.

    With `'drop'` the metrics of a user are left out when any of them is not finite.

    Example:
      >>> sums = summed_metrics({'loss': tf.constant([1.0, np.nan])}, 'drop')
      >>> float(sums['loss'])
      1.0
    """
    metrics = OrderedDict(metrics)
    if on_non_finite == "drop":
        metrics = _zero_where_not_finite(metrics)
    return tf.nest.map_structure(lambda m: tf.reduce_sum(m, 0), metrics)


def measurements(
    plan: Plan, counts: Mapping[str, tf.Tensor], largest: tf.Tensor
) -> OrderedDict[str, tf.Tensor]:
    """Turns counts summed over clients into what a round reports. None is private."""
    clients = counts["clients"]
    finite = clients - counts["non_finite"]

    def over_finite(total):
        return tf.math.divide_no_nan(
            tf.cast(total, tf.float32), tf.cast(finite, tf.float32)
        )

    return OrderedDict(
        clients=clients,
        clipped_fraction=over_finite(counts["clipped"]),
        update_norm_mean=over_finite(counts["norm"]),
        # The maximum over no clients is the lowest number there is.
        update_norm_max=tf.maximum(largest, 0.0),
        non_finite=counts["non_finite"],
        noise_stddev=tf.constant(plan.noise_stddev, tf.float32),
    )


def _at_least_float32(leaf: tf.Tensor) -> tf.Tensor:
    """Widens half precision.

    There squares overflow from a norm of a few hundred on, a scaled update may end up
    half a thousandth above the clip norm, and a sum moves by more than what a client
    adds to it: the sensitivity would not be the plan's.
    """
    tensor = tf.convert_to_tensor(leaf)
    return tf.cast(tensor, tf.float32) if tensor.dtype.size < 4 else tensor


def _squares(leaf: tf.Tensor, is_one: bool) -> tf.Tensor:
    """Returns the sum of squares of each user's update."""
    if is_one:
        # In one pass and without a squared copy.
        return 2.0 * tf.cast(tf.nn.l2_loss(leaf), tf.float32)[None]
    return tf.cast(tf.reduce_sum(tf.square(_rows(leaf)), 1), tf.float32)


def _scaled(leaf: tf.Tensor, scales: tf.Tensor, finite: tf.Tensor) -> tf.Tensor:
    """Returns the update of the only user, scaled."""
    del finite  # Zero times NaN is zero here.
    alone = tf.reshape(leaf, leaf.shape[1:])
    return tf.math.multiply_no_nan(alone, tf.cast(scales[0], leaf.dtype))


def _added(leaf: tf.Tensor, scales: tf.Tensor, finite: tf.Tensor) -> tf.Tensor:
    """Returns the sum of the users' updates, scaled."""
    rows = tf.cond(
        tf.reduce_all(finite),
        lambda: _rows(leaf),
        # Zero times NaN would be NaN in a product of matrices.
        lambda: tf.where(finite[:, None], _rows(leaf), tf.zeros_like(_rows(leaf))),
    )
    product = tf.matmul(tf.cast(scales, leaf.dtype)[None], rows)
    return tf.reshape(product, leaf.shape[1:])


def _rows(leaf: tf.Tensor) -> tf.Tensor:
    """Returns the users' updates as the rows of a matrix."""
    return tf.reshape(leaf, [tf.shape(leaf)[0], math.prod(leaf.shape[1:])])


def _all_finite(norms: tf.Tensor, finite: tf.Tensor, is_one: bool) -> tf.Tensor:
    """Returns the norms, or fails and says whose is not finite."""
    said = "the client's update is not finite; its norm is"
    all_finite = tf.reduce_all(finite)
    # No user is looked up where there is none to blame, nor where there are none.
    norm, place = tf.cond(
        all_finite,
        lambda: (tf.constant(0.0), tf.constant(0, tf.int64)),
        lambda: _first(norms, tf.logical_not(finite)),
    )
    blamed = [] if is_one else [MEMBER, place]
    tf.debugging.Assert(all_finite, [*blamed, said, norm])
    return norms


def _first(values: tf.Tensor, chosen: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first value that is chosen, and its place."""
    place = tf.where(chosen)[0, 0]
    return values[place], place


def _zero_where_not_finite(metrics: Metrics) -> Metrics:
    """Returns the metrics, with zeros for users who have one that is not finite."""
    floating = [m for m in tf.nest.flatten(metrics) if m.dtype.is_floating]
    if not floating:
        return metrics
    users = tf.shape(floating[0])[0]
    finite = tf.reduce_all(
        [
            tf.reduce_all(tf.reshape(tf.math.is_finite(m), [users, -1]), 1)
            for m in floating
        ],
        0,
    )

    def kept(m):
        shape = tf.concat([[users], tf.ones([tf.rank(m) - 1], tf.int32)], 0)
        return tf.where(tf.reshape(finite, shape), m, tf.zeros_like(m))

    return tf.nest.map_structure(kept, metrics)
