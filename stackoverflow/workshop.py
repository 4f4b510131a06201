"""Compiled training processes that several runs share.

Building and compiling a TFF process takes seconds. Runs that differ only in their
seeds, their clients or in what they save can use the same one: the seeds are put into
the state, not into the computation.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from stackoverflow import config as configs
from stackoverflow import model
from tff_agg import privacy

# What a run may have of its own without a computation of its own.
_OUTSIDE = (
    "store",
    "seed",
    "insecure_noise_seed",
    "max_sentences",
    "pds",
    "pds_period",
    "pds_schedule",
    "pds_split",
    "on_exhausted",
    "evaluate_every",
    "validation_sentences",
    "test_sentences",
    "state_every",
    "keep_last",
    "keep_every",
    "noise_cache",
)


class Workshop:
    """Keeps processes and the runtime that has compiled them.

    Example:
      >>> workshop = Workshop()
      >>> for seed in range(3):
      ...     training.run(config_with(seed), f'runs/{seed}', workshop=workshop)
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._processes: dict[Any, Any] = {}
        self._contexts: dict[Any, Any] = {}

    def process(
        self, config: configs.TrainConfig, sizes: model.ModelConfig, plan: privacy.Plan
    ) -> Any:
        """Returns the process of a configuration, built at most once."""
        reset: dict[str, Any] = {
            field.name: field.default
            for field in dataclasses.fields(config)
            if field.name in _OUTSIDE
        }
        same = dataclasses.replace(config, **reset)
        if (same, sizes) not in self._processes:
            self._processes[same, sizes] = _build(config, sizes, plan)
        return self._processes[same, sizes]

    @contextlib.contextmanager
    def running(self, config: configs.TrainConfig) -> Iterator[None]:
        """Runs TFF computations inside the block on the configuration's runtime."""
        import tensorflow_federated as tff

        from tff_agg import runtime

        key = (config.runtime, config.lanes)
        if key not in self._contexts:
            options = {} if config.lanes is None else {"lanes": config.lanes}
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


def first_state(process: Any, config: configs.TrainConfig, sizes: Any) -> Any:
    """Returns the state of round 0: weights by the seed, a noise seed of its own."""
    import tensorflow_federated as tff

    from tff_agg import process as process_lib

    state = process.initialize()
    weights = tuple(model.initial_weights(sizes, config.seed))
    state = process.set_model_weights(
        state, tff.learning.models.ModelWeights(weights, ())
    )
    if config.insecure_noise_seed is not None and "noise" in state.aggregator:
        state = process_lib.with_noise_seed(state, (config.insecure_noise_seed, 0))
    return state


def _build(
    config: configs.TrainConfig, sizes: model.ModelConfig, plan: privacy.Plan
) -> Any:
    """Builds the TFF process of a configuration."""
    from stackoverflow import group_trainer, trainer
    from tff_agg import process

    in_groups = config.group_size(sizes.num_parameters) > 1
    make: Any = (
        group_trainer.packed_group_trainer if in_groups else trainer.packed_trainer
    )
    return process.build_dp_ftrl_process(
        make(
            sizes,
            config.client_learning_rate,
            batch_size=config.batch_size,
            epochs=config.local_epochs,
        ),
        averager=config.build_averager(),
        plan=plan,
        server_learning_rate=config.server_learning_rate,
        server_momentum=config.server_momentum,
        nesterov=config.nesterov,
        step_from=config.step_from,
        on_non_finite=config.on_non_finite,
    )
