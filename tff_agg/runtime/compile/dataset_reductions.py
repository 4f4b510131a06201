"""Loops over a client's dataset that are compiled once, not once for each client.

A Python `for` over a dataset becomes TensorFlow's `ReduceDataset` operation, which
optimises and instantiates the loop's body anew each time it runs. For a language model
that is as much work as a client's training itself. Here the operation is replaced by a
call of a function with an iterator and a while loop around the very same body: it
belongs to the function it stands in, and is optimised once together with it.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

import tensorflow as tf

from tff_agg.runtime.compile import library_functions

# TensorFlow does not publish the class of the functions in a graph's library.
_FunctionDef: TypeAlias = Any

_REDUCE = "ReduceDataset"
_CALL = "StatefulPartitionedCall"
# Datasets and their iterators live in main memory, also where the lane is a GPU.
_HOST = "/device:CPU:0"


def compile_reductions(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Returns the graph with loops in the place of all dataset reductions."""
    result = tf.compat.v1.GraphDef()
    result.CopyFrom(graph_def)
    functions = {f.signature.name: f for f in graph_def.library.function}
    for node in result.node:
        if node.op == _REDUCE:
            result.library.function.extend(_replace(node, functions))
    # A loop's body is a graph of its own: see `library_functions.keep_apart`.
    reducers = {
        node.attr["f"].func.name
        for node in library_functions.nodes_of(graph_def)
        if node.op == _REDUCE
    }
    changed = library_functions.keep_apart(result, reducers)
    for function in list(result.library.function):
        replaced = [node for node in function.node_def if node.op == _REDUCE]
        for node in replaced:
            result.library.function.extend(_replace(node, functions))
        if replaced:
            _rename_outputs(function, {node.name for node in replaced})
            changed.add(function.signature.name)
    library_functions.rename(result, changed)
    return result


def _replace(
    node: tf.compat.v1.NodeDef, functions: dict[str, _FunctionDef]
) -> Iterable[_FunctionDef]:
    """Makes the reduction `node` a call and returns the functions that it needs."""
    reducer = functions[node.attr["f"].func.name]
    state = [tf.as_dtype(t) for t in node.attr["Tstate"].list.type]
    captured = [tf.as_dtype(t) for t in node.attr["Targuments"].list.type]
    shapes = [tf.TensorShape(s) for s in node.attr["output_shapes"].list.shape]
    arguments = [tf.as_dtype(a.type) for a in reducer.signature.input_arg]
    elements = range(len(state), len(arguments) - len(captured))
    loop = _loop(
        reducer.signature.name,
        state=[tf.TensorSpec(s, t) for s, t in zip(shapes, state, strict=True)],
        element=[tf.TensorSpec(_shape(reducer, i), arguments[i]) for i in elements],
        captured=[tf.TensorSpec(None, t) for t in captured],
    )
    node.op = _CALL
    node.ClearField("attr")
    inputs = [tf.variant, *state, *captured]
    node.attr["Tin"].list.type.extend(t.as_datatype_enum for t in inputs)
    node.attr["Tout"].list.type.extend(t.as_datatype_enum for t in state)
    node.attr["f"].func.name = loop.function_def.signature.name
    return [loop.function_def, *loop.graph.as_graph_def().library.function]


def _loop(
    reducer: str,
    *,
    state: list[tf.TensorSpec],
    element: list[tf.TensorSpec],
    captured: list[tf.TensorSpec],
) -> tf.types.experimental.ConcreteFunction:
    """Traces the loop that calls the function named `reducer` on each element."""
    element_types = [spec.dtype for spec in element]
    element_shapes = [spec.shape for spec in element]
    kinds = {"output_types": element_types, "output_shapes": element_shapes}

    def run(dataset: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
        initial, others = tensors[: len(state)], tensors[len(state) :]
        with tf.device(_HOST):
            iterator = tf.raw_ops.AnonymousIteratorV3(**kinds)
            begin = tf.raw_ops.MakeIterator(dataset=dataset, iterator=iterator)

        def fetch(after: tf.Operation) -> tf.Tensor:
            # Also orders the iterations: the body may have effects on variables.
            with tf.control_dependencies([after]), tf.device(_HOST):
                return tf.raw_ops.IteratorGetNextAsOptional(iterator=iterator, **kinds)

        def more(optional: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
            with tf.device(_HOST):
                return tf.raw_ops.OptionalHasValue(optional=optional)

        def body(optional: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
            with tf.device(_HOST):
                parts = tf.raw_ops.OptionalGetValue(optional=optional, **kinds)
            new = tf.raw_ops.StatefulPartitionedCall(
                args=[*values, *parts, *others],
                Tout=[spec.dtype for spec in state],
                f=reducer,
            )
            done = new[0].op if state else tf.no_op()
            for value, spec in zip(new, state, strict=True):
                value.set_shape(spec.shape)
            return [fetch(done), *new]

        _, *final = tf.while_loop(
            more,
            body,
            [fetch(begin), *initial],
            shape_invariants=[tf.TensorShape([]), *(spec.shape for spec in state)],
            parallel_iterations=1,
        )
        return final

    # A tf.function, because whoever waits for the call must wait for its effects.
    return tf.function(run, autograph=False).get_concrete_function(
        tf.TensorSpec([], tf.variant), *state, *captured
    )


def _shape(function: _FunctionDef, argument: int) -> tf.TensorShape:
    """Reads the static shape of a function's argument where it is written down."""
    known = function.arg_attr[argument].attr["_output_shapes"].list.shape
    return tf.TensorShape(known[0]) if known else tf.TensorShape(None)


def _rename_outputs(function: _FunctionDef, nodes: set[str]) -> None:
    """Inside functions an output is named after its operation's output argument."""

    def renamed(name: str) -> str:
        node, _, rest = name.partition(":")
        if node in nodes and rest:
            return f"{node}:output:{rest.rpartition(':')[2]}"
        return name

    for node in function.node_def:
        fixed = [renamed(name) for name in node.input]
        del node.input[:]
        node.input.extend(fixed)
    for key, name in list(function.ret.items()):
        function.ret[key] = renamed(name)
