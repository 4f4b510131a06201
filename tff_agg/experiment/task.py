"""What an experiment has to know about a task.

A task is one folder. It says who the users are, what a client trains on, which model
is trained, and how models are judged; `tff_agg.experiment` does the rest: training
with checkpoints and resume, privacy report, tables, pictures, recycling of checkpoints,
tuning and uncertainty. `docs/your_own_task.md` builds one in about a hundred lines.
"""

import abc
import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NamedTuple,
    Protocol,
    Self,
    runtime_checkable,
)

import numpy as np

from pds import groups as populations
from tff_agg import fields, privacy
from tff_agg.aliases import Json, Weights
from tff_agg.experiment.config import RunConfig, TrainConfig
from tff_agg.experiment.sample_config import SampleConfig
from tff_agg.recycling.grids import Grids
from tff_agg.recycling.metrics import ACCURACY, Metric, OutputJudge, accuracy_judge
from tff_agg.recycling.outputs import Examples, Predict

if TYPE_CHECKING:
    import tensorflow as tf

    from tff_agg.federated.process import TrainableModel
    from tff_agg.sample.per_example import SampleModel

# A sample to evaluate on, by group; every example is in one group. What a group's
# examples are is between a task and its own `evaluator`.
Sample = Mapping[str, Any]
Scores = dict[str, dict[str, float]]
# The splits that models are judged on, each with the seed of its fixed sample.
SAMPLE_SEEDS = {"heldout": 1, "test": 2}


class Client(NamedTuple):
    """What one user brings to a round.

    Attributes:
      name: What errors call the user.
      arrays: The data, as numpy arrays with the examples along their first axis.
      examples: How many examples that is.
      cost: How much work they are, if not by their number: lanes are balanced by it,
        and users who train side by side have about the same.
    """

    name: str
    arrays: Sequence[np.ndarray]
    examples: int
    cost: int | None = None

    @property
    def work(self) -> int:
        """The cost, by default the number of examples."""
        return self.examples if self.cost is None else self.cost


class PrivacyFacts(NamedTuple):
    """What the privacy report has to know of data and model.

    Attributes:
      releases: What preparing the data has released under differential privacy.
      shared_users: By evaluation split, how many users of training are in it, too; None
        where that is not known.
      not_covered: What about the data no guarantee covers, in words.
      initial_weights: In words where the weights of round 0 come from; None where a
        task does not say: the report then names that as well.
    """

    releases: Sequence[privacy.Release] = ()
    shared_users: Mapping[str, int] | None = None
    not_covered: Sequence[str] = ()
    initial_weights: str | None = None


