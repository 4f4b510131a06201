"""Tracing into TFF's graphs with the semantics of TensorFlow 2."""

import functools
import inspect
from collections.abc import Callable

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.aliases import Specs


def graph_computation(
    *types: tff.Type,
) -> Callable[[Callable[..., object]], tff.Computation]:
    """Like `tff.tensorflow.computation(*types)`, with the semantics of `tf.function`.

    TFF traces into a graph of TensorFlow 1, where `a == b` asks whether two tensors are
    the same object. A function that counts on TensorFlow 2 would be traced into
    something else without any error. Here it is traced by `tf.function` first, outside
    of TFF's graph, and the result is called from inside. Stateful operations run in
    the order of the program, assertions among them.

    Args:
      *types: The types of the function's arguments: tensors, structures, sequences.

    Returns:
      A decorator that makes a TFF computation of a function. The function may create no
      variables.

    Example:
      >>> @graph_computation(tff.TensorType(np.int64))
      ... def is_even(x):
      ...     return x % 2 == 0
    """

    def decorate(function: Callable[..., object]) -> tff.Computation:
        call = _traced(function, [_spec_of(t) for t in types])
        signature = inspect.signature(function)

        # TFF reads the names of the arguments off the function, and calls it by them.
        @functools.wraps(function)
        def named(*values, **by_name):
            return call(*signature.bind(*values, **by_name).args)

        if not types:
            return tff.tensorflow.computation(named)
        return tff.tensorflow.computation(*types)(named)

    return decorate


def _traced(
    function: Callable[..., object], specs: list[Specs]
) -> Callable[..., object]:
    """Traces a function of structures with `tf.function`, once."""
    structure: list[object] = []

    def flat(*leaves):
        result = function(*tf.nest.pack_sequence_as(specs, leaves))
        structure.append(tf.nest.map_structure(lambda _: None, result))
        return [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(result)]

    concrete = tf.function(flat, autograph=False).get_concrete_function(
        *tf.nest.flatten(specs)
    )

    def call(*arguments):
        flat_result = concrete(*tf.nest.flatten(arguments))
        return tf.nest.pack_sequence_as(structure[0], flat_result)

    return call


def _spec_of(type_spec: tff.Type) -> Specs:
    """The `tf.TensorSpec`s and `tf.data.DatasetSpec`s of a TFF type."""
    if isinstance(type_spec, tff.SequenceType):
        return tf.data.DatasetSpec(_spec_of(type_spec.element))
    return tff.types.structure_from_tensor_type_tree(
        lambda t: tf.TensorSpec(t.shape, t.dtype), type_spec
    )
