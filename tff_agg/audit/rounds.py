"""Running a process with canaries among its users, and keeping what an audit needs.

Every checkpoint is projected on the directions at once: an audit of a thousand canaries
keeps a thousand numbers of a checkpoint, however large the model.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.aliases import Structure
from tff_agg.audit import clients
from tff_agg.audit.canaries import Canaries
from tff_agg.audit.findings import Evidence
from tff_agg.audit.simulation import OVERSIZE
from tff_agg.federated.trainers import Trainer
from tff_agg.privacy.plan import Plan
from tff_agg.server import state as states


def run_with_canaries(
    process: tff.learning.templates.LearningProcess,
    plan: Plan,
    trainer: Trainer,
    canaries: Canaries,
    users_of_round: Callable[
        [int], Sequence[tf.data.Dataset]
    ] = lambda round_number: (),
    *,
    state: Structure | None = None,
    of_means: bool = False,
    after_round: Callable[[int, Structure], None] = lambda round_number, metrics: None,
) -> Evidence:
    """Runs all rounds of a plan with canaries taking part.

    Args:
      process: A DP-FTRL process built from `with_canaries(trainer)`.
      plan: The plan that the process was built from.
      trainer: What ordinary clients do.
      canaries: Who takes part when. Together with the users they must not be more
        than `plan.cohort_size` in a round.
      users_of_round: The datasets of a round's other users, as `trainer` takes them;
        nobody by default.
      state: The state to start from; a fresh one, with a secret seed, if None.
      of_means: Whether to keep the noisy means in place of the iterates: what plain
        steps of rate one along them would lead to, from zero. The process's optimiser
        must be `server.keeping_means` of one.
      after_round: Called after each round with its number and its metrics.

    Returns:
      The projections of all iterates, or of those plain steps.

    Example:
      process = build_dp_ftrl_process(with_canaries(trainer), plan=plan)
      evidence = run_with_canaries(process, plan, trainer, canaries)
    """
    state = process.initialize() if state is None else state
    on_canaries, on_probes = [], []
    total = np.zeros(clients.parameters(states.iterate(state)).shape)

    def keep(state: Structure) -> None:
        theta = clients.parameters(states.iterate(state))
        if of_means:
            held: Any = states.server(state)["optimiser"]
            theta = total[:] = total - clients.parameters(held["mean"])
        on_canaries.append(canaries.directions.project(theta))
        on_probes.append(canaries.probes.project(theta))

    keep(state)
    norm = OVERSIZE * plan.clip_norm
    for t in range(plan.rounds):
        data = [clients.ordinary(dataset) for dataset in users_of_round(t)]
        data += [
            clients.canary(trainer, canaries.directions, i, norm)
            for i in canaries.of_round(t)
        ]
        state, metrics = process.next(state, data)
        keep(state)
        after_round(t, metrics)
    return Evidence(np.stack(on_canaries), np.stack(on_probes))
