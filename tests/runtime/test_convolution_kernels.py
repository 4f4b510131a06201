"""Clients' graphs are cut so that TensorFlow finds oneDNN's fast kernels in them."""

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime import runtime_examples as examples
from tff_agg import averaging, noise, privacy
from tff_agg.federated import process
from tff_agg.runtime.compile import graphs, rounds

SHAPE = (8, 8, 1)


def keras_model():
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input(SHAPE),
            layers.Conv2D(2, 3, kernel_initializer=examples.seeded(1)),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(3, kernel_initializer=examples.seeded(2)),
        ]
    )


SPEC = (tf.TensorSpec([None, *SHAPE]), tf.TensorSpec([None], tf.int64))
LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def functional():
    return tff.learning.models.functional_model_from_keras(
        keras_model(), LOSS, input_spec=SPEC
    )


def with_variables():
    return tff.learning.models.from_keras_model(keras_model(), LOSS, input_spec=SPEC)


def dp_ftrl(model):
    plan = privacy.Plan(
        clip_norm=1.0,
        cohort_size=2,
        rounds=2,
        mechanism=noise.tree(),
        noise_multiplier=1.0,
    )
    return process.build_dp_ftrl_process(
        model, plan=plan, averager=averaging.last(), client_optimizer=0.1
    )


def fed_avg(loop):
    return tff.learning.algorithms.build_unweighted_fed_avg(
        with_variables,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
        loop_implementation=loop,
    )


PROCESSES = {
    "functional model": lambda: dp_ftrl(functional()),
    "federated averaging": lambda: fed_avg(
        tff.learning.LoopImplementation.DATASET_REDUCE
    ),
}


def work_graph(kind):
    form = rounds.form_of(PROCESSES[kind]().next)
    return graphs.program_of(form.work).graph_def


def functions_in(node):
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name


@pytest.mark.parametrize("kind", PROCESSES)
def test_a_clients_step_is_not_part_of_its_loop(kind):
    graph_def = work_graph(kind)
    functions = {f.signature.name: f for f in graph_def.library.function}

    def inlined(name):
        """The operations that end up in the graph of whoever calls the function."""
        function = functions[name]
        if function.attr["_noinline"].b:
            return
        for node in function.node_def:
            yield node.op
            for called in functions_in(node):
                yield from inlined(called)

    loops = [
        node
        for function in functions.values()
        for node in function.node_def
        if node.op in ("While", "StatelessWhile")
    ]
    assert loops
    for loop in loops:
        assert "MaxPoolGrad" not in set(inlined(loop.attr["body"].func.name))
    everything = {n.op for f in functions.values() for n in f.node_def}
    assert "MaxPoolGrad" in everything
