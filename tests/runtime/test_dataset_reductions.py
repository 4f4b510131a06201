"""Loops over datasets become part of the function that they stand in."""

import numpy as np
import pytest
import tensorflow as tf

from tests.runtime import runtime_examples as examples
from tff_agg.runtime.compile import dataset_reductions, graphs, rounds


def operations(graph_def) -> set[str]:
    nodes = list(graph_def.node)
    for function in graph_def.library.function:
        nodes.extend(function.node_def)
    return {node.op for node in nodes}


def traced(body, *specs):
    """The graph of a function, at the top level and as a function in it."""
    function = tf.function(body).get_concrete_function(*specs)
    with tf.Graph().as_default() as graph:
        inputs = [tf.compat.v1.placeholder(s.dtype, s.shape) for s in specs]
        output = function(*inputs)
    return graph.as_graph_def(), [t.name for t in inputs], output.name


def run(graph_def, feeds, fetch, arguments):
    def body(*tensors):
        return tf.graph_util.import_graph_def(
            graph_def,
            input_map=dict(zip(feeds, tensors, strict=True)),
            return_elements=[fetch],
        )

    specs = [tf.TensorSpec(a.shape, a.dtype) for a in arguments]
    return graphs.function(body, specs)(*arguments)[0].numpy()


@pytest.mark.parametrize("elements", [0, 1, 5])
def test_a_loop_gives_what_the_reduction_gave(elements):
    # Order matters, a value from outside is captured, and the state changes its shape.
    def body(variant, factor):
        dataset = tf.data.experimental.from_variant(
            variant, tf.TensorSpec([None], tf.float32)
        )
        state = tf.ones([1])
        for element in dataset:
            tf.autograph.experimental.set_loop_options(
                shape_invariants=[(state, tf.TensorShape([None]))]
            )
            state = tf.concat([factor * state, element], axis=0)
        return state

    specs = [tf.TensorSpec([], tf.variant), tf.TensorSpec([], tf.float32)]
    graph_def, feeds, fetch = traced(body, *specs)
    changed = dataset_reductions.compile_reductions(graph_def)
    assert "ReduceDataset" in operations(graph_def)
    assert "ReduceDataset" not in operations(changed)

    dataset = tf.data.Dataset.range(elements).map(
        lambda i: tf.cast(tf.range(i % 3), tf.float32)
    )
    arguments = [tf.data.experimental.to_variant(dataset), tf.constant(2.0)]
    before = run(graph_def, feeds, fetch, arguments)
    np.testing.assert_array_equal(run(changed, feeds, fetch, arguments), before)
    assert before[0] == 2.0**elements


def test_no_reduction_is_left_in_a_clients_work():
    form = rounds.form_of(examples.weighted_fed_avg().next)
    program = graphs.program_of(form.work)
    found = operations(program.graph_def)
    assert "ReduceDataset" not in found
    assert "IteratorGetNextAsOptional" in found
    assert {node.op for node in program.variables} == {"VarHandleOp"}
