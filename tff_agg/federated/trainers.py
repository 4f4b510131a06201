"""Local training: what a client does with the model it was sent.

A `Trainer` is the whole interface: functions of plain TensorFlow.
Everything else that a round needs (clipping, summing, noise, the server step) is
someone else's. `trainer_from_model` makes one from any model that TFF knows; a model
with a faster hand-written update brings its own.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg import checks
from tff_agg.aliases import Specs, Structure

ModelWeights: TypeAlias = tff.learning.models.ModelWeights
#: A model whose weights are arguments, or a function that builds one with variables.
Model: TypeAlias = (
    tff.learning.models.FunctionalModel
    | Callable[[], tff.learning.models.VariableModel]
)
#: (Structures of) tensors by name.
Metrics = Mapping[str, Structure]
#: From a state and a batch to the next state.
Step = Callable[[Structure, Structure], Structure]


#: From weights and a dataset to (updates, examples, metrics).
Update = Callable[[ModelWeights, tf.data.Dataset], tuple[Structure, tf.Tensor, Metrics]]


class Trainer(NamedTuple):
    """A model's local training, as functions of tensors.

    What TFF calls a client is one user, or a group of users who train side by side.
    Either way all that `update` returns has a first axis of users. For one user its
    length is known to be one while graphs are made, which makes it free: `one_user`.

    The functions must use TensorFlow ops only. `update` and `finalize_metrics` are
    traced as `tf.function` traces, without AutoGraph, and may create no variables.

    Attributes:
      element_spec: Nest of `tf.TensorSpec`: one element of a client's
        `tf.data.Dataset`.
      initial_weights: Returns a `tff.learning.models.ModelWeights` of tensors or
        arrays; called once inside the process's `initialize`.
      update: `(weights, dataset) -> (updates, examples, metrics)`, for every user.
        `weights` is a `ModelWeights` of tensors. `updates` has the structure of
        `weights.trainable` and is initial minus final weights (TFF's sign: the server
        subtracts it). `examples` is how many there were. `metrics` is an
        `OrderedDict` of (structures of) tensors, sums over the user's examples, which
        are added up over users. A user without data has entries of zeros.
      finalize_metrics: Maps the metrics summed over all users to an `OrderedDict` of
        final values.
      needs_graph: Whether `update` and `finalize_metrics` have to be traced right in
        the graph of a TFF computation, as models do that create variables. In such a
        graph `==` and `!=` between tensors compare objects, not values: use
        `tf.equal` and `tf.not_equal` there.

    Example:
      trainer = Trainer(
          element_spec=tf.TensorSpec([None], tf.float32),
          initial_weights=lambda: ModelWeights((tf.zeros([]),), ()),
          update=one_user(one_step_towards_the_mean),
          finalize_metrics=lambda sums: sums,
      )
    """

    element_spec: Specs
    initial_weights: Callable[[], ModelWeights]
    update: Update
    finalize_metrics: Callable[[Metrics], Metrics]
    needs_graph: bool = False


def one_user(update: Update) -> Update:
    """Gives what a function returns of one user an axis of users, of length one.

    Example:
      Trainer(spec, initial_weights, one_user(update), finalize_metrics)
    """

    def with_axis(
        weights: ModelWeights, dataset: tf.data.Dataset
    ) -> tuple[Structure, tf.Tensor, Metrics]:
        # Another view of the same memory.
        return tf.nest.map_structure(
            lambda leaf: tf.expand_dims(leaf, 0), update(weights, dataset)
        )

    return with_axis


def trainer_from_model(
    model: Model,
    client_optimizer: tff.learning.optimizers.Optimizer | float,
    epochs: int = 1,
) -> Trainer:
    """Makes a `Trainer` that runs a client optimizer over a client's batches.

    Args:
      model: A `tff.learning.models.FunctionalModel` (for instance from
        `tff.learning.models.functional_model_from_keras`), or a function without
        arguments that builds a fresh `tff.learning.models.VariableModel` (for instance
        with `tff.learning.models.from_keras_model`) each time it is called.
      client_optimizer: Any of `tff.learning.optimizers`, or a learning rate, which
        stands for plain gradient descent.
      epochs: How many times a client goes through its data.

    Returns:
      A `Trainer` of one user. Its metrics are the model's own; a functional model
      without a metric called `loss` gets one, the mean of the batch losses weighted
      by their examples.

    Raises:
      TypeError: If `model` is neither of the two or `client_optimizer` is no optimizer.
      ValueError: If `epochs` is not at least 1 or the learning rate not positive.

    Example:
      model = tff.learning.models.functional_model_from_keras(
          keras_model, loss_fn, input_spec, metrics_constructor)
      trainer = trainer_from_model(model, client_optimizer=0.5)
    """
    optimizer = as_client_optimizer(client_optimizer)
    checks.whole("epochs", epochs)
    if isinstance(model, tff.learning.models.FunctionalModel):
        return _functional_trainer(model, optimizer, epochs)
    if callable(model) and not isinstance(
        model, tf.keras.Model | tff.learning.models.VariableModel
    ):
        return _variable_trainer(model, optimizer, epochs)
    raise TypeError(
        "model must be a tff.learning.models.FunctionalModel or a function without "
        f"arguments that returns a tff VariableModel, got {type(model)}. A Keras model "
        "becomes one with tff.learning.models.functional_model_from_keras(keras_model, "
        "loss_fn, input_spec)."
    )


def as_client_optimizer(
    client_optimizer: tff.learning.optimizers.Optimizer | float,
) -> tff.learning.optimizers.Optimizer:
    """Returns the optimizer, or gradient descent where a learning rate is given."""
    if isinstance(client_optimizer, tff.learning.optimizers.Optimizer):
        return client_optimizer
    if isinstance(client_optimizer, bool) or not isinstance(
        client_optimizer, float | int
    ):
        raise TypeError(
            "client_optimizer must be a tff.learning.optimizers.Optimizer or a "
            f"learning rate, got {client_optimizer!r}"
        )
    if not 0 < client_optimizer < float("inf"):
        raise ValueError(
            "client_optimizer, given as a learning rate, must be positive and finite, "
            f"got {client_optimizer!r}"
        )
    return tff.learning.optimizers.build_sgdm(learning_rate=client_optimizer)


class FunctionalTraining(NamedTuple):
    """The parts of training a functional model, for one user.

    Attributes:
      initial_weights: As in `Trainer`.
      start: `weights -> state` before the first batch.
      step: `(state, batch) -> state`.
      outcome: `(weights, state) -> (delta, num_examples, metrics)`.
      finalize: As `finalize_metrics` in `Trainer`.
    """

    initial_weights: Callable[[], ModelWeights]
    start: Callable[[ModelWeights], Structure]
    step: Step
    outcome: Callable[[ModelWeights, Structure], tuple[Structure, tf.Tensor, Metrics]]
    finalize: Callable[[Metrics], Metrics]


def functional_training(
    model: tff.learning.models.FunctionalModel,
    client_optimizer: tff.learning.optimizers.Optimizer | float,
    epochs: int,
) -> FunctionalTraining:
    """Takes the training of a model whose weights are arguments apart."""
    optimizer = as_client_optimizer(client_optimizer)
    checks.whole("epochs", epochs)

    def initial_weights() -> ModelWeights:
        return tf.nest.map_structure(
            tf.convert_to_tensor, ModelWeights(*model.initial_weights)
        )

    def start(weights):
        return (
            (weights.trainable, weights.non_trainable),
            optimizer.initialize(_specs(weights.trainable)),
            model.initialize_metrics_state(),
            (tf.constant(0.0), tf.constant(0.0)),
        )

    def step(state, batch):
        weights, optimizer_state, metrics, loss_sums = state
        trainable, non_trainable = weights
        x, y = features_and_labels(batch)
        with tf.GradientTape() as tape:
            tape.watch(trainable)
            output = model.predict_on_batch(weights, x, training=True)
            loss = model.loss(output=output, label=y)
        gradients = tape.gradient(loss, trainable, unconnected_gradients="zero")
        optimizer_state, updated = optimizer.next(
            optimizer_state,
            tuple(tf.nest.flatten(trainable)),
            tuple(tf.nest.flatten(gradients)),
        )
        examples = tf.shape(tf.nest.flatten(output)[0])[0]
        metrics = model.update_metrics_state(
            metrics,
            labels=y,
            batch_output=tff.learning.models.BatchOutput(
                loss=loss, predictions=output, num_examples=examples
            ),
        )
        count = tf.cast(examples, tf.float32)
        loss_sums = (
            loss_sums[0] + tf.cast(loss, tf.float32) * count,
            loss_sums[1] + count,
        )
        updated = tf.nest.pack_sequence_as(trainable, updated)
        return (updated, non_trainable), optimizer_state, metrics, loss_sums

    def outcome(weights, state):
        (trainable, _), _, metrics, loss_sums = state
        delta = tf.nest.map_structure(tf.subtract, weights.trainable, trainable)
        sums: OrderedDict[str, Structure] = OrderedDict(metrics)
        if "loss" not in sums:
            sums["loss"] = loss_sums
        return delta, loss_sums[1], sums

    def finalize(sums):
        state = OrderedDict(sums)
        if has_own_loss:
            return OrderedDict(model.finalize_metrics(state))
        loss_sum, count = state.pop("loss")
        final = OrderedDict(model.finalize_metrics(state))
        final["loss"] = tf.math.divide_no_nan(loss_sum, count)
        return final

    with tf.Graph().as_default():
        has_own_loss = "loss" in model.initialize_metrics_state()
    return FunctionalTraining(initial_weights, start, step, outcome, finalize)


def _functional_trainer(
    model: tff.learning.models.FunctionalModel,
    optimizer: tff.learning.optimizers.Optimizer,
    epochs: int,
) -> Trainer:
    """Training of a model whose weights are arguments."""
    training = functional_training(model, optimizer, epochs)

    @tf.function
    def update(weights, dataset):
        final = _reduce(
            training.step,
            training.start(weights),
            dataset.repeat(epochs) if epochs > 1 else dataset,
        )
        return training.outcome(weights, final)

    return Trainer(
        model.input_spec,
        training.initial_weights,
        one_user(update),
        training.finalize,
        needs_graph=True,
    )


def _variable_trainer(
    model_fn: Callable[[], tff.learning.models.VariableModel],
    optimizer: tff.learning.optimizers.Optimizer,
    epochs: int,
) -> Trainer:
    """Training of a model that owns variables, built anew in every graph."""
    with tf.Graph().as_default():
        model = model_fn()
        if not isinstance(model, tff.learning.models.VariableModel):
            raise TypeError(
                "model, called without arguments, must return a "
                f"tff.learning.models.VariableModel, got {type(model)}. A Keras model "
                "becomes one with tff.learning.models.from_keras_model."
            )
        element_spec = model.input_spec
        finalizers = model.metric_finalizers()

    def initial_weights() -> ModelWeights:
        return tf.nest.map_structure(
            lambda v: v.read_value(), ModelWeights.from_model(model_fn())
        )

    def update(weights, dataset):
        # Variables belong to the surrounding graph, so that TFF initializes them.
        model = model_fn()
        variables = ModelWeights.from_model(model)

        def step(state, batch):
            optimizer_state, count = state
            with tf.GradientTape() as tape:
                output = model.forward_pass(batch, training=True)
            gradients = tape.gradient(
                output.loss, variables.trainable, unconnected_gradients="zero"
            )
            optimizer_state, updated = optimizer.next(
                optimizer_state,
                tuple(v.read_value() for v in tf.nest.flatten(variables.trainable)),
                tuple(tf.nest.flatten(gradients)),
            )
            for variable, value in zip(
                tf.nest.flatten(variables.trainable), updated, strict=True
            ):
                variable.assign(value)
            examples = output.num_examples
            if examples is None:
                examples = tf.shape(tf.nest.flatten(output.predictions)[0])[0]
            return optimizer_state, count + tf.cast(examples, tf.float32)

        @tf.function
        def train(weights, dataset):
            tf.nest.map_structure(lambda v, w: v.assign(w), variables, weights)
            start = (
                optimizer.initialize(_specs(weights.trainable)),
                tf.constant(0.0),
            )
            _, count = _reduce(
                step, start, dataset.repeat(epochs) if epochs > 1 else dataset
            )
            delta = tf.nest.map_structure(
                tf.subtract, weights.trainable, variables.trainable
            )
            return delta, count, model.report_local_unfinalized_metrics()

        return train(weights, dataset)

    def finalize(sums):
        return OrderedDict((name, finalizers[name](sums[name])) for name in finalizers)

    return Trainer(element_spec, initial_weights, one_user(update), finalize, True)


def features_and_labels(batch: Structure) -> tuple[Structure, Structure]:
    """Splits a batch as TFF's models describe it: a mapping or a pair."""
    if isinstance(batch, Mapping):
        return batch["x"], batch["y"]
    x, y = batch
    return x, y