class Task(abc.ABC):
    """A learning problem, bound to one configuration: data, model, judgement.

    A task is made from its configuration and opens its data at once. It imports
    TensorFlow or JAX only where a method says so. Inherit from `UserTask` or
    `ExampleTask`, whichever the unit of privacy is.

    Class attributes:
      package: Its folder: `python -m {package} train` trains it.
      Config: The class of its configurations, a `RunConfig` with fields of its own: a
        `TrainConfig`, or a `SampleConfig` where the unit is an example.
      metrics: What models are judged by. The first is the one that is tuned.
      Data: A dataclass of fields that say what `train` prepares data from; None where
        nothing is prepared.
      no_vote: Why a majority vote over predicted labels does not apply; empty where it
        does.

    Attributes:
      config: The configuration.
      data: What `open_data` returned.
    """

    package: ClassVar[str]
    Config: ClassVar[type[RunConfig]]
    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY,)
    Data: ClassVar[type | None] = None
    no_vote: ClassVar[str] = ""

    config: Any
    data: Any

    def __init__(self, config: RunConfig, data: Any = None):
        """Binds data to a configuration.

        Args:
          config: The configuration.
          data: Its data where they are open already; see `with_config`.
        """
        self.config = config
        self.data = self.open_data() if data is None else data

    def open_data(self) -> Any:
        """Opens the data, as the fields say that the task itself adds to `config`."""
        return ()

    def with_config(self, config: RunConfig) -> Self:
        """Returns the task under another configuration.

        The data are opened again only where a field differs that the task itself has
        added: those of the library say nothing about data.

        Args:
          config: The other configuration.

        Example:
          other = task.with_config(dataclasses.replace(task.config, clip_norm=0.3))
          other.data is task.data  # True
        """
        if not self.has_data_of(config):
            return type(self)(config)
        other = type(self)(config, self.data)
        # Digests of a million examples take seconds.
        for name in {"example_digests", "fingerprint"} & self.__dict__.keys():
            other.__dict__[name] = self.__dict__[name]
        return other

    def has_data_of(self, config: RunConfig) -> bool:
        """Returns whether another configuration names the very data of this task."""
        return all(
            getattr(config, name) == getattr(self.config, name)
            for name in self._own_fields
        )

    @property
    def _own_fields(self) -> set[str]:
        """The fields that the library's configurations do not have."""
        library = [c for c in (TrainConfig, SampleConfig) if issubclass(self.Config, c)]
        known = {n for c in library for n in fields.names(c, *fields.ROLES)}
        return set(fields.names(self.Config, *fields.ROLES)) - known

    # The population and its data.

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """A digest of all data, stored with a run and compared when it goes on."""

    @abc.abstractmethod
    def users(self) -> Sequence[int] | np.ndarray:
        """Returns whom to train on, as different integers: the units of privacy."""

    def shifting_groups(self) -> Sequence[populations.Group]:
        """Returns the two populations that a periodic shift moves between."""
        raise ValueError(
            f"pds: the task {self.package!r} names no two groups to shift between"
        )

    def privacy_facts(self) -> PrivacyFacts:
        """Returns what the privacy report has to know; by default that is nothing."""
        return PrivacyFacts()

    # The model.

    @abc.abstractmethod
    def initial_weights(self) -> Weights:
        """Returns the weights of round 0 by name, a function of the seed."""

    @property
    @abc.abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The names and shapes of the weights, without TensorFlow."""

    @property
    def constants_digest(self) -> str:
        """A digest of the weights that are not trained; empty where there are none.

        They are no part of checkpoints: a run goes on only with the same ones.
        """
        return ""

    # Evaluation.

    @abc.abstractmethod
    def sample(self, split: str, examples: int, seed: int) -> Sample:
        """Draws a fixed sample of a split.

        Args:
          split: 'heldout' or 'test'.
          examples: How many examples, at most.
          seed: Seeds the drawing.

        Returns:
          The examples by group; all of them under 'all' where there are no groups.
        """

    @abc.abstractmethod
    def evaluator(self) -> Callable[[Weights, Sample], Scores]:
        """Returns `evaluate(weights, sample)`; imports TensorFlow.

        It returns the values of all metrics by group, and over the whole sample under
        'all'.
        """

    def trivial(self, sample: Sample) -> Scores:
        """Returns the scores of always the same answer, the best one for a sample.

        They stand beside the scores of models: what does not beat them has learnt
        nothing. By group as `evaluator` has them; nothing where a task says nothing.
        """
        del sample
        return {}

    # Prediction, for output aggregation and uncertainty.

    @property
    @abc.abstractmethod
    def classes(self) -> int:
        """How many classes are predicted."""

    @property
    def positions_per_example(self) -> int:
        """The most predictions that one example asks for."""
        return 1

    @abc.abstractmethod
    def predictor(self) -> Predict[Weights]:
        """Returns `predict(weights, examples)`; imports TensorFlow.

        The examples are a slice of `flat_sample`; predictions come in an order that
        does not depend on the weights.
        """

    def flat_sample(self, sample: Sample) -> Examples:
        """Returns a sample's examples in one array, to be sliced along its first axis.

        The default joins the groups' arrays.
        """
        return np.concatenate(list(sample.values()))

    def judge(self) -> OutputJudge:
        """Returns how combined outputs are judged, under the names of its own metrics.

        By default by the share of right labels, which is an accuracy whatever comes
        first among `metrics`.
        """
        return accuracy_judge()

    @classmethod
    def prepared(cls, config: Any, data: Any = None) -> Any:
        """Returns the configuration with its data prepared.

        Args:
          config: The configuration.
          data: A `Data`, where the task has one.
        """
        del data
        return config

    # Tuning.

    @classmethod
    def grids(cls, config: Any) -> Grids:
        """Returns what `tune` searches where nothing else is asked for.

        Args:
          config: Of the runs, of which a grid of τ may depend on the rounds.
        """
        del config
        return Grids()

    # Follows from the rest.

    @property
    def metric(self) -> Metric:
        """The metric that is tuned."""
        return self.metrics[0]

    @property
    def weight_names(self) -> tuple[str, ...]:
        """The names of the weights, in order."""
        return tuple(self.shapes)

    @property
    def num_parameters(self) -> int:
        """How many numbers the model has."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def population_size(self) -> int:
        """How many units there are to train on."""
        return len(self.users())

    def population(self) -> Sequence[populations.Group]:
        """Returns the groups that the configuration draws clients from."""
        if self.config.pds:
            return self.shifting_groups()
        return populations.everyone(self.users())

    def fixed_sample(self, split: str, examples: int) -> Sample:
        """Returns the sample of a split that every run of this task is judged on."""
        if split not in SAMPLE_SEEDS:
            names = ", ".join(SAMPLE_SEEDS)
            raise ValueError(f"split={split!r} must be one of {names}")
        return self.sample(split, examples, SAMPLE_SEEDS[split])

    def named(
        self, weights: Mapping[str, np.ndarray] | Sequence[np.ndarray]
    ) -> Weights:
        """Returns weights by name, whether they were stored with names or without.

        Raises:
          ValueError: Names or shapes are not those of this task's model.
        """
        if not isinstance(weights, Mapping):
            weights = dict(zip(self.weight_names, weights, strict=False))
        shapes = {name: np.shape(value) for name, value in weights.items()}
        if shapes != {name: tuple(shape) for name, shape in self.shapes.items()}:
            raise ValueError(
                f"weights of {self.package}: have the shapes {shapes}; this model has "
                f"{dict(self.shapes)}"
            )
        return {name: weights[name] for name in self.weight_names}


