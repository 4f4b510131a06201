"""What trains a task: plan, sampler, cohorts, process; and the loop in memory."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tree

from tff_agg.aliases import Structure, Weights
from tff_agg.experiment.build.base import Build
from tff_agg.experiment.build.compiled import Compiled
from tff_agg.experiment.build.dp_ftrl import FederatedBuild
from tff_agg.experiment.build.dp_sgd import SampledBuild
from tff_agg.experiment.build.process import Cohort, Process
from tff_agg.experiment.task import ExampleTask, Task, UserTask
from tff_agg.server import state as states

__all__ = ["Build", "Cohort", "Compiled", "Passed", "Process", "build", "rounds"]


class Passed(NamedTuple):
    """The models of one round.

    Attributes:
      round: How many rounds are done, this one included.
      iterate: θ by name.
      aggregate: θ^AGG by name.
    """

    round: int
    iterate: Weights
    aggregate: Weights


def build(task: Task, compiled: Compiled) -> Build[Any]:
    """Returns all that a run of a task needs.

    Args:
      task: Bound to its configuration: a `UserTask` or an `ExampleTask`.
      compiled: Where processes are shared.
    """
    match task:
        case UserTask():
            return FederatedBuild(task, compiled)
        case ExampleTask():
            return SampledBuild(task, compiled)
    raise TypeError(
        f"task={type(task).__name__}: needs a UserTask or an ExampleTask, whichever "
        "the unit of privacy is"
    )


def rounds(build: Build[Any]) -> Iterator[Passed]:
    """Runs a process in memory and yields every round's models; nothing is saved.

    For runs with known noise seeds: a secret one is gone with the process.
    """
    from tff_agg import runtime

    with build.running():
        process, clients_of = build.process, build.clients_of
        state = build.initialize()

        def named(weights: Structure) -> Weights:
            if isinstance(weights, dict):
                return {n: np.asarray(weights[n]) for n in build.task.weight_names}
            return build.task.named([np.asarray(w) for w in tree.flatten(weights)])

        for number in range(build.task.config.rounds):
            clients = clients_of(number, state)
            with runtime.balancing_lanes(clients.costs):
                state = process.next(state, list(clients.data)).state
            yield Passed(
                number + 1, named(states.iterate(state)), named(states.aggregate(state))
            )
