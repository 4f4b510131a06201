"""The configuration of a training run: one frozen object, from which all parts follow.

Every field is a flag of `python -m stackoverflow.train`. The object is written to the
run's folder as it is, and a run goes on only under the very same configuration.
"""

import dataclasses
from typing import Any

from tff_agg import averaging, privacy
from tff_agg.fields import check
from tff_agg.fields import described as _field

AVERAGERS = ("last", "uta", "ema", "pda")
SCHEDULES = ("linear", "cosine", "step", "constant")


@dataclasses.dataclass(frozen=True)
class TrainConfig(privacy.PrivacyRecipe):
    """What a training run is, in full; the defaults are the paper's at ε = 18.9.

    Rounds, clients, noise, participation and the server's momentum are fields of the
    privacy recipe, from which mechanism, schema and plan follow.

    Example:
      >>> config = TrainConfig(noise_multiplier=0.341, averager='uta', k=3)
      >>> config.build_averager().name
      'uta(k=3)'
    """

    # Data.
    store: str = _field("", "folder of the prepared token store")
    seed: int = _field(0, "seed of sampling, shuffling and initial weights")
    max_sentences: int = _field(256, "sentences of a client used in a round, at most")
    # Model.
    embedding_size: int = _field(96, "width of the embedding")
    lstm_size: int = _field(670, "units of the LSTM")
    # Optimisers.
    batch_size: int = _field(16, "sentences in a client's step")
    local_epochs: int = _field(1, "passes of a client over its sentences")
    client_learning_rate: float = _field(1.0, "learning rate of the clients' SGD")
    server_learning_rate: float = _field(0.5, "learning rate of the server")
    nesterov: bool = _field(False, "whether the server's momentum is Nesterov's")
    # Aggregation of checkpoints in training.
    averager: str = _field("last", "what is broadcast", AVERAGERS)
    k: int = _field(3, "uta: how many checkpoints are averaged")
    ema_weight: float | None = _field(None, "ema: weight of the newest checkpoint")
    ema_decay: float | None = _field(None, "ema: weight of the old average")
    ema_warm_up: bool = _field(True, "ema: forget the first checkpoints sooner")
    gamma: float = _field(1.0, "pda: γ, the weight of later checkpoints")
    start_round: int = _field(0, "τ: the first step whose aggregate is broadcast")
    step_from: str = _field(
        "aggregate", "where the server's step starts", ("aggregate", "iterate")
    )
    # Privacy.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, _AT_LEAST_ONE)
        if self.averager == "ema" and (self.ema_weight is None) == (
            self.ema_decay is None
        ):
            raise ValueError(
                "averager=ema takes exactly one of ema_weight (of the newest "
                f"checkpoint) and ema_decay (of the old average); got "
                f"{self.ema_weight!r} and {self.ema_decay!r}"
            )

    def build_averager(self) -> averaging.Averager:
        """Returns the averager of the server."""
        made = _BUILD_AVERAGER[self.averager](self)
        if not self.start_round:
            return made
        return averaging.starting_at(self.start_round, made)

    def to_json(self) -> dict[str, Any]:
        """Returns the configuration as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "TrainConfig":
        """Reads a configuration back, also one from before a field was added.

        Args:
          values: As in a run's config.json; absent fields have their defaults.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = values.keys() - known - _NO_SETTINGS
        if unknown:
            raise ValueError(
                f"the configuration has fields that are not known here: "
                f"{', '.join(sorted(unknown))}; a later version may have written it"
            )
        return cls(**{name: values[name] for name in values.keys() & known})


# What a config.json has besides fields: the data's fingerprint, and fields of old.
_NO_SETTINGS = {"store_fingerprint"}
_AT_LEAST_ONE = (
    "max_sentences",
    "batch_size",
    "local_epochs",
    "k",
    "evaluate_every",
    "validation_sentences",
    "state_every",
    "keep_last",
    "keep_every",
    "pds_period",
    "lanes",
)

_BUILD_AVERAGER = {
    "last": lambda c: averaging.last(),
    "uta": lambda c: averaging.uta(c.k),
    "ema": lambda c: averaging.ema(
        weight=c.ema_weight, decay=c.ema_decay, warm_up=c.ema_warm_up
    ),
    "pda": lambda c: averaging.pda(c.gamma),
}


def with_defaults(saved: dict[str, Any]) -> dict[str, Any]:
    """Returns a run's saved configuration, completed by fields that it lacks.

    Fields that were added since then have defaults that mean what was done before. The
    place of the data is none of them.
    """
    fields = dataclasses.fields(TrainConfig)
    return {f.name: f.default for f in fields if f.name != "store"} | saved


def differences(saved: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Returns a line for each field in which two configurations differ."""
    saved, lines = with_defaults(saved), []
    for name in sorted(saved.keys() | wanted.keys()):
        before, now = saved.get(name, "(absent)"), wanted.get(name, "(absent)")
        if before != now:
            lines.append(f"{name}: was {before!r}, is now {now!r}")
    return lines
