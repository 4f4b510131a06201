"""The DP-FTRL learning process that trains on aggregated checkpoints.

`build_dp_ftrl_process` puts a client's work, the private aggregation and the averaging
finalizer together with TFF's own composer. The result is an ordinary
`tff.learning.templates.LearningProcess`, in MapReduce form, so that it runs wherever
such processes run.
"""

from typing import TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_agg import averaging, backends
from tff_agg.aliases import JsonObject, Structure
from tff_agg.learning import aggregator as aggregators
from tff_agg.learning import (
    client_work,
    finalizer,
    group_work,
    limits,
    server_step,
    trainers,
    vectorized,
)
from tff_agg.learning.tracing import graph_computation
from tff_agg.noise import seeds
from tff_agg.privacy import Plan

#: What can be trained: a model of TFF's, or local training of one's own.
TrainableModel: TypeAlias = (
    trainers.Model | trainers.LocalTrainer | group_work.GroupTrainer
)


def build_dp_ftrl_process(
    model: TrainableModel,
    *,
    plan: Plan,
    averager: averaging.Averager | None = None,
    client_optimizer: tff.learning.optimizers.Optimizer | float | None = None,
    client_epochs: int = 1,
    server_learning_rate: float = 1.0,
    server_momentum: float = 0.0,
    nesterov: bool = False,
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
    evaluated. `state.aggregator` holds the round and the noise, its secret seed
    included: keep stored states readable by their owner only. `state.finalizer` holds
    the iterate θ_t, the momentum, the averager's state and the round.

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
        model), a `LocalTrainer` or a `GroupTrainer`.
      plan: A `tff_agg.privacy.Plan`: clip norm, cohort size, rounds, mechanism, noise.
      averager: The checkpoint aggregation of `tff_agg.averaging`; by default the last
        checkpoint, which is plain DP-FTRL.
      client_optimizer: Any of `tff.learning.optimizers`, or a learning rate. Not for a
        `LocalTrainer`, which has its own.
      client_epochs: How many times a client goes through its data.
      server_learning_rate: The server's learning rate.
      server_momentum: The server's momentum, in [0, 1).
      nesterov: Whether the momentum is Nesterov's.
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
        `grouping.group_batches`, who train side by side: `tff_agg.learning.vectorized`
        says for which models this is faster. Clip norm, cohort size and metrics are
        about users all the same. For a `FunctionalModel`; a `GroupTrainer` always is.

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
    averager = averaging.last() if averager is None else averager
    server_step.check_step(server_learning_rate, server_momentum, nesterov, step_from)
    trainer = _trainer(model, client_optimizer, client_epochs, grouped)
    initial_weights = tff.tensorflow.computation(trainer.initial_weights)
    weights_type = initial_weights.type_signature.result
    factory = aggregators.DPFTRLSumFactory(
        plan,
        on_non_finite=on_non_finite,
        noise_seed=noise_seed,
        noise_words=noise_words,
        grouped=isinstance(trainer, group_work.GroupTrainer),
    )
    work = (
        group_work.build_group_work(trainer, on_non_finite=on_non_finite)
        if isinstance(trainer, group_work.GroupTrainer)
        else client_work.build_client_work(trainer, on_non_finite=on_non_finite)
    )
    composed = tff.learning.templates.compose_learning_process(
        initial_weights,
        tff.learning.templates.build_broadcast_process(weights_type),
        work,
        tff.aggregators.as_weighted_aggregator(factory).create(
            work.next.type_signature.result.result.member.update,
            tff.TensorType(np.float32),
        ),
        finalizer.build_averaging_finalizer(
            weights_type,
            averager,
            learning_rate=server_learning_rate,
            momentum=server_momentum,
            nesterov=nesterov,
            step_from=step_from,
        ),
    )
    description: JsonObject = {
        "plan": _describe_plan(plan),
        "averager": averager.to_json(),
        "server": {
            "learning_rate": server_learning_rate,
            "momentum": server_momentum,
            "nesterov": nesterov,
            "step_from": step_from,
        },
        "clients": _describe_client(client_optimizer, client_epochs),
        "on_non_finite": on_non_finite,
        "noise_seed": "known" if plan.noise_seed_is_known else "secret",
        "noise_generator": seeds.generator_name(factory.noise_words),
        "weights": str(weights_type),
    }
    next_fn = limits.within_plan(composed.next, plan)
    return _starting_at_the_model(composed, averager, next_fn, description)


class DPFTRLProcess(tff.learning.templates.LearningProcess):
    """A learning process that describes itself.

    Attributes:
      description: The plan with its mechanism's parameters, the averager, both
        optimisers and the weights' type, as JSON values. It is part of a run's
        identity: see `tff_agg.experiment.run.identity`.
    """

    description: JsonObject


