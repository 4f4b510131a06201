"""Tasks whose unit of privacy is one example: DP-SGD in JAX.

The training loop, checkpoints, tables, recycling, tuning and uncertainty are those of
every task. What is left to say is data, model and evaluation.
"""

import abc
import dataclasses
import functools
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from pds.poisson_sampler import PoissonSampler
from tff_agg import noise, privacy
from tff_agg.experiment import cohorts
from tff_agg.experiment.classifier import ClassifierTask, Rows
from tff_agg.experiment.config import RunConfig
from tff_agg.experiment.run import loop
from tff_agg.experiment.task import Client, Weights
from tff_agg.fields import described
from tff_agg.recycling.outputs import Predictions

if TYPE_CHECKING:
    import jax

    from tff_agg.learning.dp_sgd import DPSGDProcess, State
    from tff_agg.learning.per_example import SampleModel

_BATCH = 1000


@dataclasses.dataclass(frozen=True)
class SampleConfig(RunConfig):
    """A run of DP-SGD: what every run has, and steps, batches and noise.

    Two of `rounds`, `noise_multiplier` and `epsilon` are given; the third follows. With
    all three, a run whose ε would be above the one given is refused.

    Example:
      >>> config = SampleConfig(noise_multiplier=8.0, epsilon=1.0)
      >>> config.for_population(50_000).rounds
      669
    """

    privacy_level: ClassVar[str] = "Example-level"

    rounds: int = described(
        0, "training steps; 0: as many as keep epsilon with noise_multiplier"
    )
    batch_size: int = described(
        4096, "expected size of a batch, which Poisson sampling draws", at_least=1
    )
    clip_norm: float = described(
        1.0, "L2 norm that an example's gradient is clipped to"
    )
    noise_multiplier: float | None = described(
        None, "standard deviation of a step's noise over the clip norm"
    )
    epsilon: float | None = described(
        None, "ε to keep: finds the noise, or with noise_multiplier the steps"
    )
    delta: float = described(1e-5, "δ of the guarantee")
    learning_rate: float = described(2.0, "learning rate")
    momentum: float = described(0.0, "momentum, 0 for none")
    nesterov: bool = described(False, "whether the momentum is Nesterov's")
    memory_budget: int = described(
        256, "MB for what a micro-batch holds for its examples", at_least=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_schedule_free("momentum")
        missing = [
            name for name in ("rounds", "noise_multiplier", "epsilon")
            if getattr(self, name) in (None, 0) and not self._is_no_noise(name)
        ]  # fmt: skip
        if len(missing) > 1:
            raise ValueError(
                "two of rounds, noise_multiplier (0 is no privacy) and epsilon are "
                f"needed; {' and '.join(missing)} are not given"
            )
        if not self.rounds and (self.pds or not self.noise_multiplier):
            reason = (
                "noise_multiplier is 0" if not self.pds else "pds moves the batches"
            )
            raise ValueError(f"rounds must be given where {reason}; it is 0")

    def _is_no_noise(self, name: str) -> bool:
        return name == "noise_multiplier" and self.noise_multiplier == 0

    @property
    def cohort_words(self) -> str:
        """Returns in words how many examples a step has."""
        return f"{self.batch_size:,} examples on average"

    def for_population(self, population_size: int) -> "SampleConfig":
        """Returns the configuration with its number of steps, for so many examples."""
        if self.rounds:
            return self
        plan = privacy.Plan.rounds_for_epsilon(
            self.epsilon or 0.0,
            noise_multiplier=self.noise_multiplier or 0.0,
            cohort_size=self.batch_size,
            mechanism=noise.identity(),
            participation=privacy.PoissonSampling.of(self.batch_size, population_size),
            delta=self.delta,
            clip_norm=self.clip_norm,
        )
        return dataclasses.replace(self, rounds=plan.rounds)


class SampleTask(ClassifierTask):
    """A task trained by DP-SGD, one example at a time to the accountant.

    A task of your own says what the examples are (`training_arrays`), what the model is
    (`sample_model`, `initial_weights`, `logits`) and what it is judged on
    (`evaluation_examples`).
    """

    config: SampleConfig

    def __init__(self, config: RunConfig):
        """Finds the number of steps where ε and the noise decide it."""
        super().__init__(config)
        self.config = self.config.for_population(len(self.users()))

    @abc.abstractmethod
    def training_arrays(self) -> Sequence[np.ndarray]:
        """Returns the training data, examples along the first axis of every array."""

    @abc.abstractmethod
    def sample_model(self) -> "SampleModel":
        """Returns the `SampleModel` that is trained; imports JAX."""

    @abc.abstractmethod
    def logits(
        self, weights: Mapping[str, "jax.Array"], features: "jax.Array"
    ) -> "jax.Array":
        """Returns one logit per class, [examples, classes]; in JAX, to be compiled."""

    def batch(self, examples: np.ndarray, round_number: int) -> list[np.ndarray]:
        """Returns what `sample_model` trains on, a pure function of its arguments.

        By default the examples as they are; augmentations are drawn here.
        """
        return [array[examples] for array in self.training_arrays()]

    def prepared(self, features: np.ndarray) -> np.ndarray:
        """Returns features as `logits` wants them; by default as they are."""
        return features

    # What the experiment layer asks for.

    def users(self) -> np.ndarray:
        """Returns the examples: the unit of privacy."""
        return np.arange(len(self.training_arrays()[0]))

    @functools.cached_property
    def _digests(self) -> np.ndarray:
        """A digest of every example."""
        arrays = [np.ascontiguousarray(array) for array in self.training_arrays()]
        flat = [array.reshape(len(array), -1).view(np.uint8) for array in arrays]
        found = [
            hashlib.blake2b(row, digest_size=16).digest()
            for row in np.concatenate(flat, axis=1)
        ]
        return np.frombuffer(b"".join(found), np.uint64).reshape(-1, 2)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of all examples, those of training first."""
        digest = hashlib.blake2b(self._digests.tobytes(), digest_size=16)
        for split in ("heldout", "test"):
            for name, arrays in sorted(self.evaluation_examples(split).items()):
                digest.update(name.encode())
                for array in arrays:
                    digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def build_plan(self) -> privacy.Plan:
        """Returns the plan of DP-SGD; finds the noise where ε was given."""
        config, size = self.config, len(self.users())
        drawn: Any = privacy.PoissonSampling.of(config.batch_size, size)
        if config.pds:
            drawn = self.build_sampler().participation
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

    def build_sampler(self) -> PoissonSampler:
        """Returns how batches are drawn, with a secret that is thrown away.

        A run's own is in its state; the process hands it to `reader`.
        """
        config = self.config
        return PoissonSampler(
            groups=self.population(),
            batch_size=config.batch_size,
            rounds=config.rounds,
            seed=(secrets.randbits(64), secrets.randbits(64)),
            schedule=cohorts.build_schedule(config),
        )

    def reader(self, members: PoissonSampler) -> Callable[..., loop.Cohort]:
        """Returns the batch of a step, a pure function of step and secret."""
        seeded = functools.lru_cache(1)(members.with_seed)
        first = np.zeros(members.population_size, bool)
        first[members.groups[0].users] = True

        def batch(round_number: int, seed: tuple[int, int]) -> loop.Cohort:
            chosen = seeded(seed).users(round_number)
            facts = {"examples": len(chosen)}
            if self.config.pds:
                name = f"{members.groups[0].name}_examples"
                facts[name] = int(first[chosen].sum())
            digests = self._digests[chosen].tobytes()
            return loop.Cohort(
                # One name for all: thousands would take longer than the step.
                client_ids=[hashlib.blake2b(chosen.tobytes()).hexdigest()],
                data=self.batch(chosen, round_number),
                digest=hashlib.blake2b(digests, digest_size=16).hexdigest(),
                facts=facts,
            )

        return batch

    def build_process(self, plan: privacy.Plan) -> "DPSGDProcess":
        """Returns the trainer."""
        from tff_agg.learning.dp_sgd import DPSGDProcess

        config = self.config
        return DPSGDProcess(
            self.sample_model(),
            plan=plan,
            averager=config.build_averager(),
            learning_rate=config.learning_rate,
            momentum=config.momentum,
            nesterov=config.nesterov,
            step_from=config.step_from,
            memory_budget=config.memory_budget << 20,
        )

    def first_state(self, process: Any) -> "State":
        """Returns the state of step 0: weights by the seed, a secret of its own."""
        known = self.config.insecure_noise_seed
        seed = None if known is None else (known, 0)
        return process.initialize(self.initial_weights(), seed)

    def predictor(self) -> Callable[[Weights, Rows], Predictions]:
        """Returns the predicted distributions."""
        import jax

        run = jax.jit(lambda weights, x: jax.nn.softmax(self.logits(weights, x)))

        def predict(weights: Weights, rows: Rows) -> Predictions:
            named = self.named(weights)
            found = [np.zeros((0, self.classes), np.float32)]
            for first in range(0, len(rows), _BATCH):
                part = rows.features[first : first + _BATCH]
                # One shape, compiled once.
                padded = np.zeros((_BATCH, *part.shape[1:]), part.dtype)
                padded[: len(part)] = part
                scores = run(named, self.prepared(padded))
                found.append(np.asarray(scores)[: len(part)])
            return Predictions(np.concatenate(found), rows.labels)

        return predict

    # What federated tasks have.

    @property
    def group_size(self) -> int:
        """There are no groups of users."""
        return 1

    def client(self, user: int, group: str, round_number: int) -> Client:
        """There are no clients."""
        raise ValueError(f"the task {self.package!r} has examples, no clients")

    def dataset(self, client: Client) -> NoReturn:
        """There are no clients."""
        raise ValueError(f"the task {self.package!r} has examples, no clients")

    def model(self) -> NoReturn:
        """There is no model of TFF's, so that canary audits do not apply."""
        raise ValueError(
            f"the task {self.package!r} is trained by DP-SGD on examples; this needs a "
            "task of DP-FTRL on users"
        )
