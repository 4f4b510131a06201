"""Canaries as clients of a TFF process, among ordinary ones.

A canary's data is its update: the coordinates of its direction and what is there. The
trainer made here passes that on as the client's result; every other client trains as it
always did. From there on nobody knows who is a canary: both go through the same
clipping, summing, noise and server step.
"""

from collections import OrderedDict

import numpy as np
import tensorflow as tf

from tff_agg.aliases import Structure
from tff_agg.audit.canaries import Directions
from tff_agg.federated.trainers import ModelWeights, Trainer

_POSITIONS, _VALUES, _ELEMENT = "positions", "values", "element"


def parameters(trainable: Structure) -> np.ndarray:
    """Returns all trainable parameters in one vector, in the order of the directions.

    Example:
      >>> parameters([np.zeros([2, 2]), np.ones([1])]).tolist()
      [0.0, 0.0, 0.0, 0.0, 1.0]
    """
    flat = [np.ravel(np.asarray(leaf)) for leaf in tf.nest.flatten(trainable)]
    return np.concatenate(flat)


def tensor_sizes(trainer: Trainer) -> list[int]:
    """Returns the number of parameters of each trainable tensor of a trainer's model.

    Example:
      tensor_sizes(trainer)  # [784, 10]
    """
    with tf.Graph().as_default():
        shapes = [
            tf.convert_to_tensor(leaf).shape
            for leaf in tf.nest.flatten(trainer.initial_weights().trainable)
        ]
    return [shape.num_elements() for shape in shapes]


def with_canaries(trainer: Trainer) -> Trainer:
    """Returns a trainer for ordinary clients and canaries alike.

    Its datasets come from `ordinary` and `canary`. A canary counts no examples and adds
    nothing to the metrics: it trains on no data, and the trainer must be able to.

    Args:
      trainer: What ordinary clients do, each of them one user.

    Example:
      process = build_dp_ftrl_process(with_canaries(trainer), plan=plan)
      process.next(state, [ordinary(dataset), canary(trainer, directions, 0, 1.0)])
    """
    spec = OrderedDict(
        [
            (_POSITIONS, tf.TensorSpec([None], tf.int64)),
            (_VALUES, tf.TensorSpec([None], tf.float32)),
            (_ELEMENT, trainer.element_spec),
        ]
    )

    def update(weights: ModelWeights, dataset: tf.data.Dataset):
        own = dataset.filter(lambda e: tf.equal(tf.size(e[_POSITIONS]), 0))
        delta, examples, metrics = trainer.update(
            weights, own.map(lambda e: e[_ELEMENT])
        )
        leaves = tf.nest.flatten(delta)
        sizes = [leaf.shape.num_elements() for leaf in leaves]
        sent = dataset.reduce(
            tf.zeros([sum(sizes)]),
            lambda total, e: tf.tensor_scatter_nd_add(
                total, e[_POSITIONS][:, tf.newaxis], e[_VALUES]
            ),
        )
        parts = [
            leaf + tf.cast(tf.reshape(part, leaf.shape), leaf.dtype)
            for leaf, part in zip(leaves, tf.split(sent, sizes), strict=True)
        ]
        return tf.nest.pack_sequence_as(delta, parts), examples, metrics

    return trainer._replace(element_spec=spec, update=update)


def ordinary(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset of a client that is no canary, for `with_canaries`.

    Example:
      ordinary(tf.data.Dataset.from_tensors(rows))
    """

    def wrapped(*element):
        return OrderedDict(
            [
                (_POSITIONS, tf.zeros([0], tf.int64)),
                (_VALUES, tf.zeros([0], tf.float32)),
                (_ELEMENT, element[0] if len(element) == 1 else element),
            ]
        )

    return dataset.map(wrapped)


def canary(
    trainer: Trainer, directions: Directions, which: int, norm: float
) -> tf.data.Dataset:
    """Returns the dataset of a canary.

    Args:
      trainer: What ordinary clients do; it says what their elements look like.
      directions: The canaries' directions.
      which: The canary.
      norm: How long its update is. Longer than the clip norm, so that it is clipped.

    Example:
      dataset = canary(trainer, canaries.directions, 3, norm=100 * plan.clip_norm)
    """
    nothing = tf.nest.map_structure(
        lambda s: tf.zeros([size or 0 for size in s.shape], s.dtype),
        trainer.element_spec,
    )
    return tf.data.Dataset.from_tensors(
        OrderedDict(
            [
                (_POSITIONS, tf.constant(directions.positions[which], tf.int64)),
                (
                    _VALUES,
                    tf.constant(norm * directions.values[which], tf.float32),
                ),
                (_ELEMENT, nothing),
            ]
        )
    )