def _starting_at_the_model(
    composed: tff.learning.templates.LearningProcess,
    averager: averaging.Averager,
    next_fn: tff.Computation,
    description: JsonObject,
) -> DPFTRLProcess:
    """Makes iterate and averager start at the model's own weights.

    A finalizer is initialized without the model, and a model may be initialized at
    random: θ_0 has to be taken from the composed state, where it is known once.
    """
    state_type = composed.initialize.type_signature.result.member

    def at_weights(state, weights):
        restarted = finalizer.start_state(weights.trainable, averager, momentum=0.0)
        kept = state.finalizer
        return state._replace(
            global_model_weights=weights,
            finalizer=type(kept)(
                iterate=restarted["iterate"],
                momentum=kept["momentum"],
                averager=restarted["averager"],
                round=kept["round"],
            ),
        )

    set_model_weights = graph_computation(state_type, state_type.global_model_weights)(
        at_weights
    )

    @graph_computation(state_type)
    def start(state):
        return at_weights(state, state.global_model_weights)

    @tff.federated_computation
    def initialize():
        return tff.federated_map(start, composed.initialize())

    made = DPFTRLProcess(
        initialize,
        next_fn,
        composed.get_model_weights,
        set_model_weights,
        get_hparams_fn=composed.get_hparams,
        set_hparams_fn=composed.set_hparams,
    )
    made.description = description
    return made


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
        return {"optimizer": "the LocalTrainer's own"}
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
) -> trainers.LocalTrainer | group_work.GroupTrainer:
    """Makes a trainer of a model, or takes the one that was given."""
    if isinstance(model, trainers.LocalTrainer | group_work.GroupTrainer):
        kind = type(model).__name__
        if client_optimizer is not None or client_epochs != 1:
            raise ValueError(
                f"client_optimizer and client_epochs are for models; a {kind} has "
                f"its own. Leave them out (got {client_optimizer!r}, {client_epochs!r})"
            )
        if grouped and isinstance(model, trainers.LocalTrainer):
            raise ValueError(
                "grouped=True is for models; a LocalTrainer trains one client. Give a "
                "GroupTrainer"
            )
        return model
    epochs_are_whole = isinstance(client_epochs, int) and client_epochs >= 1
    if isinstance(client_epochs, bool) or not epochs_are_whole:
        raise ValueError(
            f"client_epochs must be a whole number of at least 1, got {client_epochs!r}"
        )
    if client_optimizer is None:
        raise ValueError(
            "client_optimizer must be an optimizer of tff.learning.optimizers or a "
            "learning rate, got None"
        )
    make = vectorized.trainer_side_by_side if grouped else trainers.trainer_from_model
    return make(model, client_optimizer, client_epochs)


def aggregate(state: tff.learning.templates.LearningAlgorithmState) -> Structure:
    """Returns the trainable weights of θ^AGG_t, the model that clients are sent.

    Example:
      aggregate(process.initialize())
    """
    return state.global_model_weights.trainable


def iterate(state: tff.learning.templates.LearningAlgorithmState) -> Structure:
    """Returns the trainable weights of θ_t, the checkpoint the server stepped to.

    Example:
      iterate(process.initialize())
    """
    return state.finalizer["iterate"]


def without_noise(
    state: tff.learning.templates.LearningAlgorithmState,
) -> tff.learning.templates.LearningAlgorithmState:
    """Returns a state whose noise is forgotten: the seed and all buffers are zeros.

    For the last state of a run. It cannot go on, and nobody who reads it can take the
    noise off the models. The buffers are as secret as the seed: they are sums of the
    very noise that was added.

    Example:
      without_noise(state).aggregator['noise']['seed']  # array([0, 0])
    """
    if "noise" not in state.aggregator:
        return state
    changed = type(state.aggregator)(state.aggregator)
    noise = type(changed["noise"])(changed["noise"])
    for key in ("seed", "buffers"):
        if key in noise:
            noise[key] = tf.nest.map_structure(
                lambda leaf: np.zeros_like(np.asarray(leaf)), noise[key]
            )
    changed["noise"] = noise
    return state._replace(aggregator=changed)


def with_noise_seed(
    state: tff.learning.templates.LearningAlgorithmState, seed: seeds.Seed
) -> tff.learning.templates.LearningAlgorithmState:
    """Returns a fresh state with another secret seed for its noise.

    Args:
      state: A state before its first round.
      seed: As many integers of 64 bits as the state's own. Whoever knows them can take
        the noise off again.

    Raises:
      ValueError: If the seed is none or of another length, the run has begun (its noise
        is correlated over rounds and must go on with its seed), or the state's process
        adds no noise.

    Example:
      state = with_noise_seed(process.initialize(), seed=(1, 2))
    """
    given = seeds.seed_in(backends.NUMPY, seed)
    if "noise" not in state.aggregator:
        raise ValueError("state belongs to a process without noise: it has no seed")
    if (played := int(state.aggregator["round"])) != 0:
        raise ValueError(
            f"the noise seed can be set before the first round only; state is after "
            f"{played} rounds"
        )
    noise = type(state.aggregator["noise"])(state.aggregator["noise"])
    old = noise["seed"]
    if np.shape(old) != np.shape(given):
        raise ValueError(
            f"seed must be {len(old)} integers of 64 bits, as the state's is, got "
            f"{len(given)}; a plan with noise_seed_is_known=True starts with "
            f"{seeds.KNOWN_WORDS}"
        )
    noise["seed"] = tf.constant(given) if tf.is_tensor(old) else given
    changed = type(state.aggregator)(state.aggregator)
    changed["noise"] = noise
    return state._replace(aggregator=changed)
