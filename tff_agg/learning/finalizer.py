"""The server's step, and the averaging of what it yields.

The finalizer owns the iterate θ_t, the server momentum and the averager. What it passes
back as the global model is the aggregate θ^AGG, so that clients train on it, and
a caller that asks the process for its model gets it.
"""

from collections import OrderedDict

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.aliases import Structure
from tff_agg.averaging import Averager
from tff_agg.learning import server_step
from tff_agg.learning.tracing import graph_computation


def build_averaging_finalizer(
    weights_type: tff.Type,
    averager: Averager,
    *,
    learning_rate: float = 1.0,
    momentum: float = 0.0,
    nesterov: bool = False,
    step_from: str = "aggregate",
) -> tff.learning.templates.FinalizerProcess:
    """Builds the finalizer: a momentum step, then the averager.

    With g the aggregated update, m the momentum and θ the trainable weights,

      m ← momentum · m + g
      step ← learning_rate · m, with Nesterov learning_rate · (momentum · m + g)
      θ_{t+1} ← θ^AGG_t − step (`step_from='aggregate'`) or θ_t − step (`'iterate'`)
      θ^AGG_{t+1} ← averager.next(…, θ_{t+1})

    Weights that are not trained are passed on unchanged.

    Args:
      weights_type: The type of `tff.learning.models.ModelWeights`.
      averager: The aggregation of checkpoints.
      learning_rate: The server's learning rate.
      momentum: The server's momentum, in [0, 1).
      nesterov: Whether the step looks ahead along the momentum.
      step_from: Where the step starts.

    Returns:
      A `tff.learning.templates.FinalizerProcess`. Its state is a mapping of `iterate`
      (θ_t), `momentum`, `averager` and `round`. It reports `update_norm`, the norm of
      the aggregated update, noise included. Its `initialize` knows no model: the state
      has to be replaced by `start_state(weights, …)` of the initial weights.

    Raises:
      ValueError: If an argument is out of range; the message names it.

    Example:
      finalizer = build_averaging_finalizer(weights_type, uta(3), momentum=0.9)
    """
    server_step.check_step(learning_rate, momentum, nesterov, step_from)

    @graph_computation()
    def start():
        zeros = tff.types.structure_from_tensor_type_tree(
            lambda t: tf.zeros(t.shape, t.dtype), weights_type.trainable
        )
        return start_state(zeros, averager, momentum)

    state_type = start.type_signature.result

    @graph_computation(state_type, weights_type, weights_type.trainable)
    def step(state, weights, update):
        new_momentum, direction = server_step.direction(
            state["momentum"], update, momentum, nesterov
        )
        origin = weights.trainable if step_from == "aggregate" else state["iterate"]
        iterate = tf.nest.map_structure(
            lambda w, d: w - d * tf.cast(learning_rate, d.dtype), origin, direction
        )
        averager_state, aggregate = averager.next(state["averager"], iterate)
        new_state = OrderedDict(
            iterate=iterate,
            momentum=new_momentum,
            averager=averager_state,
            round=state["round"] + 1,
        )
        measurements = OrderedDict(
            update_norm=tf.linalg.global_norm(tf.nest.flatten(update))
        )
        new_weights = tff.learning.models.ModelWeights(aggregate, weights.non_trainable)
        return new_state, new_weights, measurements

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(start, tff.SERVER)

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(weights_type, tff.SERVER),
        tff.FederatedType(weights_type.trainable, tff.SERVER),
    )
    def next_round(state, weights, update):
        return tff.templates.MeasuredProcessOutput(
            *tff.federated_map(step, (state, weights, update))
        )

    return tff.learning.templates.FinalizerProcess(initialize, next_round)


def start_state(
    trainable: Structure, averager: Averager, momentum: float
) -> OrderedDict[str, Structure]:
    """Returns the finalizer's state before the first round.

    Args:
      trainable: θ_0, a structure of tensors.
      averager: The averager of the process.
      momentum: The server's momentum; without any, no buffer is kept for it.

    Example:
      start_state([tf.zeros([2])], last(), momentum=0.0)['momentum']  # ()
    """
    zeros = tf.nest.map_structure(tf.zeros_like, trainable) if momentum else ()
    return OrderedDict(
        iterate=trainable,
        momentum=zeros,
        averager=averager.init(trainable),
        round=tf.constant(0, tf.int64),
    )
