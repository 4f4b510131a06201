"""TensorFlow graphs out of TFF computations, as functions of this process.

TFF stores every piece of TensorFlow as a serialised graph together with the names of
the tensors that are its parameters and its results. Here such a graph becomes a
`Program`, which can be embedded, next to others, into one TensorFlow function: that is
how a client's work and the addition of its result to a partial sum become a single
call, in which no intermediate tensor leaves TensorFlow.

Variables of such a graph are taken out of it and become arguments. Two lanes can then
run the same function at the same time, each on variables of its own. Lookup tables get
no name: every call makes its own, as TFF's worker does, so that nothing of one client
is left for the next.
"""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.runtime.compile import dataset_reductions, private_api

# The operation that makes a named variable: two lanes must not share one.
_VARIABLE = "VarHandleOp"
# Operations that make a named table, and those that make one without a name. One with a
# name is what the call before has left, which need not be what this one would make.
_TABLES = {
    "HashTableV2": "AnonymousHashTable",
    "MutableHashTableV2": "AnonymousMutableHashTable",
    "MutableHashTableOfTensorsV2": "AnonymousMutableHashTableOfTensors",
    "MutableDenseHashTableV2": "AnonymousMutableDenseHashTable",
}
_OF_A_NAME = ("container", "shared_name", "use_node_name_sharing")

_serial = itertools.count()


class Program(NamedTuple):
    """One TensorFlow graph of a TFF computation, ready to be embedded.

    Attributes:
      graph_def: Only what the results need, without parameters and variables.
      feeds: Names of the parameter tensors, in the order of the type's leaves.
      fetches: Names of the result tensors, in the order of the type's leaves.
      variables: The operations whose handles must be given.
      parameter: TFF type of the parameter, None where there is none.
      result: TFF type of the result.
    """

    graph_def: tf.compat.v1.GraphDef
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]
    variables: tuple[tf.compat.v1.NodeDef, ...]
    parameter: tff.Type | None
    result: tff.Type


def program_of(computation: tff.Computation) -> Program:
    """Reads the graph of a TFF computation whose body is TensorFlow."""
    proto = type(computation).get_proto(computation)
    kind = proto.WhichOneof("computation")
    if kind != "tensorflow":
        raise TypeError(f"computation: expected a TensorFlow graph, found {kind}")
    body = proto.tensorflow
    graph_def = tf.compat.v1.GraphDef()
    body.graph_def.Unpack(graph_def)
    feeds = tuple(_binding_names(body.parameter))
    nodes = {node.name: node for node in graph_def.node}
    named = _binding_names(body.result)
    fetches = tuple(_origin(nodes, name, set(feeds)) for name in named)
    inputs = {_node_of(name) for name in feeds}
    if body.session_token_tensor_name:
        _make_constant(graph_def, _node_of(body.session_token_tensor_name))
    wanted = [_node_of(name) for name in fetches]
    if body.initialize_op:
        wanted.append(_node_of(body.initialize_op))
    graph_def = dataset_reductions.compile_reductions(graph_def)
    graph_def, variables = _slim(graph_def, inputs, wanted, body.initialize_op)
    signature = computation.type_signature
    return Program(
        graph_def, feeds, fetches, variables, signature.parameter, signature.result
    )


def _origin(
    nodes: Mapping[str, tf.compat.v1.NodeDef], name: str, feeds: Collection[str]
) -> str:
    """Returns the tensor that operations without any effect have passed on."""
    while name not in feeds:
        node = nodes[_node_of(name)]
        if node.op != "Identity" or len(node.input) > 1:
            break
        name = _tensor_name(node.input[0])
    return name


def used_feeds(program: Program) -> list[int]:
    """Numbers the parameters that the results of a program depend on."""
    used = _inputs_of(program) | set(program.fetches)
    return [i for i, name in enumerate(program.feeds) if name in used]


def _inputs_of(program: Program) -> set[str]:
    """Names all tensors that the nodes of a program take."""
    return {
        _tensor_name(name)
        for node in program.graph_def.node
        for name in node.input
        if not name.startswith("^")
    }


def embed(
    program: Program,
    arguments: Sequence[tf.Tensor | None],
    variables: Sequence[tf.Tensor] = (),
) -> list[tf.Tensor]:
    """Puts a program into the graph under construction and returns its results.

    Arguments that are not in `used_feeds` may be None.
    """
    given = {
        name: tensor
        for name, tensor in zip(program.feeds, arguments, strict=True)
        if tensor is not None
    }
    for node, handle in zip(program.variables, variables, strict=True):
        given[f"{node.name}:0"] = handle
    used = _inputs_of(program)
    computed = [name for name in dict.fromkeys(program.fetches) if name not in given]
    outputs = tf.graph_util.import_graph_def(
        program.graph_def,
        input_map={name: tensor for name, tensor in given.items() if name in used},
        return_elements=computed,
        name="",
    )
    results = {**given, **dict(zip(computed, outputs, strict=True))}
    return [results[name] for name in program.fetches]


def function(
    body: Callable[..., list[tf.Tensor]], specs: Sequence[tf.TensorSpec]
) -> Callable[..., list[tf.Tensor]]:
    """Compiles `body`, which takes and returns flat tensors, to a function.

    Graphs are stamped as they are: TFF has ordered the operations that have effects,
    so no control edge may be invented here, as `tf.function` would.
    """
    return tf.compat.v1.wrap_function(
        lambda *arguments: body(*arguments),
        [tf.TensorSpec(s.shape, s.dtype, f"a{i}") for i, s in enumerate(specs)],
    )


