"""Clients' data on their way to another process."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.runtime.compile import graphs, values

# DatasetToGraphV2's policy for datasets that depend on state outside of them.
_FAIL = 2


class DatasetGraph(NamedTuple):
    """A dataset as the serialised graph that makes it."""

    graph_def: bytes


class DatasetElements(NamedTuple):
    """A dataset as its elements, where its graph means something here only."""

    elements: list[values.Value]


#: A tensor, or a dataset, that can be pickled.
Packed = np.ndarray | DatasetGraph | DatasetElements


def pack(leaves: Sequence[tf.Tensor], type_spec: tff.Type) -> list[Packed]:
    """Makes flat tensors, as `values.flatten` gives them, ready to be pickled.

    A dataset that calls Python, or draws random numbers of its own, is read here.
    """
    types = graphs.leaf_types(type_spec)
    return [_pack(leaf, t) for leaf, t in zip(leaves, types, strict=True)]


def unpack(packed: Sequence[Packed], type_spec: tff.Type) -> list[tf.Tensor]:
    """Makes the flat tensors again."""
    types = graphs.leaf_types(type_spec)
    return [_unpack(leaf, t) for leaf, t in zip(packed, types, strict=True)]


def size(packed: Sequence[object]) -> int:
    """Returns about how many bytes packed leaves are."""
    total = 0
    for leaf in packed:
        if isinstance(leaf, DatasetGraph):
            total += len(leaf.graph_def)
        else:
            parts = tf.nest.flatten(leaf)
            total += sum(getattr(part, "nbytes", 8) for part in parts)
    return total


def _pack(leaf: tf.Tensor, type_spec: tff.Type) -> Packed:
    if not isinstance(type_spec, tff.SequenceType):
        return leaf.numpy()
    try:
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=leaf,
            external_state_policy=_FAIL,
            strip_device_assignment=True,
        )
        return DatasetGraph(graph.numpy())
    except tf.errors.OpError:
        dataset = values.dataset(leaf, type_spec)
        return DatasetElements(list(dataset.as_numpy_iterator()))


def _unpack(packed: Packed, type_spec: tff.Type) -> tf.Tensor:
    if isinstance(packed, DatasetGraph):
        return tf.raw_ops.DatasetFromGraph(graph_def=packed.graph_def)
    if isinstance(packed, DatasetElements):
        return values.flatten(packed.elements, type_spec)[0]
    return tf.convert_to_tensor(packed)
