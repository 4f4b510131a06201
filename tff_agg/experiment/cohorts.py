"""The clients of each round: who they are, and what they bring."""

import hashlib
from collections.abc import Callable

from pds import sampler, schedule
from tff_agg.experiment import identity, loop
from tff_agg.experiment.task import Task
from tff_agg.learning import grouping

_SCHEDULES = {
    "linear": schedule.linear,
    "cosine": schedule.cosine,
    "step": schedule.step,
    "constant": lambda period: schedule.constant(0.5),
}


def build_sampler(task: Task) -> sampler.Sampler:
    """Returns the sampler of a task's configuration: who takes part in which round."""
    config = task.config
    shift = _SCHEDULES[config.pds_schedule](config.pds_period) if config.pds else None
    return sampler.Sampler(
        groups=task.population(),
        cohort_size=config.clients_per_round,
        rounds=config.rounds,
        participation=config.build_participation(),
        seed=config.seed,
        schedule=shift,
        split=config.pds_split,
        when_exhausted=config.on_exhausted,
    )


def reader(task: Task, members: sampler.Sampler) -> Callable[[int], loop.Cohort]:
    """Returns the clients of a round with their data, a pure function of the round."""
    first = members.groups[0].name

    def cohort(round_number: int) -> loop.Cohort:
        chosen = members.sample(round_number)
        clients = [task.client(user, group, round_number) for user, group in chosen]
        names = [client.name for client in clients]
        digest = hashlib.blake2b("\n".join(names).encode(), digest_size=6)
        facts = {
            "clients": len(chosen),
            "examples": sum(client.examples for client in clients),
            "cohort": digest.hexdigest(),
        }
        if task.config.pds:
            facts[f"{first}_clients"] = sum(group == first for _, group in chosen)
        arrays = (array for client in clients for array in client.arrays)
        digest_of_data = identity.arrays_digest(arrays)
        costs = [client.examples for client in clients]
        if task.group_size == 1:
            data = [task.dataset(client) for client in clients]
            return loop.Cohort(names, data, digest_of_data, costs, facts)
        groups = grouping.form_groups(costs, task.group_size)
        return loop.Cohort(
            client_ids=[[names[i] for i in group] for group in groups],
            data=[task.group([clients[i] for i in group]) for group in groups],
            digest=digest_of_data,
            costs=[sum(costs[i] for i in group) for group in groups],
            facts=facts,
        )

    return cohort