def _specs(structure: Structure) -> tuple[tf.TensorSpec, ...]:
    """Flat specs of a structure of tensors, as the optimizers want them."""
    return tuple(tf.TensorSpec(t.shape, t.dtype) for t in tf.nest.flatten(structure))


def _reduce(step: Step, start: Structure, dataset: tf.data.Dataset) -> Structure:
    """Folds `step` over the elements of a dataset; to be called in a `tf.function`."""
    # The loop runs on an iterator and not with `dataset.reduce`, because the functions
    # of a dataset stay on the CPU even where the lane has a GPU. Loop state is flat:
    # tf.data takes a list for a tensor.
    iterator = iter(dataset)
    # A graph of its own, and not a part of the loop's cycle: see
    # `runtime.compile.library_functions.keep_apart`.
    step = tf.function(step, experimental_attributes={"_noinline": True})

    def has_next(element, *_):
        return element.has_value()

    def body(element, *flat):
        state = step(tf.nest.pack_sequence_as(start, flat), element.get_value())
        tf.nest.assert_same_structure(start, state)
        return (iterator.get_next_as_optional(), *tf.nest.flatten(state))

    flat = tuple(tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(start))
    _, *final = tf.while_loop(
        has_next,
        body,
        (iterator.get_next_as_optional(), *flat),
        shape_invariants=(None, *(leaf.shape for leaf in flat)),
        parallel_iterations=1,
    )
    return tf.nest.pack_sequence_as(start, final)
