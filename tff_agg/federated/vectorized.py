"""Training any functional model for many users at once.

A user's step is written once, for one user, and TensorFlow turns it into a step of all
users of a group: products become products with a users' axis. Where all members of a
step still have the weights they were sent, only what differs between them, the data
and the gradients, gets that axis.

The rule for when it pays (`pays`): models without convolutions and loops, of at most
`MOST_PARAMETERS` parameters. TensorFlow has no convolution with a kernel for each user
and cannot turn every loop; the users of such a group take their steps one after
another, inside one call. Of larger models the arithmetic, not the calls, takes the
time, and a copy for each user of a group does not fit the caches.
"""

from collections.abc import Callable, Iterator

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.aliases import Structure
from tff_agg.federated import grouping, trainers
from tff_agg.federated.trainers import ModelWeights, Trainer

MOST_PARAMETERS = 200_000

# What a model must not contain for its users to take their steps at the same time.
_ONE_BY_ONE_OPS = ("Conv", "DepthwiseConv", "While", "StatelessWhile")


def pays(model: object) -> bool:
    """Returns whether training side by side is the faster way, by the rule above.

    Args:
      model: A `tff.learning.models.FunctionalModel`. For anything else the answer is
        no: models that own variables cannot be trained side by side.

    Returns:
      Whether to group users: `build_dp_ftrl_process(model, grouped=pays(model))`.

    Example:
      pays(logistic_regression), pays(convolutional_model)  # (True, False)
    """
    if not isinstance(model, tff.learning.models.FunctionalModel):
        return False
    sizes = [
        tf.TensorShape(getattr(w, "shape", ())).num_elements()
        for w in tf.nest.flatten(model.initial_weights)
    ]
    return sum(sizes) <= MOST_PARAMETERS and _vectorizes(model)


def trainer_side_by_side(
    model: tff.learning.models.FunctionalModel,
    client_optimizer: tff.learning.optimizers.Optimizer | float,
    epochs: int = 1,
) -> Trainer:
    """Makes a `Trainer` of groups; users get what `trainer_from_model` gives them.

    Updates and metrics are equal to float precision. It works with every functional
    model; `pays` says for which it is faster.

    Args:
      model: A `tff.learning.models.FunctionalModel`, for instance from
        `tff.learning.models.functional_model_from_keras`.
      client_optimizer: Any of `tff.learning.optimizers`, or a learning rate, which
        stands for plain gradient descent.
      epochs: How many times a user goes through its data.

    Returns:
      A `Trainer` whose datasets are those of `grouping.group_batches`.

    Raises:
      TypeError: If `model` is no functional model.
      ValueError: If `epochs` is not at least 1 or the learning rate not positive.

    Example:
      trainer = trainer_side_by_side(model, client_optimizer=0.5)
      process = build_dp_ftrl_process(trainer, plan=plan)
    """
    if not isinstance(model, tff.learning.models.FunctionalModel):
        raise TypeError(
            "model must be a tff.learning.models.FunctionalModel to be trained side by "
            f"side, got {type(model)}: the variables of other models cannot be one for "
            "each user. A Keras model becomes functional with "
            "tff.learning.models.functional_model_from_keras."
        )
    training = trainers.functional_training(model, client_optimizer, epochs)
    of_all = tf.vectorized_map if _vectorizes(model) else _one_after_another

    @tf.function
    def update(weights, dataset):
        start = tf.nest.map_structure(tf.convert_to_tensor, training.start(weights))
        if epochs > 1:
            dataset = dataset.repeat(epochs)
        final = _train(training.step, start, dataset, of_all)
        deltas, examples, sums = training.outcome(
            tf.nest.map_structure(lambda w: w[None], weights), final
        )
        return deltas, examples, sums

    return Trainer(
        grouping.group_spec(model.input_spec),
        training.initial_weights,
        update,
        training.finalize,
        needs_graph=True,
    )


