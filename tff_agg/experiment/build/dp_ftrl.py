"""What trains a task of users: DP-FTRL in TFF."""

import contextlib
import functools
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, TypedDict

from pds import sampler
from tff_agg import averaging, privacy
from tff_agg.aliases import JsonObject, Structure, Weights
from tff_agg.experiment.build import cohorts, start
from tff_agg.experiment.build.base import Build
from tff_agg.experiment.build.process import Cohort
from tff_agg.experiment.config import TrainConfig
from tff_agg.experiment.task import UserTask
from tff_agg.noise import seeds
from tff_agg.server import Optimiser, Schedule, ServerStep
from tff_agg.server import state as states

if TYPE_CHECKING:
    import tensorflow_federated as tff


class ClientArguments(TypedDict, total=False):
    """The arguments of `build_dp_ftrl_process` about the clients' training."""

    client_optimizer: float
    client_epochs: int
    grouped: bool


class ServerArguments(TypedDict):
    """The arguments of `build_dp_ftrl_process` about the server's step."""

    averager: averaging.Averager
    server_learning_rate: float | Schedule
    server_optimizer: Optimiser
    step_from: str
    on_non_finite: str
    noise_words: int | None


class FederatedBuild(Build[UserTask]):
    """All that a run of DP-FTRL needs."""

    @functools.cached_property
    def plan(self) -> privacy.Plan:
        """The plan of the configuration, with what preparing the data has released."""
        return self.task.config.build_plan(self.task.privacy_facts().releases)

    @functools.cached_property
    def unchecked_sampler(self) -> sampler.Sampler:
        """The sampler of the configuration."""
        return cohorts.build_sampler(self.task)

    @functools.cached_property
    def cohort(self) -> Callable[[int], Cohort]:
        """Returns the clients of a round, a pure function of its number."""
        self.sampler  # noqa: B018  Checked before anybody is read.
        return cohorts.reader(self.task, self.unchecked_sampler)

    @property
    def process_key(self) -> tuple[Hashable, ...]:
        """Which generator makes the noise follows from these."""
        config = self.task.config
        return config.noise_seed_is_known, config.runtime == "worker"

    @property
    def _noise_words(self) -> int | None:
        return _noise_words(self.task.config)

    def build_process(self) -> "tff.learning.templates.LearningProcess":
        """Builds the TFF process."""
        from tff_agg.federated import process, trainers

        config, model = self.task.config, self.task.model()
        local: ClientArguments = {}
        if not isinstance(model, trainers.Trainer):
            local = {
                "client_optimizer": config.client_learning_rate,
                "client_epochs": config.local_epochs,
                "grouped": self.task.group_size > 1,
            }
        return process.build_dp_ftrl_process(
            model,
            plan=self.plan,
            **server_arguments(
                config, config.build_server_step(self.task.num_parameters)
            ),
            **local,
        )

    def initialize(self, *, throw_away: bool = False) -> Structure:
        """Returns the state of round 0."""
        weights = start.first_weights(self.task)
        return first_state(self.process, weights, self._known_seed(throw_away))

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Inside the block TFF computations run on the configuration's runtime."""
        return self._compiled.running(self.task.config)

    def model_facts(self) -> JsonObject:
        """Returns what of the task a run's identity holds."""
        # Who trains side by side decides the last bits.
        return super().model_facts() | {"group_size": self.task.group_size}


def server_arguments(config: TrainConfig, step: ServerStep) -> ServerArguments:
    """Returns the arguments of a step, and what else the configuration says."""
    return {
        "averager": step.averager,
        "server_learning_rate": step.learning_rate,
        "server_optimizer": step.optimiser,
        "step_from": step.step_from,
        "on_non_finite": config.on_non_finite,
        "noise_words": _noise_words(config),
    }


def _noise_words(config: TrainConfig) -> int | None:
    """Returns how many words the noise's seed has; None as many as is usual."""
    # TFF's worker is another program: it cannot run the cipher.
    return seeds.KNOWN_WORDS if config.runtime == "worker" else None


def first_state(
    process: "tff.learning.templates.LearningProcess",
    weights: Weights,
    known_seed: int | None,
) -> Structure:
    """Returns the state of round 0.

    Args:
      process: The process.
      weights: The weights of round 0, in the order of the process's.
      known_seed: The noise's; None: a secret one, from the operating system.
    """
    import tensorflow_federated as tff

    state = process.initialize()
    state = process.set_model_weights(
        state, tff.learning.models.ModelWeights(tuple(weights.values()), ())
    )
    if known_seed is not None and states.seed_of(state) is not None:
        state = states.with_noise_seed(state, (known_seed, 0))
    return state
