"""What several runs share: compiled training processes, and data that are open.

Building and compiling a TFF process takes seconds. Runs that differ only in their
seeds, their clients or in what they save can use the same one: the seeds are put into
the state, not into the computation. Opening data and digesting them takes as long.
"""

import contextlib
from collections.abc import Callable, Hashable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tff_agg.experiment.build.base import Build
from tff_agg.experiment.build.process import Process
from tff_agg.experiment.config import RunConfig, TrainConfig
from tff_agg.experiment.task import Task

if TYPE_CHECKING:
    import tensorflow_federated as tff

    from tff_agg.runtime.lanes.pool import ClientRun


class Compiled:
    """Keeps processes, the runtimes that have compiled them, and data.

    Args:
      on_client: Called with a `ClientRun` for each client, where the runtime can tell.

    Example:
      with Compiled() as compiled:
        for seed in range(3):
          run(task_with(seed), f'runs/{seed}', compiled=compiled)
    """

    def __init__(self, on_client: Callable[["ClientRun"], None] | None = None) -> None:
        """Starts empty."""
        self._on_client = on_client
        self._tasks: list[Task] = []
        self._processes: dict[Hashable, Process] = {}
        self._contexts: dict[Hashable, tff.framework.SyncContext] = {}

    def task(self, task_class: type[Task], config: RunConfig) -> Task:
        """Returns a task under a configuration; the same data are opened once."""
        for known in self._tasks:
            if type(known) is task_class and known.has_data_of(config):
                return known.with_config(config)
        opened = task_class(config)
        # Digested before it is copied, so that the copies have it, too.
        opened.fingerprint  # noqa: B018
        self._tasks.append(opened)
        return opened

    def process(self, build: Build[Any]) -> Process:
        """Returns the process of a build, built at most once."""
        task = build.task
        key: Hashable = (
            type(task),
            task.config.process_key(),
            *task.shapes.items(),
            *build.process_key,
        )
        if key not in self._processes:
            self._processes[key] = build.build_process()
        return self._processes[key]

    @contextlib.contextmanager
    def running(self, config: TrainConfig) -> Iterator[None]:
        """Runs TFF computations inside the block on the configuration's runtime."""
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
        self._tasks.clear()

    def __enter__(self) -> Self:
        """Returns itself, to be closed at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()
