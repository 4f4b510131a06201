"""The clients of each round: who they are, and what they bring."""

import hashlib
from collections.abc import Callable

from pds import sampler, schedule
from tff_agg.experiment import identity, loop
from tff_agg.experiment.config import RunConfig
from tff_agg.experiment.task import Task
from tff_agg.learning import grouping

_SCHEDULES = {
    "linear": schedule.linear,
    "cosine": schedule.cosine,
    "step": schedule.step,
    "constant": lambda period: schedule.constant(0.5),
}


def build_schedule(config: RunConfig) -> schedule.Schedule | None:
    """Returns the periodic shift of a configuration; None without one."""
    return _SCHEDULES[config.pds_schedule](config.pds_period) if config.pds else None


def build_sampler(task: Task) -> sampler.Sampler:
    """Returns the sampler of a task's configuration: who takes part in which round.

    Raises:
      sampler.ExhaustedError: The users do not suffice; names the flags that matter.
    """
    config = task.config
    shift = build_schedule(config)
    groups = task.population()
    participation = config.build_participation()
    try:
        return sampler.Sampler(
            groups=groups,
            cohort_size=config.clients_per_round,
            rounds=config.rounds,
            participation=participation,
            seed=config.seed,
            schedule=shift,
            split=config.pds_split,
            when_exhausted=config.on_exhausted,
        )
    except sampler.ExhaustedError as error:
        short = error.shortage
        sizes = ", ".join(f"{group.name}: {len(group.users):,}" for group in groups)
        others = [n for n in sampler.EXHAUSTED_MODES[1:] if n != config.on_exhausted]
        if not config.pds:
            others = [name for name in others if name != "fill_from_other"]
        raise sampler.ExhaustedError(
            f"the users ({sizes}) do not suffice for --rounds={config.rounds} with "
            f"--clients_per_round={config.clients_per_round}, where "
            f"{participation.describe()}: round {short.round + 1} finds {short.found} "
            f"of {short.wanted} users of {short.group!r}. Fewer rounds or clients "
            "would fit, or --min_separation, which lets users come again"
            + "".join(f", or --on_exhausted={name}" for name in others),
            short,
        ) from None


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
