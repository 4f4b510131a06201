"""The clients of each round: who they are, and what they bring."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pds import sampler, schedule
from pds.groups import Group
from tff_agg import digests
from tff_agg.aliases import JsonObject
from tff_agg.experiment.build.process import Cohort
from tff_agg.experiment.config import RunConfig, TrainConfig
from tff_agg.experiment.task import Client, UserTask
from tff_agg.federated import grouping
from tff_agg.runtime import LaneData, disclosure
from tff_agg.runtime.lanes.facts import sources_digest

if TYPE_CHECKING:
    import tensorflow as tf

_SCHEDULES = {
    "linear": schedule.linear,
    "cosine": schedule.cosine,
    "step": schedule.step,
    "constant": lambda period: schedule.constant(0.5),
}


def build_schedule(config: RunConfig) -> schedule.Schedule | None:
    """Returns the periodic shift of a configuration; None without one."""
    return _SCHEDULES[config.pds_schedule](config.pds_period) if config.pds else None


def build_sampler(task: UserTask) -> sampler.Sampler:
    """Returns the sampler of a task's configuration: who takes part in which round.

    Raises:
      sampler.ExhaustedError: The users do not suffice; names the flags that matter.
    """
    config, groups = task.config, task.population()
    try:
        return _sampler(config, groups)
    except sampler.ExhaustedError as error:
        short = error.shortage
        sizes = ", ".join(f"{group.name}: {len(group.users):,}" for group in groups)
        others = [n for n in sampler.EXHAUSTED_MODES[1:] if n != config.on_exhausted]
        if not config.pds:
            others = [name for name in others if name != "fill_from_other"]
        raise sampler.ExhaustedError(
            f"the users ({sizes}) do not suffice for --rounds={config.rounds} with "
            f"--clients_per_round={config.clients_per_round}, where "
            f"{config.build_participation().describe()}: round {short.round + 1} finds "
            f"{short.found} of {short.wanted} users of {short.group!r}. Each of these "
            f"would fit: {', '.join(_what_fits(config, groups, short))}"
            + "".join(f", or --on_exhausted={name}" for name in others),
            short,
        ) from None


def _sampler(
    config: TrainConfig, groups: Sequence[Group], **changes: Any
) -> sampler.Sampler:
    config = dataclasses.replace(config, **changes)
    return sampler.Sampler(
        groups=groups,
        cohort_size=config.clients_per_round,
        rounds=config.rounds,
        participation=config.build_participation(),
        seed=config.seed,
        schedule=build_schedule(config),
        split=config.pds_split,
        when_exhausted=config.on_exhausted,
    )


def _what_fits(
    config: TrainConfig, groups: Sequence[Group], short: sampler.Shortage
) -> Iterator[str]:
    """Yields the largest values of single flags that the users suffice for."""

    def largest(below: int, **others: Any) -> int:
        """The most that fits; whatever is smaller does, too."""
        (name, rest), low = others.popitem(), 0
        while below - low > 1:
            value = (low + below) // 2
            try:
                _sampler(config, groups, **rest, **{name: value})
                low = value
            except ValueError:
                below = value
        return low

    if short.round:
        yield f"--rounds of at most {short.round}"
    if clients := largest(config.clients_per_round, clients_per_round={}):
        yield f"--clients_per_round of at most {clients}"
    if config.schema_name == "fixed_epoch_order":
        return
    now = config.min_separation or config.rounds
    # Only how far apart is asked: how often follows.
    free = {"max_participations": None, "participation": "min_separation"}
    if separation := largest(now, min_separation=free):
        often = (
            "" if config.max_participations is None else " without --max_participations"
        )
        yield (
            f"--min_separation of at most {separation}{often}, which lets users come "
            "again"
        )


class TaskSource:
    """Reads clients' data in a lane, wherever that is: opens the task's data there.

    Args:
      task: The task. Its class and its configuration are what is sent.
    """

    def __init__(self, task: UserTask):
        self._task: UserTask | None = task
        self._made_of = type(task), task.config
        self._expected = _data_and_code(task)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_task": None}

    def __call__(self, members: Sequence[tuple[int, str, int]]) -> "tf.data.Dataset":
        """Returns a client's data, given its users, each with group and round."""
        if self._task is None:
            task_class, config = self._made_of
            task = task_class(config)
            if _data_and_code(task) != self._expected:
                raise disclosure.PlainRuntimeError(
                    f"the data or the code of {task.package!r} are others on this "
                    "lane's machine than where the run was started"
                )
            self._task = task
        return _data(self._task, [self._task.client(*member) for member in members])


def _data_and_code(task: UserTask) -> tuple[str, str]:
    return task.fingerprint, sources_digest(task.package)


def _data(task: UserTask, clients: Sequence[Client]) -> "tf.data.Dataset":
    """Returns what the model trains on: one user's data, or those of a group."""
    return task.dataset(*clients) if task.group_size == 1 else task.group(clients)


def reader(task: UserTask, members: sampler.Sampler) -> Callable[[int], Cohort]:
    """Returns the clients of a round with their data, a pure function of the round."""
    first = members.groups[0].name
    # On a cluster lanes read for themselves; what is read here is for the ledger.
    source = TaskSource(task) if task.config.runtime == "ray" else None

    def cohort(round_number: int) -> Cohort:
        chosen = members.sample(round_number)
        keys = [(user, group, round_number) for user, group in chosen]
        clients = [task.client(*key) for key in keys]
        names = [client.name for client in clients]
        digest = hashlib.blake2b("\n".join(names).encode(), digest_size=6)
        facts: JsonObject = {
            "clients": len(chosen),
            "examples": sum(client.examples for client in clients),
            "cohort": digest.hexdigest(),
        }
        if task.config.pds:
            facts[f"{first}_clients"] = sum(group == first for _, group in chosen)
        arrays = (array for client in clients for array in client.arrays)
        digest_of_data = digests.of_arrays(arrays)
        costs = [client.work for client in clients]
        ids: Sequence[object] = names
        groups = [[i] for i in range(len(names))]
        if task.group_size > 1:
            groups = grouping.form_groups(costs, task.group_size)
            ids = [[names[i] for i in group] for group in groups]
        return Cohort(
            client_ids=ids,
            data=[
                _data(task, [clients[i] for i in group])
                if source is None
                else LaneData(source, [keys[i] for i in group])
                for group in groups
            ],
            digest=digest_of_data,
            costs=[sum(costs[i] for i in group) for group in groups],
            facts=facts,
        )

    return cohort
