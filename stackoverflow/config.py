"""The configuration of a training run: one frozen object, from which all parts follow.

Every field is a flag of `python -m stackoverflow.train`. The object is written to the
run's folder as it is, and a run goes on only under the very same configuration.
"""

import dataclasses
import typing
from typing import Any

from tff_agg import averaging, noise, privacy

AVERAGERS = ("last", "uta", "ema", "pda", "schedule_free")
MECHANISMS = ("identity", "tree", "honaker", "banded", "blt", "dense")
SCHEDULES = ("linear", "cosine", "step", "constant")

# Above so many parameters the arithmetic takes longer than the calls, and side by side
# gains nothing (docs/performance.md).
GROUP_PARAMETERS = 200_000
GROUP_USERS = 25


def _field(default: Any, text: str, choices: tuple[str, ...] | None = None) -> Any:
    """A field with what its flag says about it."""
    return dataclasses.field(
        default=default, metadata={"help": text, "choices": choices}
    )


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """What a training run is, in full; the defaults are the paper's at ε = 18.9.

    Example:
      >>> TrainConfig(store='data/so', averager='uta', k=3).build_averager().name
      'uta(k=3)'
    """

    # Data.
    store: str = _field("", "folder of the prepared token store")
    seed: int = _field(0, "seed of sampling, shuffling and initial weights")
    rounds: int = _field(2000, "training rounds")
    clients_per_round: int = _field(100, "clients in each round")
    max_sentences: int = _field(256, "sentences of a client used in a round, at most")
    group_users: int | None = _field(
        None,
        "users trained side by side, as one client of TFF's; 1: one by one; not given: "
        "25 for models of at most 200,000 parameters, else 1",
    )
    # Model.
    embedding_size: int = _field(96, "width of the embedding")
    lstm_size: int = _field(670, "units of the LSTM")
    # Optimisers.
    batch_size: int = _field(16, "sentences in a client's step")
    local_epochs: int = _field(1, "passes of a client over its sentences")
    client_learning_rate: float = _field(1.0, "learning rate of the clients' SGD")
    server_learning_rate: float = _field(0.5, "learning rate of the server")
    server_momentum: float = _field(0.95, "momentum of the server, 0 for none")
    nesterov: bool = _field(False, "whether the server's momentum is Nesterov's")
    # Aggregation of checkpoints in training.
    averager: str = _field("last", "what is broadcast", AVERAGERS)
    k: int = _field(3, "uta: how many checkpoints are averaged")
    ema_weight: float | None = _field(None, "ema: weight of the newest checkpoint")
    ema_decay: float | None = _field(None, "ema: weight of the old average")
    ema_warm_up: bool = _field(True, "ema: forget the first checkpoints sooner")
    gamma: float = _field(
        1.0, "pda and schedule_free: γ, the weight of later checkpoints"
    )
    beta: float = _field(
        0.9,
        "schedule_free: share of the average in what is broadcast, the iterate's"
        " is the rest; with step_from=iterate and server_momentum=0 only",
    )
    start_round: int = _field(0, "τ: the first step whose aggregate is broadcast")
    step_from: str = _field(
        "aggregate", "where the server's step starts", ("aggregate", "iterate")
    )
    # Privacy.
    clip_norm: float = _field(1.0, "L2 norm that a client's update is clipped to")
    noise_multiplier: float | None = _field(
        None, "noise relative to clip norm times the mechanism's whole sensitivity"
    )
    epsilon: float | None = _field(
        None, "instead of the noise multiplier: find the one that gives this ε"
    )
    delta: float = _field(1e-6, "δ of the guarantee")
    mechanism: str = _field("tree", "correlation of the noise", MECHANISMS)
    restart_every: int | None = _field(None, "restart the mechanism so often")
    bands: int = _field(8, "banded: how many bands")
    buffers: int = _field(3, "blt: how many buffers")
    noise_cache: str | None = _field(None, "where optimised mechanisms are kept")
    min_separation: int | None = _field(
        None, "rounds between two of a user, at least; not given: at most one round"
    )
    max_participations: int | None = _field(
        None, "with min_separation: rounds of a user, at most; not given: what fits"
    )
    insecure_noise_seed: int | None = _field(
        None, "a known noise seed, for tests: such a run has no privacy at all"
    )
    on_non_finite: str = _field(
        "error", "what to do with an update that is not finite", ("error", "drop")
    )
    # Periodic distribution shift.
    pds: bool = _field(False, "draw questions and answers by turns")
    pds_period: int = _field(200, "rounds in a period of the shift")
    pds_schedule: str = _field("linear", "shape of the shift", SCHEDULES)
    pds_split: str = _field(
        "binomial", "how a cohort is split between the groups", ("binomial", "fixed")
    )
    on_exhausted: str = _field(
        "error",
        "what to do when a group has no user left",
        ("error", "fill_from_other", "smaller_cohort"),
    )
    # Evaluation and saving.
    evaluate_every: int = _field(20, "rounds between validations")
    validation_sentences: int = _field(10_000, "sentences of the validation sample")
    test_sentences: int = _field(
        10_000, "sentences of the test sample; 0: leave the test data alone"
    )
    state_every: int = _field(10, "rounds between saves of the whole state")
    keep_last: int | None = _field(None, "newest checkpoints to keep; not given: all")
    keep_every: int | None = _field(None, "with keep_last: keep every n-th as well")
    # Runtime.
    runtime: str = _field("local", "what runs the rounds", ("local", "worker"))
    lanes: int | None = _field(None, "local: lanes; not given: one a core or GPU")

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
            if numeric and value is not None and not value >= 0:
                raise ValueError(f"{field.name} must not be negative; got {value!r}")
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1; got {value!r}")
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

    def build_plan(self) -> privacy.Plan:
        """Returns the privacy plan; calibrates the noise where ε was given."""
        rest: dict[str, Any] = {
            "clip_norm": self.clip_norm,
            "cohort_size": self.clients_per_round,
            "rounds": self.rounds,
            "mechanism": self.build_mechanism(),
            "participation": self.build_participation(),
            "delta": self.delta,
        }
        if self.epsilon is not None:
            return privacy.Plan.for_epsilon(self.epsilon, **rest)
        assert self.noise_multiplier is not None
        return privacy.Plan(noise_multiplier=self.noise_multiplier, **rest)

    def to_json(self) -> dict[str, Any]:
        """Returns the configuration as JSON values."""
        return dataclasses.asdict(self)


_AT_LEAST_ONE = (
    "rounds",
    "clients_per_round",
    "max_sentences",
    "group_users",
    "batch_size",
    "local_epochs",
    "k",
    "evaluate_every",
    "validation_sentences",
    "state_every",
    "keep_last",
    "keep_every",
    "pds_period",
    "restart_every",
    "lanes",
)

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


def differences(saved: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Returns a line for each field in which two configurations differ."""
    lines = []
    for name in sorted(saved.keys() | wanted.keys()):
        before, now = saved.get(name, "(absent)"), wanted.get(name, "(absent)")
        if before != now:
            lines.append(f"{name}: was {before!r}, is now {now!r}")
    return lines
