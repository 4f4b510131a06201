"""What an error may reveal about the data that caused it.

An operation of TensorFlow that fails likes to quote what it was given: a label out of
range, with all labels of the batch. A message like that ends in logs and bug reports,
which no privacy plan covers. So an error names the kind of failure and the operation,
both properties of the program, and leaves out everything else.

Shapes are data where the program leaves them open: the length of a batch is how much a
client has. Data types, ranks and the sizes that the program fixes are shown.
"""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf

_NODE = re.compile(r"\{\{node ([^}\s]+)\}\}")
#: What stands in the place of an error's own text.
HINT = (
    "what it says about values may be a client's data and is left out; the runtime's "
    "option show_data_in_errors=True shows it"
)


class PlainTypeError(TypeError):
    """A value that is not of the type wanted; the message quotes nothing of it."""


class PlainRuntimeError(RuntimeError):
    """Something that is not as it should be; the message quotes no client's data."""


def describe(
    cause: BaseException | str,
    graphs: Sequence["tf.compat.v1.GraphDef"] = (),
    show_data: bool = False,
) -> str:
    """Returns in a line or two what went wrong.

    Args:
      cause: What was raised, or what to say.
      graphs: The `GraphDef`s that ran; the failed operation is looked up in them.
      show_data: Whether to repeat the error's own text, values of data included. It is
        repeated without TensorFlow's graph dumps.

    Returns:
      The kind of error with the operation and, for an assertion, its constant texts.
    """
    if isinstance(cause, str):
        return cause
    kind = type(cause).__name__
    text = str(getattr(cause, "message", "") or cause)
    if show_data:
        text = text.partition("\n\t [[")[0].partition(" [Op:")[0].strip()
        return f"{kind}: {text[:2000]}"
    if isinstance(cause, PlainTypeError | PlainRuntimeError):
        return text
    failed = _failed_node(text, graphs)
    if failed is None:
        return f"{kind} ({HINT})"
    node, constants = failed
    quoted = f": {' '.join(constants)}" if constants else ""
    return f"{kind} in the operation {node.op} '{node.name}'{quoted} ({HINT})"


def _failed_node(
    text: str, graphs: Sequence["tf.compat.v1.GraphDef"]
) -> "tuple[tf.compat.v1.NodeDef, list[str]] | None":
    """Finds the node that TensorFlow names, and the constant texts that it takes.

    A name counts only where a graph has it: data may look like one.
    """
    for name in reversed(_NODE.findall(text)):
        # A node of an inlined function stands under the name of the call.
        parts = name.split("/")
        for nodes in _bodies(graphs):
            for first in range(len(parts)):
                node = nodes.get("/".join(parts[first:]))
                if node is not None:
                    return node, list(_constant_texts(node, nodes))
    return None


def _bodies(
    graphs: Sequence["tf.compat.v1.GraphDef"],
) -> Iterator[dict[str, "tf.compat.v1.NodeDef"]]:
    """Yields the nodes of each graph and of each function in it, by name."""
    for graph in graphs:
        yield {node.name: node for node in graph.node}
        for function in graph.library.function:
            yield {node.name: node for node in function.node_def}


def _constant_texts(
    node: "tf.compat.v1.NodeDef", nodes: dict[str, "tf.compat.v1.NodeDef"]
) -> Iterator[str]:
    """Yields the strings that an assertion takes as constants, in order."""
    if node.op != "Assert":
        return
    import tensorflow as tf

    for name in node.input:
        source = nodes.get(name.partition(":")[0])
        if source is None or source.op != "Const":
            continue
        value = tf.make_ndarray(source.attr["value"].tensor)
        if value.dtype == object and value.ndim == 0:
            yield value.item().decode(errors="replace")
