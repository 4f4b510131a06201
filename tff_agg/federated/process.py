"""The DP-FTRL learning process that trains on aggregated checkpoints.

A round is what the server sends, a client's work (train, clip), sums, and one call on
the server (noisy mean, step, average). The result is an ordinary
`tff.learning.templates.LearningProcess`, in MapReduce form, so that it runs wherever
such processes run.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg import averaging, checks
from tff_agg.aliases import JsonObject
from tff_agg.federated import clipping, limits, server_side, trainers, vectorized
from tff_agg.federated.tracing import graph_computation
from tff_agg.noise import seeds
from tff_agg.privacy import Plan
from tff_agg.server import (
    NoisyMean,
    Optimiser,
    Schedule,
    ServerStep,
    momentum,
    server_step,
)
from tff_agg.server import state as states

#: What can be trained: a model of TFF's, or local training of one's own.
TrainableModel: TypeAlias = trainers.Model | trainers.Trainer


def build_dp_ftrl_process(
    model: TrainableModel,
    *,
    plan: Plan,
    averager: averaging.Averager | None = None,
    client_optimizer: tff.learning.optimizers.Optimizer | float | None = None,
    client_epochs: int = 1,
    server_learning_rate: float | Schedule = 1.0,
    server_momentum: float = 0.0,
    nesterov: bool = False,
    server_optimizer: Optimiser | None = None,
    step_from: str = "aggregate",
    on_non_finite: str = "drop",
    noise_seed: seeds.Seed | None = None,
    noise_words: int | None = None,
    grouped: bool = False,
) -> tff.learning.templates.LearningProcess:
    """Builds federated DP-FTRL with training aggregation.

    A round: the aggregate θ^AGG_t goes to the clients; each trains on its data and
    returns its update, clipped to `plan.clip_norm`; updates are summed, this round's
    correlated noise is added, the sum is divided by `plan.cohort_size`; the server
    takes a momentum step to θ_{t+1}; the averager yields θ^AGG_{t+1}.

    The state is a `LearningAlgorithmState`. Its `global_model_weights` is θ^AGG, so
    that `process.get_model_weights(state)` is what clients are sent and what is to be
    evaluated. `state.aggregator` is the state of the noisy mean: the round and the
    noise, its secret seed included. Keep stored states readable by their owner only.
    `state.finalizer` is the state of the server's step: the iterate θ_t and the states
    of optimiser and averager. The functions of `tff_agg.server.state` find all this.

    The process keeps to the plan: a round beyond `plan.rounds` and more than
    `plan.cohort_size` clients are refused before any client works, and once more
    inside the computation. Whether the clients of a run are chosen
    as the plan assumes is the sampler's part. Metrics are those of the clients as they
    are, without noise: publishing them is not covered by the plan.

    Never call `next` twice on one state with other clients or other data, and keep
    nothing of a round that is computed again: its noise is a function of the state, so
    the difference of the two results is the difference of the clients' updates, without
    any noise. `tff_agg.experiment.run.loop.train` sees to it; a loop of your own must.

    Args:
      model: A `tff.learning.models.FunctionalModel`, a function without arguments that
        returns a `tff.learning.models.VariableModel` (for instance from a Keras
        model), or a `Trainer`.
      plan: A `tff_agg.privacy.Plan`: clip norm, cohort size, rounds, mechanism, noise.
      averager: The checkpoint aggregation of `tff_agg.averaging`; by default the last
        checkpoint, which is plain DP-FTRL.
      client_optimizer: Any of `tff.learning.optimizers`, or a learning rate. Not for a
        `Trainer`, which has its own.
      client_epochs: How many times a client goes through its data.
      server_learning_rate: The server's learning rate, or a `server.Schedule` of it.
      server_momentum: The server's momentum, in [0, 1).
      nesterov: Whether the momentum is Nesterov's.
      server_optimizer: In place of momentum: `server.adam`, `yogi` or `adagrad`. Adam
        and the others only see the noisy mean: the guarantee is the plan's.
      step_from: `'aggregate'`: θ_{t+1} = θ^AGG_t − step, as in Algorithm 1 of the
        paper. `'iterate'`: θ_{t+1} = θ_t − step, with only the update computed at the
        aggregate.
      on_non_finite: `'drop'`: a client whose update is NaN or infinite counts as one
        of zeros, and its metrics are left out; `non_finite` in the metrics says how
        often. That is a clipping like any other, so the guarantee holds. `'error'`: it
        fails the round, for finding the fault with data that need no protection: one
        user could stop everybody's run, and whether a run stops would depend on one
        user's data, which no ε covers.
      noise_seed: Two or four integers of 64 bits, for tests; refused unless the plan
        says that the seed is known. By default each call of `initialize` draws a seed
        from the operating system.
      noise_words: How many integers of 64 bits are drawn. Four, the default where the
        seed is secret, are a key of AES-256-CTR, which makes the noise: not on TFF's
        worker, which cannot run it. Two make noise of Philox.
      grouped: The value of a client is a group of users, made by
        `grouping.group_batches`, who train side by side: `tff_agg.federated.vectorized`
        says for which models this is faster. Clip norm, cohort size and metrics are
        about users all the same. For a `FunctionalModel`; a `Trainer` says itself how
        many users it trains.

    Returns:
      A `DPFTRLProcess`, a `tff.learning.templates.LearningProcess` that describes
      itself. `set_model_weights` sets θ_t and θ^AGG
      alike and starts the averager anew at them; round, noise and momentum stay.

    Raises:
      TypeError: If `model`, `plan` or `client_optimizer` is not of the right kind.
      ValueError: If a value is out of range; the message names the argument.

    Example:
      process = build_dp_ftrl_process(
          model,
          plan=plan,
          averager=averaging.uta(3),
          client_optimizer=0.5,
          server_momentum=0.9,
      )
      state = process.initialize()
      state, metrics = process.next(state, client_datasets)
      weights = process.get_model_weights(state)
    """
    clipping.check_on_non_finite(on_non_finite)
    mean = server_side.mean_of(plan, noise_seed, noise_words)
    if server_optimizer is not None and (server_momentum or nesterov):
        raise ValueError(
            "server_momentum and nesterov are of the optimiser without a name; "
            f"server_optimizer={dict(server_optimizer.parameters)} has its own"
        )
    step = server_step(
        server_optimizer or momentum(server_momentum, nesterov),
        averager,
        learning_rate=server_learning_rate,
        step_from=step_from,
    )
    trainer = _trainer(model, client_optimizer, client_epochs, grouped)
    made = _compose(trainer, plan, mean, step, on_non_finite, noise_seed)
    words = seeds.words_of(noise_seed, plan.noise_seed_is_known, noise_words)
    made.description = {
        "plan": _describe_plan(plan),
        "averager": step.averager.to_json(),
        "server": step.to_json(),
        "clients": _describe_client(client_optimizer, client_epochs),
        "on_non_finite": on_non_finite,
        "noise_seed": "known" if plan.noise_seed_is_known else "secret",
        "noise_generator": seeds.generator_name(words),
        "weights": str(made.get_model_weights.type_signature.result),
    }
    return made


class DPFTRLProcess(tff.learning.templates.LearningProcess):
    """A learning process that describes itself.

    Attributes:
      description: The plan with its mechanism's parameters, the averager, both
        optimisers and the weights' type, as JSON values. It is part of a run's
        identity: see `tff_agg.experiment.run.identity`.
    """

    description: JsonObject


def _compose(
    trainer: trainers.Trainer,
    plan: Plan,
    mean: NoisyMean,
    step: ServerStep,
    on_non_finite: str,
    noise_seed: seeds.Seed | None,
) -> DPFTRLProcess:
    """Makes the process of its parts."""

    def computation(
        *types: tff.Type,
    ) -> Callable[[Callable[..., object]], tff.Computation]:
        if trainer.needs_graph:
            return tff.tensorflow.computation(*types)
        return graph_computation(*types)

    initial_weights = tff.tensorflow.computation(trainer.initial_weights)
    weights_type = initial_weights.type_signature.result
    data_type = tff.SequenceType(tff.types.tensorflow_to_type(trainer.element_spec))

    # A function of its own, so that its assertion is run in a graph of TFF's, too.
    @tf.function(autograph=False)
    def clip(updates):
        return clipping.clip_users(updates, plan.clip_norm, on_non_finite)

    @computation(weights_type, data_type)
    def work(weights, dataset):
        updates, examples, metrics = trainer.update(weights, dataset)
        updates = tf.nest.map_structure(
            _with_users_axis, updates, tf.nest.map_structure(_shape, weights.trainable)
        )
        sums = clipping.summed_metrics(metrics, on_non_finite)
        return clip(updates), tf.reduce_sum(tf.cast(examples, tf.float32)), sums

    clipped_type, examples_type, metrics_type = work.type_signature.result
    averaged = server_side.averaged(mean, server_side.dtypes_of(weights_type.trainable))

    @graph_computation(weights_type)
    def begin(weights):
        like = server_side.zeros_of(clipped_type.total)
        return tff.learning.templates.LearningAlgorithmState(
            weights,
            (),
            (),
            mean.init(like, noise_seed),
            step.init(weights.trainable),
        )

    state_type = begin.type_signature.result

    @tf.function(autograph=False)
    def played(state, clipped):
        """The server's part of a round."""
        done = states.round_of(state)
        users = clipped.counts["clients"]
        noise, update = averaged(states.noise(state), clipped.total, users)
        server, aggregate = step.next(
            states.server(state), states.aggregate(state), update, done
        )
        state = states.replaced(state, aggregate=aggregate, noise=noise, server=server)
        measured = clipping.measurements(plan, clipped.counts, clipped.largest)
        norm = tf.linalg.global_norm(tf.nest.flatten(update))
        return state, measured, norm

    @computation(state_type, clipped_type, examples_type, metrics_type)
    def finish(state, clipped, examples, metrics):
        state, measured, norm = played(state, clipping.Clipped(*clipped))
        final = OrderedDict(trainer.finalize_metrics(metrics))
        measurements = OrderedDict(
            distributor=(),
            client_work=OrderedDict(train=final, num_examples=examples),
            aggregator=measured,
            finalizer=OrderedDict(update_norm=norm),
        )
        return state, measurements

    @tff.federated_computation
    def initialize():
        return tff.federated_map(begin, tff.federated_eval(initial_weights, tff.SERVER))

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER),
        tff.FederatedType(data_type, tff.CLIENTS),
    )
    def next_round(state, client_data):
        sent = tff.federated_broadcast(state.global_model_weights)
        clipped, examples, metrics = tff.federated_map(work, (sent, client_data))
        sums = clipping.Clipped(
            tff.federated_sum(clipped.total),
            tff.federated_sum(clipped.counts),
            tff.federated_max(clipped.largest),
        )
        finished = tff.federated_map(
            finish,
            (
                state,
                tff.federated_zip(sums),
                tff.federated_sum(examples),
                tff.federated_sum(metrics),
            ),
        )
        return tff.learning.templates.LearningProcessOutput(*finished)

    @graph_computation(state_type)
    def get_model_weights(state):
        return state.global_model_weights

    @graph_computation(state_type, weights_type)
    def set_model_weights(state, weights):
        moved = states.at_weights(state, step, weights.trainable)
        return moved._replace(global_model_weights=weights)

    return DPFTRLProcess(
        initialize,
        limits.within_plan(next_round, plan),
        get_model_weights,
        set_model_weights,
    )


