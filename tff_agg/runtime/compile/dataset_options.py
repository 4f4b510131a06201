"""Options that let a client's small dataset start and end at once.

By default TensorFlow rewrites a dataset's graph whenever it is iterated over, puts a
prefetching thread behind it and another that tunes it. All of that happens anew for
each client, and the end of a client waits until its threads have ended: it does so in
one of the threads that the lanes' operations need. Clients already run side by side.
"""

from collections.abc import Sequence

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.runtime.compile import graphs

# Datasets and their iterators live in main memory, also where the lane is a GPU.
_HOST = "/device:CPU:0"


def without_threads(
    tensors: Sequence[tf.Tensor], types: Sequence[tff.Type]
) -> list[tf.Tensor]:
    """Gives the datasets among `tensors` these options; to be called in a graph.

    What a dataset does by its own definition, such as a parallel map, it still does,
    and its elements are the same.

    Args:
      tensors: Flat tensors; a dataset is a variant.
      types: The TFF type of each.
    """
    return [
        _with_options(tensor, leaf) if isinstance(leaf, tff.SequenceType) else tensor
        for tensor, leaf in zip(tensors, types, strict=True)
    ]


def _with_options(variant: tf.Tensor, sequence: tff.SequenceType) -> tf.Tensor:
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    # The options do not look at elements: how they are nested makes no difference.
    element = tuple(
        tf.TensorSpec(leaf.shape, leaf.dtype)
        for leaf in graphs.leaf_types(sequence.element)
    )
    with tf.device(_HOST):
        dataset = tf.data.experimental.from_variant(variant, element)
        return tf.data.experimental.to_variant(dataset.with_options(options))