@tf.autograph.experimental.do_not_convert
def _train(
    step: trainers.Step,
    start: Structure,
    dataset: tf.data.Dataset,
    of_all: Callable[..., Structure],
) -> Structure:
    """Takes all steps of a group; returns the users' states, stacked.

    Args:
      step: `(state, batch) -> state` of one user.
      start: The state that all users have before their first step.
      dataset: The elements of `grouping.group_batches`.
      of_all: `(function, stacked arguments) -> stacked results`.
    """
    iterator = iter(dataset)
    # There is at least one element, if only to say how many users there are.
    first = iterator.get_next_as_optional()
    users = first.get_value()["users"]
    flat_start = tf.nest.flatten(start)
    # Models may be written with Python's own conditions and loops.
    step = tf.function(step)

    def one(flat, batch):
        state = step(tf.nest.pack_sequence_as(start, flat), batch)
        tf.nest.assert_same_structure(start, state)
        # What a step passes on as it is would stay a tensor from outside of the map.
        return [tf.identity(leaf) for leaf in tf.nest.flatten(state)]

    def stepped(moved, states, members, batch):
        """The members' new states, stacked."""

        def shared():
            return of_all(lambda b: one(flat_start, b), batch)

        def own():
            theirs = [tf.gather(s, members) for s in states]
            return of_all(lambda args: one(*args), (theirs, batch))

        return tf.cond(tf.reduce_any(tf.gather(moved, members)), own, shared)

    def body(optional, moved, *states):
        element = optional.get_value()
        members, batch = element["members"], element["batch"]
        count = tf.shape(members)[0]

        def some():
            new = stepped(moved, states, members, batch)
            new = [
                tf.ensure_shape(n, s.shape) for n, s in zip(new, states, strict=True)
            ]
            return tf.cond(
                tf.equal(count, users),
                lambda: new,
                lambda: [
                    tf.tensor_scatter_nd_update(s, members[:, None], n)
                    for s, n in zip(states, new, strict=True)
                ],
            )

        states = tf.cond(tf.equal(count, 0), lambda: list(states), some)
        moved = tf.tensor_scatter_nd_update(
            moved, members[:, None], tf.ones_like(members, tf.bool)
        )
        return (iterator.get_next_as_optional(), moved, *states)

    stacked = [tf.repeat(leaf[None], users, 0) for leaf in flat_start]
    shapes = [tf.TensorShape([None, *leaf.shape]) for leaf in flat_start]
    _, _, *final = tf.while_loop(
        lambda optional, *_: optional.has_value(),
        body,
        (first, tf.zeros([users], tf.bool), *stacked),
        shape_invariants=(None, tf.TensorShape([None]), *shapes),
        parallel_iterations=1,
    )
    return tf.nest.pack_sequence_as(start, final)


def _one_after_another(
    function: Callable[..., Structure], arguments: Structure
) -> Structure:
    """Does what `tf.vectorized_map` does, in a loop."""
    first = tf.nest.map_structure(
        lambda x: tf.TensorSpec(x.shape[1:], x.dtype), arguments
    )
    results = tf.function(function, autograph=False).get_concrete_function(first)
    return tf.map_fn(
        results,
        arguments,
        parallel_iterations=1,
        fn_output_signature=[
            tf.TensorSpec(x.shape, x.dtype) for x in results.structured_outputs
        ],
    )


def _vectorizes(model: tff.learning.models.FunctionalModel) -> bool:
    """Returns whether TensorFlow can take the steps of several users as one."""
    return not any(op.startswith(_ONE_BY_ONE_OPS) for op in _operations(model))


def _operations(model: tff.learning.models.FunctionalModel) -> Iterator[str]:
    """Yields the kinds of operations in the model's forward pass."""
    weights = tf.nest.map_structure(
        lambda w: tf.TensorSpec(w.shape, w.dtype), ModelWeights(*model.initial_weights)
    )

    def forward(weights, x):
        return model.predict_on_batch(
            (weights.trainable, weights.non_trainable), x, training=True
        )

    x, _ = trainers.features_and_labels(model.input_spec)
    with tf.Graph().as_default():
        graph_def = (
            tf.function(forward).get_concrete_function(weights, x).graph.as_graph_def()
        )
    for node in graph_def.node:
        yield node.op
    for function in graph_def.library.function:
        for node in function.node_def:
            yield node.op
