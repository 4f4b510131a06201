"""Compiled training processes that several runs share.

Building and compiling a TFF process takes seconds. Runs that differ only in their
seeds, their clients or in what they save can use the same one: the seeds are put into
the state, not into the computation.
"""

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, TypedDict

from tff_agg import averaging, privacy
from tff_agg.aliases import Structure
from tff_agg.experiment.config import RunConfig, TrainConfig
from tff_agg.experiment.run.loop import Process
from tff_agg.experiment.task import Task

if TYPE_CHECKING:
    import tensorflow_federated as tff

    from tff_agg.runtime.lanes import ClientRun


class ClientArguments(TypedDict, total=False):
    """The arguments of `build_dp_ftrl_process` about the clients' training."""

    client_optimizer: float
    client_epochs: int
    grouped: bool


class ServerArguments(TypedDict):
    """The arguments of `build_dp_ftrl_process` about the server's step."""

    averager: averaging.Averager
    server_momentum: float
    nesterov: bool
    step_from: str
    on_non_finite: str


class ProcessCache:
    """Keeps processes and the runtimes that have compiled them.

    Args:
      on_client: Called with a `ClientRun` for each client, where the runtime can tell.

    Example:
      cache = ProcessCache()
      for seed in range(3):
          train.run(task_with(seed), f'runs/{seed}', cache=cache)
    """

    def __init__(self, on_client: Callable[["ClientRun"], None] | None = None) -> None:
        """Starts empty."""
        self._on_client = on_client
        self._processes: dict[Hashable, Process] = {}
        self._contexts: dict[Hashable, tff.framework.SyncContext] = {}

    def process(self, task: Task, plan: privacy.Plan) -> Process:
        """Returns the process of a task, built at most once."""
        key: tuple[Hashable, ...] = (type(task), task.config.process_key())
        key += tuple(task.shapes.items())
        if plan.most_users is None:
            # Sampled batches: the noise follows from data and shift, too, which are no
            # part of the key.
            key += (plan.noise_multiplier, plan.rounds, plan.participation)
        if key not in self._processes:
            self._processes[key] = task.build_process(plan)
        return self._processes[key]

    @contextlib.contextmanager
    def running(self, config: RunConfig) -> Iterator[None]:
        """Runs TFF computations inside the block on the configuration's runtime."""
        if not isinstance(config, TrainConfig):
            # DP-SGD brings its own.
            yield
            return
        import tensorflow_federated as tff

        from tff_agg import runtime

        options = config.runtime_options()
        key = (config.runtime, *options.items())
        if key not in self._contexts:
            if self._on_client is not None and config.runtime != "worker":
                options["on_client"] = self._on_client
            self._contexts[key] = runtime.create(config.runtime, **options)
        with tff.framework.get_context_stack().install(self._contexts[key]):
            yield

    def close(self) -> None:
        """Ends whatever the runtimes have started."""
        for context in self._contexts.values():
            if (close := getattr(context, "close", None)) is not None:
                close()
        self._contexts.clear()
        self._processes.clear()


def first_state(
    process: "tff.learning.templates.LearningProcess", task: Task
) -> Structure:
    """Returns the state of round 0: weights by the seed, a noise seed of its own."""
    import tensorflow_federated as tff

    from tff_agg.learning import process as process_lib

    state = process.initialize()
    weights = tuple(task.initial_weights().values())
    state = process.set_model_weights(
        state, tff.learning.models.ModelWeights(weights, ())
    )
    known = task.config.insecure_noise_seed
    if known is not None and "noise" in state.aggregator:
        state = process_lib.with_noise_seed(state, (known, 0))
    return state


def build_dp_ftrl(
    task: Task, plan: privacy.Plan
) -> "tff.learning.templates.LearningProcess":
    """Builds the TFF process of a task."""
    from tff_agg.learning import group_work, process, trainers

    assert isinstance(plan, privacy.Plan)
    config, model = task.config, task.model()
    local: ClientArguments = {}
    if not isinstance(model, trainers.LocalTrainer | group_work.GroupTrainer):
        local = {
            "client_optimizer": config.client_learning_rate,
            "client_epochs": config.local_epochs,
            "grouped": task.group_size > 1,
        }
    return process.build_dp_ftrl_process(
        model,
        plan=plan,
        server_learning_rate=config.server_learning_rate,
        **server_arguments(config),
        **local,
    )


def server_arguments(config: TrainConfig) -> ServerArguments:
    """Returns how the server of DP-FTRL steps, but for its learning rate."""
    return {
        "averager": config.build_averager(),
        "server_momentum": config.server_momentum,
        "nesterov": config.nesterov,
        "step_from": config.step_from,
        "on_non_finite": config.on_non_finite,
    }
