"""A client's part of a round: local training, as TFF's client work."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.aliases import Specs
from tff_agg.learning.tracing import graph_computation
from tff_agg.learning.trainers import LocalTrainer, Metrics, ModelWeights

NON_FINITE_CHOICES = ("drop", "error")


class Trainer(Protocol):
    """What a `LocalTrainer` and a `GroupTrainer` have in common."""

    @property
    def element_spec(self) -> Specs:
        """One element of a client's dataset."""

    @property
    def initial_weights(self) -> Callable[[], ModelWeights]:
        """Returns the weights before the first round."""

    @property
    def finalize_metrics(self) -> Callable[[Metrics], Metrics]:
        """From the metrics summed over all clients to final values."""

    @property
    def needs_graph(self) -> bool:
        """Whether the functions are traced right in the graph of a computation."""


def build_client_work(
    trainer: LocalTrainer, *, on_non_finite: str = "drop"
) -> tff.learning.templates.ClientWorkProcess:
    """Wraps a `LocalTrainer` into TFF's client work template.

    Args:
      trainer: What a client does.
      on_non_finite: With `'drop'` the metrics of a client are left out of the sums when
        any of them is not finite; with `'error'` they are added as they are.

    Returns:
      A `tff.learning.templates.ClientWorkProcess` without state. Its result is the
      client's update, weighted by its number of examples; its measurements are
      `train`, the final metrics over all clients, and `num_examples`.

    Example:
      work = build_client_work(trainer)
    """
    check_on_non_finite(on_non_finite)

    def train(weights, dataset):
        delta, num_examples, metrics = trainer.update(weights, dataset)
        num_examples = tf.cast(num_examples, tf.float32)
        metrics = OrderedDict(metrics)
        if on_non_finite == "drop":
            metrics = _zero_unless_finite(metrics)
        return tff.learning.templates.ClientResult(delta, num_examples), metrics

    return client_work_of(trainer, train)


def client_work_of(
    trainer: Trainer,
    train: Callable[
        [ModelWeights, tf.data.Dataset],
        tuple[tff.learning.templates.ClientResult, Metrics],
    ],
) -> tff.learning.templates.ClientWorkProcess:
    """Makes the client work of a function `(weights, dataset) -> (result, metrics)`.

    Args:
      trainer: A `LocalTrainer` or a `GroupTrainer`.
      train: Returns a `tff.learning.templates.ClientResult` and what is to be added up
        over clients.
    """
    weights_type = tff.tensorflow.computation(
        trainer.initial_weights
    ).type_signature.result
    data_type = tff.SequenceType(tff.types.tensorflow_to_type(trainer.element_spec))

    def computation(
        *types: tff.Type,
    ) -> Callable[[Callable[..., object]], tff.Computation]:
        if trainer.needs_graph:
            return tff.tensorflow.computation(*types)
        return graph_computation(*types)

    work = computation(weights_type, data_type)(train)
    metrics_type = work.type_signature.result[1]

    @computation(metrics_type)
    def finalize(sums):
        return OrderedDict(trainer.finalize_metrics(sums))

    @tff.federated_computation
    def initialize():
        return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(weights_type, tff.CLIENTS),
        tff.FederatedType(data_type, tff.CLIENTS),
    )
    def next_round(state, weights, client_data):
        result, metrics = tff.federated_map(work, (weights, client_data))
        measurements = tff.federated_zip(
            OrderedDict(
                train=tff.federated_map(finalize, tff.federated_sum(metrics)),
                num_examples=tff.federated_sum(result.update_weight),
            )
        )
        return tff.templates.MeasuredProcessOutput(state, result, measurements)

    return tff.learning.templates.ClientWorkProcess(initialize, next_round)


def check_on_non_finite(on_non_finite: str) -> None:
    """Raises unless `on_non_finite` is one of the two choices."""
    if on_non_finite not in NON_FINITE_CHOICES:
        raise ValueError(
            f"on_non_finite must be one of {NON_FINITE_CHOICES}, got {on_non_finite!r}"
        )


def _zero_unless_finite(metrics: Metrics) -> Metrics:
    """Returns the metrics, or zeros if any of them is NaN or infinite."""
    floating = [m for m in tf.nest.flatten(metrics) if m.dtype.is_floating]
    if not floating:
        return metrics
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(m)) for m in floating])
    return tf.nest.map_structure(
        lambda m: tf.where(finite, m, tf.zeros_like(m)), metrics
    )
