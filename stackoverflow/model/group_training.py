"""Local training of the next-word model for a group of users side by side."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from stackoverflow.model import local_training, metrics, next_word, side_by_side
from stackoverflow.model.side_by_side import Users
from tff_agg.federated import trainers


def packed_group_trainer(
    config: next_word.ModelConfig,
    learning_rate: float,
    *,
    batch_size: int = 16,
    epochs: int = 1,
) -> trainers.Trainer:
    """Makes the local training of `local_training.packed_trainer` for groups of users.

    Each user's update and metrics are those of `packed_trainer`, to float precision.

    Args:
      config: The sizes of the model.
      learning_rate: The clients' learning rate.
      batch_size: Rows in a step of a user.
      epochs: How many times a user goes through its rows.

    Returns:
      A `Trainer` of groups. A group's dataset has elements (rows, counts): int32
      [n, row_length], one user's rows after the other's, and int32 [users], how many
      rows each user has. Several elements are so many more users.

    Example:
      trainer = packed_group_trainer(next_word.ModelConfig(), learning_rate=0.5)
      process = build_dp_ftrl_process(trainer, plan=plan)
      group = group_of_rows([rows_of_ada, rows_of_bob])
    """
    local_training.check_training(learning_rate, batch_size, epochs)
    spec = (
        tf.TensorSpec([None, config.row_length], tf.int32),
        tf.TensorSpec([None], tf.int32),
    )

    def initial_weights() -> tff.learning.models.ModelWeights:
        trainable = tuple(next_word.initial_weights(config))
        return tff.learning.models.ModelWeights(trainable, ())

    @tf.function(autograph=False)
    def update(weights, dataset):
        users = Users(*local_training.gather_elements(dataset, spec))
        moved, sums = train_users(
            config,
            [tf.convert_to_tensor(w) for w in weights.trainable],
            users,
            learning_rate=learning_rate,
            batch_size=batch_size,
            epochs=epochs,
        )
        deltas = tf.nest.pack_sequence_as(weights.trainable, moved)
        return deltas, tf.cast(users.counts, tf.float32), sums

    return trainers.Trainer(
        spec, initial_weights, update, local_training.finalize_metrics
    )


def group_of_rows(rows: Sequence[np.ndarray]) -> tf.data.Dataset:
    """Returns the dataset of a group, given each user's rows as an array.

    Example:
      group_of_rows([rows_of_ada, rows_of_bob]).element_spec
    """
    counts = np.array([len(r) for r in rows], np.int32)
    return tf.data.Dataset.from_tensors(
        (np.concatenate(rows).astype(np.int32, copy=False), counts)
    )


def train_users(
    config: next_word.ModelConfig,
    weights: list[tf.Tensor],
    users: Users,
    *,
    learning_rate: float,
    batch_size: int = 16,
    epochs: int = 1,
) -> tuple[list[tf.Tensor], OrderedDict[str, tf.Tensor]]:
    """Trains every user on its rows, starting at the same weights.

    Args:
      config: The sizes of the model.
      weights: In the order of `next_word.WEIGHT_NAMES`.
      users: The users' rows.
      learning_rate: The step's size.
      batch_size: Rows in a step of a user.
      epochs: How many times a user goes through its rows.

    Returns:
      Old minus new weights [users, …] for each weight, and each user's sums of the
      metrics [users].
    """
    count = tf.shape(users.counts)[0]
    owners = tf.repeat(tf.range(count), users.counts)
    starts = tf.cumsum(users.counts, exclusive=True)
    place = tf.range(tf.shape(users.rows)[0]) - tf.gather(starts, owners)
    batches = (users.counts + batch_size - 1) // batch_size
    steps = epochs * batches
    names = metrics.SUM_NAMES

    def batch(step):
        """The rows that the users take at a step; none of users who are done."""
        number = tf.where(step < steps, step % tf.maximum(batches, 1), -1)
        taken = tf.equal(place // batch_size, tf.gather(number, owners))
        rows = tf.boolean_mask(users.rows, taken)
        counts = tf.math.bincount(
            tf.boolean_mask(owners, taken), minlength=count, maxlength=count
        )
        return Users(rows, counts)

    def measured(step):
        sums = metrics.sums(config, step.targets, step.predicted, step.losses)
        return [sums[name] for name in names]

    first = side_by_side.first_step(weights, batch(tf.constant(0)), learning_rate)

    def body(done, sums, *moved):
        current = [w[None] - m for w, m in zip(weights, moved, strict=True)]
        step = side_by_side.later_step(current, batch(done), learning_rate)
        further = [m + g for m, g in zip(moved, step.gradients, strict=True)]
        sums = [old + new for old, new in zip(sums, measured(step), strict=True)]
        return done + 1, sums, *further

    shapes = [tf.TensorShape([None, *w.shape]) for w in weights]
    _, sums, *moved = tf.while_loop(
        lambda done, *_: done < tf.reduce_max(steps),
        body,
        (tf.constant(1), measured(first), *first.gradients),
        shape_invariants=(
            tf.TensorShape([]),
            [tf.TensorShape([None])] * len(names),
            *shapes,
        ),
        parallel_iterations=1,
    )
    return moved, OrderedDict(zip(names, sums, strict=True))