def specs_of(type_spec: tff.Type | None) -> list[tf.TensorSpec]:
    """Lists what the leaves of a TFF type are in a graph; a sequence is a variant."""
    specs = []
    for leaf in leaf_types(type_spec):
        if isinstance(leaf, tff.SequenceType):
            specs.append(tf.TensorSpec([], tf.variant))
        else:
            specs.append(tf.TensorSpec(leaf.shape, leaf.dtype))
    return specs


def variable_specs(program: Program) -> list[tf.TensorSpec]:
    """Lists the handles that `program` takes."""
    return [tf.TensorSpec([], tf.resource)] * len(program.variables)


def leaf_types(type_spec: tff.Type | None) -> list[tff.TensorType | tff.SequenceType]:
    """Lists the tensor and sequence types inside a type, in order."""
    if type_spec is None:
        return []
    if isinstance(type_spec, tff.FederatedType):
        return leaf_types(type_spec.member)
    if isinstance(type_spec, tff.StructType):
        return [
            leaf
            for _, t in tff.structure.to_elements(type_spec)
            for leaf in leaf_types(t)
        ]
    if isinstance(type_spec, tff.TensorType | tff.SequenceType):
        return [type_spec]
    raise TypeError(f"type_spec: {type_spec} is neither tensors nor sequences")


class Variables:
    """The variables of one program, made anew for one lane.

    They live as long as this object, and as data sets that read them.
    """

    def __init__(self, program: Program):
        self._keep = [_uninitialized(node) for node in program.variables]
        self.handles = [variable.handle for variable in self._keep]


def _uninitialized(node: tf.compat.v1.NodeDef) -> tf.Variable:
    return private_api.UninitializedVariable(
        dtype=tf.as_dtype(node.attr["dtype"].type),
        shape=tf.TensorShape(node.attr["shape"].shape),
        name=f"tff_agg_{next(_serial)}_{node.name}",
    )


def _slim(
    graph_def: tf.compat.v1.GraphDef,
    inputs: set[str],
    wanted: list[str],
    initialize: str,
) -> tuple[tf.compat.v1.GraphDef, tuple[tf.compat.v1.NodeDef, ...]]:
    """Keeps what `wanted` needs, without inputs; puts initialisation first."""
    nodes = {node.name: node for node in graph_def.node}
    needed = _ancestors(nodes, wanted, inputs)
    variables = tuple(
        node for name, node in nodes.items() if name in needed and node.op == _VARIABLE
    )
    outside = inputs | {node.name for node in variables}
    setup = _ancestors(nodes, [_node_of(initialize)], inputs) if initialize else set()
    handles = {
        name
        for name, node in nodes.items()
        if node.op == _VARIABLE or node.op in _TABLES
    }
    slim = tf.compat.v1.GraphDef()
    slim.library.CopyFrom(graph_def.library)
    slim.versions.CopyFrom(graph_def.versions)
    for node in graph_def.node:
        if node.name not in needed or node.name in outside:
            continue
        copy = slim.node.add()
        copy.CopyFrom(node)
        if node.op in _TABLES:
            copy.op = _TABLES[node.op]
            for name in _OF_A_NAME:
                copy.attr.pop(name, None)
        # Colocation may point at a node that is gone; the lane decides on the device.
        copy.attr.pop("_class", None)
        data = [name for name in node.input if not name.startswith("^")]
        control = [
            name
            for name in node.input
            if name.startswith("^") and _node_of(name) not in outside
        ]
        if (
            initialize
            and node.name not in setup
            and any(_node_of(name) in handles for name in data)
        ):
            control.append("^" + _node_of(initialize))
        del copy.input[:]
        copy.input.extend(data + control)
    return slim, variables


def _ancestors(
    nodes: dict[str, tf.compat.v1.NodeDef], wanted: list[str], stop: set[str]
) -> set[str]:
    """Names the nodes that `wanted` depends on, itself included, up to `stop`."""
    ancestors: set[str] = set()
    stack = list(wanted)
    while stack:
        name = stack.pop()
        if name in ancestors or name in stop:
            continue
        ancestors.add(name)
        stack.extend(_node_of(source) for source in nodes[name].input)
    return ancestors


def _make_constant(graph_def: tf.compat.v1.GraphDef, name: str) -> None:
    """Turns the placeholder of the session token into a constant."""
    for node in graph_def.node:
        if node.name == name:
            node.op = "Const"
            node.ClearField("attr")
            node.attr["dtype"].type = tf.string.as_datatype_enum
            token = tf.make_tensor_proto("tff_agg")
            node.attr["value"].tensor.CopyFrom(token)


def _binding_names(binding: Any) -> list[str]:
    match binding.WhichOneof("binding"):
        case "tensor":
            return [binding.tensor.tensor_name]
        case "sequence":
            return [binding.sequence.variant_tensor_name]
        case "struct":
            return [n for part in binding.struct.element for n in _binding_names(part)]
        case _:
            return []


def _node_of(tensor_name: str) -> str:
    return tensor_name.lstrip("^").partition(":")[0]


def _tensor_name(name: str) -> str:
    return name if ":" in name else name + ":0"
