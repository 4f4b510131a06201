"""All that a run needs, made from a task when it is asked for."""

import abc
import contextlib
import functools
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from tff_agg import fields, privacy
from tff_agg.aliases import JsonObject, Structure
from tff_agg.experiment.build.process import Cohort, Process, by_state
from tff_agg.experiment.task import Task
from tff_agg.noise import seeds

if TYPE_CHECKING:
    from tff_agg.experiment.build.compiled import Compiled

T = TypeVar("T", bound=Task)


class Build(abc.ABC, Generic[T]):
    """Plan, sampler, cohorts and process of a task.

    The cheap parts can be had without the others: a plan without a look at the users,
    a sampler without TensorFlow.

    Args:
      task: The task, bound to its configuration.
      compiled: Where processes are shared.
    """

    #: Whether clients are drawn by chance, with the secret that is in a run's state.
    is_drawn: ClassVar[bool] = False

    def __init__(self, task: T, compiled: "Compiled"):
        """Builds nothing yet."""
        self.task, self._compiled = task, compiled

    @functools.cached_property
    @abc.abstractmethod
    def plan(self) -> privacy.Plan:
        """The privacy plan."""

    @functools.cached_property
    def sampler(self) -> privacy.Sampler:
        """Who takes part in which round, checked against the plan."""
        sampler = self.unchecked_sampler
        self.plan.check_sampler(sampler)
        return sampler

    @functools.cached_property
    @abc.abstractmethod
    def unchecked_sampler(self) -> Any:
        """Who takes part in which round, as the task's configuration says."""

    @functools.cached_property
    @abc.abstractmethod
    def cohort(self) -> Callable[..., Cohort]:
        """Returns the clients of a round, a pure function; see `clients_of`."""

    @property
    def clients_of(self) -> Callable[[int, Structure], Cohort]:
        """Returns the clients of a round by its number and the state before it."""
        return by_state(self.cohort, self.is_drawn)

    @functools.cached_property
    def process(self) -> Process:
        """What computes the rounds; shared with other builds of this process."""
        return self._compiled.process(self)

    @property
    def process_key(self) -> tuple[Hashable, ...]:
        """What decides the process, besides configuration, task and shapes."""
        return ()

    @abc.abstractmethod
    def build_process(self) -> Process:
        """Builds the process; ask for `process` instead."""

    @abc.abstractmethod
    def initialize(self, *, throw_away: bool = False) -> Structure:
        """Returns the state of round 0: weights by the seed, a noise seed of its own.

        Args:
          throw_away: Whether nothing computed from it will be kept. It then gets
            another noise seed than the run's, even if that is known.
        """

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Inside the block the process runs where the configuration says."""
        return contextlib.nullcontext()

    @property
    def cipher(self) -> str | None:
        """Which cipher makes the noise; None where none does."""
        words = seeds.words_of(None, self.plan.noise_seed_is_known, self._noise_words)
        if words < seeds.CIPHER_WORDS or not self.plan.noise_multiplier:
            return None
        return seeds.generator_name(words)

    @property
    def _noise_words(self) -> int | None:
        """How many words the noise's seed has; None as many as is usual."""
        return None

    def model_facts(self) -> JsonObject:
        """Returns what of the task a run's identity holds."""
        constants = self.task.constants_digest
        return {
            "task": self.task.package,
            "shapes": {name: list(shape) for name, shape in self.task.shapes.items()},
            "settings": fields.values(self.task.config, "process", "cohort", "seed"),
            **({"constants": constants} if constants else {}),
        }

    def _known_seed(self, throw_away: bool) -> int | None:
        return None if throw_away else self.task.config.insecure_noise_seed
