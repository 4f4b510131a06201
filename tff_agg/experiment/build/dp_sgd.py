"""What trains a task of examples: DP-SGD in JAX."""

import functools
import hashlib
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import numpy as np

from pds.poisson_sampler import PoissonSampler
from tff_agg import noise, privacy
from tff_agg.aliases import Structure
from tff_agg.experiment.build import start
from tff_agg.experiment.build.base import Build
from tff_agg.experiment.build.cohorts import build_schedule
from tff_agg.experiment.build.process import Cohort
from tff_agg.experiment.task import ExampleTask
from tff_agg.noise import seeds

if TYPE_CHECKING:
    from tff_agg.sample.dp_sgd import DPSGDProcess


class SampledBuild(Build[ExampleTask]):
    """All that a run of DP-SGD needs."""

    is_drawn = True

    @functools.cached_property
    def plan(self) -> privacy.Plan:
        """The plan of DP-SGD; finds the noise where ε was given."""
        config = self.task.config
        drawn: Any = privacy.PoissonSampling.of(
            config.batch_size, self.task.population_size
        )
        if config.pds:
            drawn = self.unchecked_sampler.participation
        shares: dict[str, Any] = {
            "clip_norm": config.clip_norm,
            "cohort_size": config.batch_size,
            "rounds": config.rounds,
            "mechanism": noise.identity(),
            "participation": drawn,
            "delta": config.delta,
            "noise_seed_is_known": config.noise_seed_is_known,
        }
        if config.noise_multiplier is None:
            assert config.epsilon is not None
            return privacy.Plan.for_epsilon(config.epsilon, **shares)
        return privacy.Plan(
            noise_multiplier=config.noise_multiplier,
            claimed_epsilon=config.epsilon,
            **shares,
        )

    @functools.cached_property
    def unchecked_sampler(self) -> PoissonSampler:
        """How batches are drawn, with a secret that is thrown away.

        A run's own is in its state; whoever drives the process hands it to `cohort`.
        """
        config = self.task.config
        words = seeds.words_of(None, config.noise_seed_is_known)
        return PoissonSampler(
            groups=self.task.population(),
            batch_size=config.batch_size,
            rounds=config.rounds,
            seed=tuple(noise.fresh_seed(words).tolist()),
            schedule=build_schedule(config),
        )

    @functools.cached_property
    def cohort(self) -> Callable[..., Cohort]:
        """Returns the batch of a step, a pure function of step and secret."""
        self.sampler  # noqa: B018  Checked before anything is read.
        task, sampler = self.task, self.unchecked_sampler
        seeded = functools.lru_cache(1)(sampler.with_seed)
        first = np.zeros(sampler.population_size, bool)
        first[sampler.groups[0].users] = True

        def batch(round_number: int, seed: tuple[int, ...]) -> Cohort:
            chosen = seeded(seed).users(round_number)
            facts = {"examples": len(chosen)}
            if task.config.pds:
                name = f"{sampler.groups[0].name}_examples"
                facts[name] = int(first[chosen].sum())
            digests = task.example_digests[chosen].tobytes()
            return Cohort(
                # One name for all: thousands would take longer than the step.
                client_ids=[hashlib.blake2b(chosen.tobytes()).hexdigest()],
                data=task.batch(chosen, round_number),
                digest=hashlib.blake2b(digests, digest_size=16).hexdigest(),
                facts=facts,
            )

        return batch

    @property
    def process_key(self) -> tuple[Hashable, ...]:
        """The noise follows from data and shift, too."""
        plan = self.plan
        return (
            *(plan.noise_multiplier, plan.rounds, plan.participation),
            plan.noise_seed_is_known,
        )

    def build_process(self) -> "DPSGDProcess":
        """Builds the trainer."""
        from tff_agg.sample.dp_sgd import DPSGDProcess

        config = self.task.config
        return DPSGDProcess(
            self.task.sample_model(),
            plan=self.plan,
            averager=config.build_averager(),
            learning_rate=config.rate,
            momentum=config.momentum,
            nesterov=config.nesterov,
            step_from=config.step_origin,
            memory_budget=config.memory_budget << 20,
        )

    def initialize(self, *, throw_away: bool = False) -> Structure:
        """Returns the state of step 0."""
        known = self._known_seed(throw_away)
        seed = None if known is None else (known, 0)
        return self.process.initialize(start.first_weights(self.task), seed)
