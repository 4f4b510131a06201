"""Which learning rate suits clients, by people who are held out: `train --dry_run`.

A user's update is cut to the clip norm whatever the rate, and a rate that is too large
for a model and its data fills it with what is no progress. So rates are tried on
held-out people: they train as clients do, from the weights of round 0, and the rate is
proposed that lowers their loss on their own data most. No user of training is looked
at. The held-out ones are used without noise, as they are for validation.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tff_agg.experiment.build import start
from tff_agg.experiment.task import Client, UserTask

#: What is tried, the largest first. Nothing larger has been trained with.
RATES = (1.0, 0.3, 0.1, 0.03)
_CLIENTS = 20
# At it nothing moves: it shows the loss of weights as they are.
_STILL = 1e-12


class Tried(NamedTuple):
    """A rate, and what it did.

    Attributes:
      rate: The clients' learning rate.
      change: Of a client's loss on its own data by its local steps, in the mean; not
        finite where the steps diverge.
    """

    rate: float
    change: float


def tried(task: UserTask) -> list[Tried]:
    """Returns what the rates do, from the largest down until one is worse.

    Nothing where no clients are held out, or training tells no loss.

    Args:
      task: The task; its own rate is not looked at.
    """
    clients = task.heldout_clients(_CLIENTS)
    facts = task.privacy_facts()
    if not clients or (facts.shared_users or {}).get("heldout"):
        return []
    weights = [*start.first_weights(task).values()]
    probe = _Local(task, _STILL)
    before = [probe.loss(weights, client) for client in clients]
    if not all(map(math.isfinite, before)):
        return []
    found: list[Tried] = []
    for rate in RATES:
        local = _Local(task, rate)
        after = [probe.loss(local.trained(weights, c), c) for c in clients]
        change = (math.fsum(after) - math.fsum(before)) / len(clients)
        found.append(Tried(rate, change))
        if len(found) > 1 and change > found[-2].change:
            break
    return found


def proposed(found: Sequence[Tried]) -> float:
    """Returns the rate that lowers losses most; of equals the largest.

    Example:
      >>> proposed([Tried(1.0, math.nan), Tried(0.3, -0.1), Tried(0.1, -0.2)])
      0.1
    """
    finite = [t for t in found if math.isfinite(t.change)]
    return min(finite, key=lambda t: t.change).rate if finite else RATES[-1]


class _Local:
    """A client's local training at a rate, one client at a time."""

    def __init__(self, task: UserTask, rate: float):
        import tensorflow as tf

        from tff_agg.federated import trainers

        self._task = task
        trainer: Any = task.model()
        if isinstance(trainer, trainers.Trainer):
            own = {"client_learning_rate": rate, "group_users": 1}
            trainer = task.with_config(dataclasses.replace(task.config, **own)).model()
        else:
            epochs = task.config.local_epochs
            trainer = trainers.trainer_from_model(trainer, rate, epochs)

        shapes = [tf.TensorSpec(shape) for shape in task.shapes.values()]
        # Whatever a client has: one graph for all of them.
        data = tf.data.DatasetSpec(trainer.element_spec)

        @tf.function(autograph=False, input_signature=[shapes, data])
        def update(weights: Any, dataset: Any) -> Any:
            first = trainers.ModelWeights(tuple(weights), ())
            moved, _, sums = trainer.update(first, dataset)
            sums = tf.nest.map_structure(lambda leaf: leaf[0], sums)
            loss = trainer.finalize_metrics(sums).get("loss", math.nan)
            return [leaf[0] for leaf in tf.nest.flatten(moved)], loss

        self._update = update

    def trained(self, weights: Sequence[Any], client: Client) -> list[Any]:
        """Returns the weights after a client's local steps."""
        moved, _ = self._update(weights, self._task.dataset(client))
        return [old - by for old, by in zip(weights, moved, strict=True)]

    def loss(self, weights: Sequence[Any], client: Client) -> float:
        """Returns the loss of a client's data, each batch's before its step."""
        _, loss = self._update(weights, self._task.dataset(client))
        return float(loss)