def _shape(weight: tf.Tensor) -> tf.TensorShape:
    return weight.shape


def _with_users_axis(update: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Returns a client's updates; all but the number of its users is known of them."""
    wanted = tf.TensorShape([None, *shape])
    if update.shape.is_fully_defined() and wanted.is_compatible_with(update.shape):
        return update
    return tf.ensure_shape(update, wanted)


def _describe_plan(plan: Plan) -> JsonObject:
    """What of a plan decides the noise, as JSON values."""
    names = ("clip_norm", "cohort_size", "rounds", "noise_multiplier", "noise_stddev")
    facts: JsonObject = {name: getattr(plan, name, None) for name in names}
    facts["mechanism"] = plan.mechanism.name
    facts["mechanism_parameters"] = dict(plan.mechanism.parameters)
    # A matrix of one's own has no parameters.
    facts["mechanism_fingerprint"] = plan.mechanism.fingerprint(plan.rounds)
    if (participation := getattr(plan, "participation", None)) is not None:
        facts["participation"] = participation.to_json()
    return facts


def _describe_client(
    optimizer: tff.learning.optimizers.Optimizer | float | None, epochs: int
) -> JsonObject:
    """What is known of the clients' training, as JSON values."""
    if optimizer is None:
        return {"optimizer": "the Trainer's own"}
    if isinstance(optimizer, int | float):
        return {"optimizer": "sgd", "learning_rate": optimizer, "epochs": epochs}
    kept = {
        name.lstrip("_"): value
        for name, value in sorted(vars(optimizer).items())
        if isinstance(value, bool | int | float | str)
    }
    return {"optimizer": type(optimizer).__name__, **kept, "epochs": epochs}


def _trainer(
    model: TrainableModel,
    client_optimizer: tff.learning.optimizers.Optimizer | float | None,
    client_epochs: int,
    grouped: bool,
) -> trainers.Trainer:
    """Makes a trainer of a model, or takes the one that was given."""
    if isinstance(model, trainers.Trainer):
        if client_optimizer is not None or client_epochs != 1:
            raise ValueError(
                "client_optimizer and client_epochs are for models; a Trainer has its "
                f"own. Leave them out (got {client_optimizer!r}, {client_epochs!r})"
            )
        if grouped:
            raise ValueError(
                "grouped=True is for models; a Trainer says itself how many users it "
                "trains"
            )
        return model
    client_epochs = checks.whole("client_epochs", client_epochs)
    if client_optimizer is None:
        raise ValueError(
            "client_optimizer must be an optimizer of tff.learning.optimizers or a "
            "learning rate, got None"
        )
    make = vectorized.trainer_side_by_side if grouped else trainers.trainer_from_model
    return make(model, client_optimizer, client_epochs)
