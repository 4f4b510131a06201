"""What a client does that stands for a group of users, who train side by side.

TFF sees one client; the process sees its users. A `GroupTrainer` gives the update of
each user, stacked along a first axis. The aggregation clips each by itself and adds
them up, so that the clip norm, the number of clients, `on_non_finite` and the metrics
are about users, as they are where every user is a client of TFF's.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.aliases import Specs, Structure
from tff_agg.learning.client_work import check_on_non_finite, client_work_of
from tff_agg.learning.trainers import Metrics, ModelWeights


class GroupTrainer(NamedTuple):
    """A model's local training for all users of a group, as functions of tensors.

    Attributes:
      element_spec: Nest of `tf.TensorSpec`: one element of a group's `tf.data.Dataset`.
      initial_weights: As in `LocalTrainer`.
      update: `(weights, dataset) -> (deltas, num_examples, metrics)`, as in
        `LocalTrainer`, with everything stacked along a first axis of users: a user
        without data has an entry as well, of zeros.
      finalize_metrics: As in `LocalTrainer`.
      needs_graph: As in `LocalTrainer`.

    Example:
      trainer = trainer_side_by_side(model, client_optimizer=0.5)
      process = build_dp_ftrl_process(trainer, plan=plan)
    """

    element_spec: Specs
    initial_weights: Callable[[], ModelWeights]
    update: Callable[
        [ModelWeights, tf.data.Dataset], tuple[Structure, tf.Tensor, Metrics]
    ]
    finalize_metrics: Callable[[Metrics], Metrics]
    needs_graph: bool = False


def build_group_work(
    trainer: GroupTrainer, *, on_non_finite: str = "error"
) -> tff.learning.templates.ClientWorkProcess:
    """Wraps a `GroupTrainer` into TFF's client work template.

    Args:
      trainer: What a group does.
      on_non_finite: With `'drop'` the metrics of a user are left out of the sums when
        any of them is not finite; with `'error'` they are added as they are.

    Returns:
      As `client_work.build_client_work`, but for the update in its result, which is
      the updates of the group's users, stacked.

    Example:
      work = build_group_work(trainer, on_non_finite='drop')
    """
    check_on_non_finite(on_non_finite)

    def train(weights, dataset):
        deltas, num_examples, metrics = trainer.update(weights, dataset)
        deltas = tf.nest.map_structure(
            lambda delta, weight: tf.ensure_shape(delta, [None, *weight.shape]),
            deltas,
            weights.trainable,
        )
        metrics = OrderedDict(metrics)
        if on_non_finite == "drop":
            metrics = _zero_where_not_finite(metrics)
        metrics = tf.nest.map_structure(lambda m: tf.reduce_sum(m, 0), metrics)
        weight = tf.reduce_sum(tf.cast(num_examples, tf.float32))
        return tff.learning.templates.ClientResult(deltas, weight), metrics

    return client_work_of(trainer, train)


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
