"""The configuration of a training run: one frozen object, from which all parts follow.

Every field is a flag of a task's binary `train`. The object is written to the run's
folder as it is, and a run goes on only under the very same configuration. A task adds
fields of its own by inheriting from `TrainConfig`.
"""

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from tff_agg import averaging, noise, privacy

AVERAGERS = ("last", "uta", "ema", "pda", "schedule_free")
MECHANISMS = ("identity", "tree", "honaker", "banded", "blt", "dense")
SCHEDULES = ("linear", "cosine", "step", "constant")

# Above so many parameters the arithmetic takes longer than the calls, and side by side
# gains nothing (docs/performance.md).
GROUP_PARAMETERS = 200_000
GROUP_USERS = 25


def field(
    default: Any,
    text: str,
    choices: tuple[str, ...] | None = None,
    *,
    at_least: int | None = None,
    in_process: bool = True,
) -> Any:
    """Makes a field of a configuration, with what its flag says about it.

    Args:
      default: The default value.
      text: The help text of the flag.
      choices: The values allowed, for names.
      at_least: The smallest value allowed; None stands for 0 where it is a number.
      in_process: Whether the value enters the compiled training process. Runs that
        differ only in fields outside of it share one process.
    """
    return dataclasses.field(
        default=default,
        metadata={
            "help": text,
            "choices": choices,
            "at_least": at_least,
            "in_process": in_process,
        },
    )


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """What a training run is, in full; the defaults are the paper's at ε = 18.9.

    Example:
      >>> TrainConfig(noise_multiplier=1.0, averager='uta', k=3).build_averager().name
      'uta(k=3)'
    """

    # What the fields of earlier versions are called now, for old run folders and for
    # the flags of the same names.
    renamed: ClassVar[dict[str, str]] = {}

    seed: int = field(
        0, "seed of sampling, shuffling and initial weights", in_process=False
    )
    rounds: int = field(2000, "training rounds", at_least=1)
    clients_per_round: int = field(100, "clients in each round", at_least=1)
    group_users: int | None = field(
        None,
        "users trained side by side, as one client of TFF's; 1: one by one; not given: "
        "25 for models of at most 200,000 parameters that can, else 1",
        at_least=1,
    )
    # Optimisers.
    batch_size: int = field(16, "examples in a client's step", at_least=1)
    local_epochs: int = field(1, "passes of a client over its examples", at_least=1)
    client_learning_rate: float = field(1.0, "learning rate of the clients' SGD")
    server_learning_rate: float = field(0.5, "learning rate of the server")
    server_momentum: float = field(0.95, "momentum of the server, 0 for none")
    nesterov: bool = field(False, "whether the server's momentum is Nesterov's")
    # Aggregation of checkpoints in training.
    averager: str = field("last", "what is broadcast", AVERAGERS)
    k: int = field(3, "uta: how many checkpoints are averaged", at_least=1)
    ema_weight: float | None = field(None, "ema: weight of the newest checkpoint")
    ema_decay: float | None = field(None, "ema: weight of the old average")
    ema_warm_up: bool = field(True, "ema: forget the first checkpoints sooner")
    gamma: float = field(
        1.0, "pda and schedule_free: γ, the weight of later checkpoints"
    )
    beta: float = field(
        0.9,
        "schedule_free: share of the average in what is broadcast, the iterate's"
        " is the rest; with step_from=iterate and server_momentum=0 only",
    )
    start_round: int = field(0, "τ: the first step whose aggregate is broadcast")
    step_from: str = field(
        "aggregate", "where the server's step starts", ("aggregate", "iterate")
    )
    # Privacy.
    clip_norm: float = field(1.0, "L2 norm that a client's update is clipped to")
    noise_multiplier: float | None = field(
        None, "noise relative to clip norm times the mechanism's whole sensitivity"
    )
    epsilon: float | None = field(
        None, "instead of the noise multiplier: find the one that gives this ε"
    )
    delta: float = field(1e-6, "δ of the guarantee")
    mechanism: str = field("tree", "correlation of the noise", MECHANISMS)
    restart_every: int | None = field(
        None, "restart the mechanism so often", at_least=1
    )
    bands: int = field(8, "banded: how many bands")
    buffers: int = field(3, "blt: how many buffers")
    noise_cache: str | None = field(
        None, "where optimised mechanisms are kept", in_process=False
    )
    min_separation: int | None = field(
        None, "rounds between two of a user, at least; not given: at most one round"
    )
    max_participations: int | None = field(
        None, "with min_separation: rounds of a user, at most; not given: what fits"
    )
    insecure_noise_seed: int | None = field(
        None,
        "a known noise seed, for tests: such a run has no privacy at all",
        in_process=False,
    )
    on_non_finite: str = field(
        "drop", "what to do with an update that is not finite", ("drop", "error")
    )
    # Periodic distribution shift.
    pds: bool = field(False, "draw clients from two groups by turns", in_process=False)
    pds_period: int = field(
        200, "rounds in a period of the shift", at_least=1, in_process=False
    )
    pds_schedule: str = field(
        "linear", "shape of the shift", SCHEDULES, in_process=False
    )
    pds_split: str = field(
        "binomial",
        "how a cohort is split between the groups",
        ("binomial", "fixed"),
        in_process=False,
    )
    on_exhausted: str = field(
        "error",
        "what to do when a group has no user left",
        ("error", "fill_from_other", "smaller_cohort"),
        in_process=False,
    )
    # Evaluation and saving.
    evaluate_every: int = field(
        20, "rounds between validations", at_least=1, in_process=False
    )
    validation_examples: int = field(
        10_000, "examples of the validation sample", at_least=1, in_process=False
    )
    test_examples: int = field(
        10_000, "examples of the test sample; 0: leave the test data alone",
        in_process=False,
    )  # fmt: skip
    keep_last: int | None = field(
        None, "newest checkpoints to keep; not given: all", at_least=1,
        in_process=False,
    )  # fmt: skip
    keep_every: int | None = field(
        None, "with keep_last: keep every n-th as well", at_least=1, in_process=False
    )
    # Runtime.
    runtime: str = field("local", "what runs the rounds", ("local", "worker"))
    lanes: int | None = field(
        None, "local: lanes; not given: one per core or GPU", at_least=1
    )

    def __post_init__(self):
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value, hint = getattr(self, field.name), hints[field.name]
            choices = field.metadata["choices"]
            if choices and value not in choices:
                raise ValueError(
                    f"{field.name} must be one of {', '.join(choices)}; got {value!r}"
                )
            numeric = hint in (int, float, int | None, float | None)
            least = field.metadata["at_least"] or 0
            if numeric and value is not None and not value >= least:
                wanted = f"at least {least}" if least else "at least 0"
                raise ValueError(f"{field.name} must be {wanted}; got {value!r}")
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise ValueError(
                "give exactly one of noise_multiplier and epsilon (noise_multiplier=0 "
                f"trains without privacy); got {self.noise_multiplier!r} and "
                f"{self.epsilon!r}"
            )
        if self.max_participations is not None and self.min_separation is None:
            raise ValueError(
                f"max_participations={self.max_participations} needs min_separation"
            )
        if self.averager == "ema" and (self.ema_weight is None) == (
            self.ema_decay is None
        ):
            raise ValueError(
                "averager=ema takes exactly one of ema_weight (of the newest "
                f"checkpoint) and ema_decay (of the old average); got "
                f"{self.ema_weight!r} and {self.ema_decay!r}"
            )
        if self.averager == "schedule_free" and (
            self.step_from != "iterate" or self.server_momentum
        ):
            raise ValueError(
                "averager=schedule_free goes with step_from=iterate and "
                f"server_momentum=0; got step_from={self.step_from} and "
                f"server_momentum={self.server_momentum!r}"
            )
        if not self.beta <= 1:
            raise ValueError(f"beta must be at most 1; got {self.beta!r}")

    def build_averager(self) -> averaging.Averager:
        """Returns the averager of the server."""
        made = _BUILD_AVERAGER[self.averager](self)
        if not self.start_round:
            return made
        return averaging.starting_at(self.start_round, made)

    def group_size(self, num_parameters: int) -> int:
        """Returns how many users train side by side, given the size of the model.

        The choice decides the order of additions and with it the last bits of a run.
        It follows from the configuration and the model alone, never from the machine.
        """
        if self.group_users is not None:
            return self.group_users
        return GROUP_USERS if num_parameters <= GROUP_PARAMETERS else 1

    def build_participation(self) -> privacy.Participation:
        """Returns the participation schema that sampler and accountant share."""
        if self.min_separation is None:
            return privacy.AtMostOnce()
        return privacy.MinSeparation(self.min_separation, self.max_participations)

    def build_mechanism(self) -> noise.Mechanism:
        """Returns the mechanism that correlates the noise."""
        rounds = min(self.restart_every or self.rounds, self.rounds)
        made = _BUILD_MECHANISM[self.mechanism](self, rounds)
        return noise.restart_every(made, rounds) if rounds < self.rounds else made

    def build_plan(self, releases: Sequence[privacy.Release] = ()) -> privacy.Plan:
        """Returns the privacy plan; calibrates the noise where ε was given.

        Args:
          releases: What was released about the users before training, such as a
            vocabulary.
        """
        rest: dict[str, Any] = {
            "clip_norm": self.clip_norm,
            "cohort_size": self.clients_per_round,
            "rounds": self.rounds,
            "mechanism": self.build_mechanism(),
            "participation": self.build_participation(),
            "delta": self.delta,
            "releases": tuple(releases),
            "noise_seed_is_known": self.insecure_noise_seed is not None,
        }
        if self.epsilon is not None:
            return privacy.Plan.for_epsilon(self.epsilon, **rest)
        assert self.noise_multiplier is not None
        return privacy.Plan(noise_multiplier=self.noise_multiplier, **rest)

    def to_json(self) -> dict[str, Any]:
        """Returns the configuration as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        """Reads a configuration back, also one that an earlier version wrote.

        What the class does not know is left out; what was not written has its default.
        """
        values = {cls.renamed.get(name, name): value for name, value in saved.items()}
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})

    def process_key(self) -> Self:
        """Returns this configuration with defaults outside the compiled process."""
        reset: dict[str, Any] = {
            field.name: field.default
            for field in dataclasses.fields(self)
            if not field.metadata["in_process"]
        }
        return dataclasses.replace(self, **reset)


_BUILD_AVERAGER = {
    "last": lambda c: averaging.last(),
    "uta": lambda c: averaging.uta(c.k),
    "ema": lambda c: averaging.ema(
        weight=c.ema_weight, decay=c.ema_decay, warm_up=c.ema_warm_up
    ),
    "pda": lambda c: averaging.pda(c.gamma),
    "schedule_free": lambda c: averaging.schedule_free(c.beta, c.gamma),
}

_BUILD_MECHANISM = {
    "identity": lambda c, rounds: noise.identity(),
    "tree": lambda c, rounds: noise.tree(),
    "honaker": lambda c, rounds: noise.tree(estimator="honaker", rounds=rounds),
    "banded": lambda c, rounds: noise.banded(
        rounds, min(c.bands, rounds), **_optimised_for(c, rounds)
    ),
    "blt": lambda c, rounds: noise.blt(rounds, c.buffers, **_optimised_for(c, rounds)),
    "dense": lambda c, rounds: noise.dense(
        rounds, momentum_decay=c.server_momentum, cache=c.noise_cache
    ),
}


def _optimised_for(config: TrainConfig, rounds: int) -> dict[str, Any]:
    """What an optimised mechanism is optimised for: the run's own schema and step."""
    schema = config.build_participation()
    return {
        "separation": min(schema.spacing(config.rounds), rounds),
        "participations": schema.largest(config.rounds)
        if rounds == config.rounds
        else 1,
        "momentum_decay": config.server_momentum,
        "cache": config.noise_cache,
    }