class UserTask(Task):
    """A task whose unit of privacy is a user: trained by DP-FTRL, in TFF.

    Class attributes:
      examples_field: The field of `Config` that limits how many examples a user brings
        to a round; empty where there is none.
      model_sizes: Settings of models from small to large, which `train --dry_run`
        compares; none where a task does not say.
    """

    examples_field: ClassVar[str] = ""
    model_sizes: ClassVar[Sequence[Mapping[str, Any]]] = ()

    def __init__(self, config: RunConfig, data: Any = None):
        """Finds what of the configuration follows from the users."""
        super().__init__(config, data)
        # Under a shift a whole cohort may have to come from one group.
        sizes = [len(group.users) for group in self.population()]
        self.config = self.config.for_population(min(sizes))

    @abc.abstractmethod
    def client(self, user: int, group: str, round_number: int) -> Client:
        """Returns what a user brings to a round, a pure function of its arguments.

        Args:
          user: One of `users()`.
          group: The group that the user was drawn from; 'all' without a shift.
          round_number: The round, from 0.
        """

    def heldout_users(self) -> Sequence[populations.Group]:
        """Returns users who are never trained on and whom `client` knows, by group."""
        return ()

    def scored_on(self, client: Client) -> Any:
        """Returns a client's data as `evaluator` takes those of a group."""
        return client.arrays[0] if len(client.arrays) == 1 else tuple(client.arrays)

    @abc.abstractmethod
    def model(self) -> "TrainableModel":
        """Returns what `build_dp_ftrl_process` trains; imports TensorFlow."""

    @property
    def group_size(self) -> int:
        """How many users train side by side, as one client of TFF's.

        One, where a task does not say how they do.
        """
        return self.config.group_users or 1

    @abc.abstractmethod
    def dataset(self, client: Client) -> "tf.data.Dataset":
        """Returns a client's data as the model trains on them; imports TensorFlow."""

    def heldout_clients(self, number: int) -> Sequence[Client]:
        """Returns clients with held-out data, on whom `train --dry_run` tries rates.

        Nobody, where a task says nothing.

        Args:
          number: How many, at most.
        """
        del number
        return ()

    def group(self, clients: Sequence[Client]) -> "tf.data.Dataset":
        """Returns the data of users who train side by side; imports TensorFlow."""
        raise ValueError(
            f"group_users={self.config.group_users}: the task {self.package!r} trains "
            "users one by one; leave the flag out"
        )


class ExampleTask(Task):
    """A task whose unit of privacy is an example: trained by DP-SGD, in JAX."""

    config: SampleConfig

    def __init__(self, config: RunConfig, data: Any = None):
        """Finds the number of steps where ε and the noise decide it."""
        super().__init__(config, data)
        self.config = self.config.for_population(self.population_size)

    @abc.abstractmethod
    def training_arrays(self) -> Sequence[np.ndarray]:
        """Returns the training data, examples along the first axis of every array."""

    @abc.abstractmethod
    def sample_model(self) -> "SampleModel":
        """Returns the `SampleModel` that is trained; imports JAX."""

    def batch(self, examples: np.ndarray, round_number: int) -> list[np.ndarray]:
        """Returns what `sample_model` trains on, a pure function of its arguments.

        By default the examples as they are; augmentations are drawn here.
        """
        return [array[examples] for array in self.training_arrays()]

    def users(self) -> np.ndarray:
        """Returns the numbers of the examples."""
        return np.arange(len(self.training_arrays()[0]))

    @functools.cached_property
    def example_digests(self) -> np.ndarray:
        """A digest of every example."""
        arrays = [np.ascontiguousarray(array) for array in self.training_arrays()]
        flat = [array.reshape(len(array), -1).view(np.uint8) for array in arrays]
        digests = [
            hashlib.blake2b(row, digest_size=16).digest()
            for row in np.concatenate(flat, axis=1)
        ]
        return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)


@runtime_checkable
class Exportable(Protocol):
    """A task whose models can be handed on: what `export` asks for, and only it."""

    def to_keras(self, weights: Weights) -> "tf.keras.Model":
        """Returns a Keras model with these weights; imports TensorFlow."""

    def export_texts(self) -> Mapping[str, str]:
        """Returns what a user of an exported model needs, as files by name."""

    def export_facts(self) -> Mapping[str, Json]:
        """Returns what a user of an exported model has to know, as JSON values."""
