"""Changes to the functions that a graph brings along."""

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf

_serial = itertools.count()


def keep_apart(graph_def: "tf.compat.v1.GraphDef", names: set[str]) -> set[str]:
    """Keeps the functions called `names` from being inlined; returns those changed.

    A while loop is a cycle in the graph it is inlined into, and there TensorFlow does
    not always choose oneDNN's kernels: the gradient of a max-pooling took 0.14 ms in
    some processes and 3.0 in others. The likely reason is the order in which it visits
    a cycle. In a body that is a graph of its own, the fast kernel was always chosen.

    Args:
      graph_def: Is changed; the functions get new names by `rename`.
      names: Names of functions.
    """
    changed = set()
    for function in graph_def.library.function:
        if function.signature.name in names:
            function.attr["_noinline"].b = True
            changed.add(function.signature.name)
    return changed


def rename(graph_def: "tf.compat.v1.GraphDef", changed: set[str]) -> None:
    """Gives new names to changed functions and to those that call them.

    The process knows the old ones under their names already.
    """
    callers = {
        function.signature.name: {
            reference.name for node in function.node_def for reference in _calls(node)
        }
        for function in graph_def.library.function
    }
    while (
        more := {name for name, called in callers.items() if called & changed} - changed
    ):
        changed |= more
    names = {name: f"{name}_tff_agg_{next(_serial)}" for name in changed}
    for function in graph_def.library.function:
        signature = function.signature
        signature.name = names.get(signature.name, signature.name)
    for reference in itertools.chain.from_iterable(map(_calls, nodes_of(graph_def))):
        reference.name = names.get(reference.name, reference.name)


def nodes_of(graph_def: "tf.compat.v1.GraphDef") -> Iterable["tf.compat.v1.NodeDef"]:
    """Yields the nodes of a graph and of its functions."""
    functions = (function.node_def for function in graph_def.library.function)
    return itertools.chain(graph_def.node, *functions)


def _calls(node: "tf.compat.v1.NodeDef") -> Iterable["tf.compat.v1.NameAttrList"]:
    """Yields the references to functions in a node's attributes."""
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func
        yield from value.list.func
