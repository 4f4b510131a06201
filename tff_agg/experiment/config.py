"""The configuration of a training run: one frozen object, from which all parts follow.

Every field is a flag of a task's command `train`. The object is written to the run's
folder as it is, and a run goes on only under the very same configuration. A task adds
fields of its own by inheriting from `TrainConfig`.
"""

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Self

from tff_agg import averaging, checks, fields, privacy
from tff_agg.aliases import JsonObject
from tff_agg.fields import described
from tff_agg.privacy import shapes
from tff_agg.privacy.signal import Signal
from tff_agg.server import Schedule, ServerStep, optimisers, schedules, server_step

AVERAGERS = ("last", "uta", "ema", "pda", "schedule_free")
SCHEDULES = ("linear", "cosine", "step", "constant")
SERVER_OPTIMIZERS = ("momentum", "adam", "yogi", "adagrad")

# With which settings fields have an effect.
_UTA = ("averager", ("uta",))
_EMA = ("averager", ("ema",))
_AVERAGED = ("averager", AVERAGERS[1:])
_SHIFTED = ("pds", (True,))
_SQUARES = ("server_optimizer", SERVER_OPTIMIZERS[1:])
_SQUARES_FADE = ("server_optimizer", ("adam", "yogi"))

# How far a round moves the model at most where no rate is given, over the cube root of
# the number of its parameters, and how much noise a weight may gather over the run:
# what models of 193 to 474,668 parameters liked best, or nearly (docs/first_run.md).
STEP = 0.17
WEIGHT_NOISE = 0.4

# Above so many parameters the arithmetic takes longer than the calls, and side by side
# gains nothing (docs/performance.md).
GROUP_PARAMETERS = 200_000
GROUP_USERS = 25


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """What every run has, whatever trains it: averager, shift, evaluation, saving.

    A run of DP-FTRL is a `TrainConfig`, one of DP-SGD a `SampleConfig`.
    """

    # What reports call the unit of privacy.
    privacy_level: ClassVar[str] = "User-level"

    rounds: int = described(1000, "training rounds", at_least=1)
    delta: float = described(1e-6, "δ of the guarantee")
    seed: int = described(
        0, "seed of sampling, shuffling and initial weights", role="seed"
    )
    start_from: str | None = described(
        None, "a warm start: the folder of a run whose newest model is that of round 0"
    )
    # Aggregation of checkpoints in training.
    averager: str = described("last", "what is broadcast", AVERAGERS)
    k: int = described(
        3, "uta: how many checkpoints are averaged", at_least=1, only_with=_UTA
    )
    ema_weight: float | None = described(
        None, "ema: weight of the newest checkpoint", only_with=_EMA
    )
    ema_decay: float | None = described(
        None, "ema: weight of the old average", only_with=_EMA
    )
    ema_warm_up: bool = described(
        True, "ema: β, the weight given, is at most (1 + t)/(10 + t)", only_with=_EMA
    )
    gamma: float = described(
        8.0,
        "pda and schedule_free: γ, the weight of later checkpoints",
        only_with=("averager", ("pda", "schedule_free")),
    )
    beta: float = described(
        0.9,
        "schedule_free: share of the average in what is broadcast, the iterate's"
        " is the rest; without momentum, and with steps from the iterate, only",
        only_with=("averager", ("schedule_free",)),
    )
    start_round: int = described(
        0, "τ: the first step whose aggregate is broadcast", only_with=_AVERAGED
    )
    step_from: str | None = described(
        None,
        "where the server's step starts; not given: iterate for schedule_free, else "
        "aggregate",
        ("aggregate", "iterate"),
        only_with=_AVERAGED,
    )
    # Privacy.
    insecure_noise_seed: int | None = described(
        None,
        "a known noise seed, for tests: such a run has no privacy at all",
        role="seed",
    )
    # Periodic distribution shift.
    pds: bool = described(False, "draw clients from two groups by turns", role="cohort")
    pds_period: int = described(
        200, "rounds in a period of the shift", at_least=1, role="cohort",
        only_with=_SHIFTED,
    )  # fmt: skip
    pds_schedule: str = described(
        "linear", "shape of the shift", SCHEDULES, role="cohort",
        only_with=_SHIFTED,
    )  # fmt: skip
    # Evaluation and saving.
    evaluate_every: int = described(
        20, "rounds between validations", at_least=1, role="watching"
    )
    validation_examples: int = described(
        10_000, "examples of the validation sample", at_least=1, role="watching"
    )
    test_examples: int = described(
        10_000, "examples of the test sample; 0: leave the test data alone",
        role="watching",
    )  # fmt: skip
    keep_last: int = described(
        200,
        "newest checkpoints to keep: UTA, OPA, OMV and error bars use no more; 0: all",
        role="watching",
    )
    keep_every: int = described(
        10,
        "keep every n-th of the older ones, too: EMA and PDA fold over what is kept; "
        "0: none of them",
        role="watching",
    )

    def __post_init__(self) -> None:
        fields.check(self)
        checks.delta(self.delta)
        if self.averager == "ema" and (self.ema_weight is None) == (
            self.ema_decay is None
        ):
            raise ValueError(
                "averager=ema takes exactly one of ema_weight (of the newest "
                f"checkpoint) and ema_decay (of the old average); got "
                f"{self.ema_weight!r} and {self.ema_decay!r}"
            )
        if not self.beta <= 1:
            raise ValueError(f"beta must be at most 1; got {self.beta!r}")

    def check_schedule_free(self, name: str) -> None:
        """Refuses `schedule_free` with what would make it another method.

        Args:
          name: The field that is the momentum.
        """
        momentum = getattr(self, name)
        if self.averager == "schedule_free" and (
            self.step_origin != "iterate" or momentum
        ):
            raise ValueError(
                f"averager=schedule_free goes with step_from=iterate and {name}=0; got "
                f"step_from={self.step_origin} and {name}={momentum!r}. Other "
                f"averagers: {', '.join(a for a in AVERAGERS if a != 'schedule_free')}"
            )

    @property
    def step_origin(self) -> str:
        """Where the server's step starts: as given, or as the averager needs it."""
        if self.step_from is not None:
            return self.step_from
        return "iterate" if self.averager == "schedule_free" else "aggregate"

    def without_effect(self, given: Collection[str]) -> list[str]:
        """Returns which of the given fields change nothing; a text for each."""
        found = fields.without_effect(self, given)
        if "keep_every" in given and self.keep_every and not self.keep_last:
            found.append(
                f"keep_every={self.keep_every} needs keep_last; it is 0, which keeps "
                "everything"
            )
        return found

    @property
    def cohort_words(self) -> str:
        """What a round works on."""
        raise NotImplementedError

    def build_averager(self) -> averaging.Averager:
        """Returns the averager of the server."""
        made = _BUILD_AVERAGER[self.averager](self)
        if not self.start_round:
            return made
        return averaging.starting_at(self.start_round, made)

    @property
    def noise_seed_is_known(self) -> bool:
        """Whether anybody could subtract the noise."""
        return self.insecure_noise_seed is not None

    def to_json(self) -> JsonObject:
        """Returns the configuration as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        """Reads a configuration back.

        Args:
          saved: As in a run's config.json, where the data's fingerprint stands beside
            the fields.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := saved.keys() - known - {"data_fingerprint"}:
            raise ValueError(
                "the configuration has fields that are not known here: "
                f"{', '.join(sorted(unknown))}; a later version may have written it"
            )
        return cls(**{name: value for name, value in saved.items() if name in known})

    def process_key(self) -> tuple[tuple[str, Any], ...]:
        """Returns what decides what is compiled: the fields of the process."""
        return tuple(fields.values(self, "process").items())


@dataclasses.dataclass(frozen=True)
class TrainConfig(RunConfig, privacy.PrivacyRecipe):
    """What a training run is, in full; the defaults are the best that we know.

    They were found by runs (docs/first_run.md); `presets` names other recipes.

    Rounds, clients, noise, participation and the server's momentum are fields of the
    privacy recipe, from which mechanism, schema and plan follow.

    Example:
      >>> TrainConfig(noise_multiplier=1.0, averager='uta', k=3).build_averager().name
      'uta(k=3)'
    """

    averager: str = described("schedule_free", "what is broadcast", AVERAGERS)
    evaluate_every: int = described(
        50, "rounds between validations", at_least=1, role="watching"
    )
    validation_examples: int = described(
        2000, "examples of the validation sample", at_least=1, role="watching"
    )
    group_users: int | None = described(
        None,
        "users trained side by side, as one client of TFF's; 1: one by one; not given: "
        "25 for models of at most 200,000 parameters that can, else 1",
        at_least=1,
    )
    # Optimisers.
    batch_size: int = described(4, "examples in a client's step", at_least=1)
    local_epochs: int = described(1, "passes of a client over its examples", at_least=1)
    client_learning_rate: float = described(0.3, "learning rate of the clients' SGD")
    server_learning_rate: float | None = described(
        None,
        f"learning rate of the server; not given: {STEP:g} × (1 - server_momentum) × "
        "the cube root of the parameters' number / clip_norm, or less where that puts "
        f"noise of more than {WEIGHT_NOISE:g} into each weight; with another optimiser "
        "than momentum it must be",
    )
    server_rate_schedule: str = described(
        "constant", "how the server's learning rate falls to zero", schedules.KINDS
    )
    server_warm_up: int = described(
        0, "in how many first rounds the server's learning rate rises"
    )
    server_optimizer: str = described(
        "momentum", "the server's; server_momentum is Adam's and Yogi's β₁, too",
        SERVER_OPTIMIZERS,
    )  # fmt: skip
    server_beta_2: float = described(
        0.99, "adam, yogi: what is left of the average of squares after a round",
        only_with=_SQUARES_FADE,
    )  # fmt: skip
    server_epsilon: float = described(
        1e-3, "adam, yogi, adagrad: what is added to the root of the squares",
        only_with=_SQUARES,
    )  # fmt: skip
    nesterov: bool = described(
        False, "whether the server's momentum is Nesterov's",
        only_with=("server_optimizer", ("momentum",)),
    )  # fmt: skip
    on_non_finite: str = described(
        "drop", "what to do with an update that is not finite", ("drop", "error")
    )
    pds_split: str = described(
        "binomial",
        "how a cohort is split between the groups",
        ("binomial", "fixed"),
        role="cohort",
        only_with=_SHIFTED,
    )
    on_exhausted: str = described(
        "error",
        "what to do when a group has no user left",
        ("error", "fill_from_other", "smaller_cohort"),
        role="cohort",
    )
    # Runtime.
    runtime: str = described(
        "local", "what runs the rounds", ("local", "ray", "worker"), role="place"
    )
    lanes: int | None = described(
        None, "local and ray: lanes; not given: one per core or GPU", at_least=1,
        role="place", only_with=("runtime", ("local", "ray")),
    )  # fmt: skip
    ray_address: str | None = described(
        None, "ray: the cluster, 'host:port' or 'auto'; not given: this machine alone",
        role="place", only_with=("runtime", ("ray",)),
    )  # fmt: skip
    cpus_per_lane: float = described(
        1.0, "ray: CPUs of the cluster that a lane takes",
        role="place", only_with=("runtime", ("ray",)),
    )  # fmt: skip
    gpus_per_lane: float | None = described(
        None, "GPUs that a lane takes, such as 0.5 where two share one; not given: "
        "one of this machine's, if it has any (local), none of the cluster's (ray)",
        role="place", only_with=("runtime", ("local", "ray")),
    )  # fmt: skip
    gpu_memory_mb: float | None = described(
        None, "the memory of a GPU that a lane may take, in MB; not given: as needed",
        role="place", only_with=("runtime", ("local", "ray")),
    )  # fmt: skip

    def __post_init__(self) -> None:
        privacy.PrivacyRecipe.__post_init__(self)
        super().__post_init__()
        self.check_schedule_free("server_momentum")
        if self.server_optimizer != "momentum" and self.server_learning_rate is None:
            raise ValueError(
                f"server_optimizer={self.server_optimizer} needs server_learning_rate: "
                "how far its steps go does not follow from the clip norm"
            )
        if self.server_optimizer == "adagrad" and self.server_momentum:
            raise ValueError(
                "server_optimizer=adagrad has no momentum: it goes with "
                f"server_momentum=0, got {self.server_momentum!r}"
            )

    def build_server_step(self, num_parameters: int) -> ServerStep:
        """Returns how the server steps and averages, given the size of the model."""
        decay = self.server_momentum
        moments = (decay, self.server_beta_2, self.server_epsilon)
        optimiser = {
            "momentum": lambda: optimisers.momentum(decay, self.nesterov),
            "adam": lambda: optimisers.adam(*moments),
            "yogi": lambda: optimisers.yogi(*moments),
            "adagrad": lambda: optimisers.adagrad(self.server_epsilon),
        }[self.server_optimizer]()
        rate: float | Schedule = self.server_rate(num_parameters)
        if self.server_warm_up or self.server_rate_schedule != "constant":
            rate = Schedule(
                self.server_rate(num_parameters),
                self.rounds,
                self.server_rate_schedule,
                self.server_warm_up,
            )
        return server_step(
            optimiser,
            self.build_averager(),
            learning_rate=rate,
            step_from=self.step_origin,
        )

    def without_effect(self, given: Collection[str]) -> list[str]:
        """Returns which of the given fields change nothing; a text for each."""
        of_recipe = privacy.PrivacyRecipe.without_effect(self, given)
        return list(dict.fromkeys(of_recipe + super().without_effect(given)))

    def for_population(self, population_size: int) -> Self:
        """Returns the configuration with what follows from others and from the users.

        Where nothing says in which rounds a user may take part, users do as they
        suffice: once, or as far apart as that many users can be.

        Args:
          population_size: How many users can be drawn in every round.

        Example:
          >>> TrainConfig(epsilon=8.0, rounds=300).for_population(4381).min_separation
          43
        """
        is_open = self.participation is None and self.schema_name == "at_most_once"
        if not is_open or self.rounds * self.clients_per_round <= population_size:
            return self
        apart = shapes.farthest(population_size, self.clients_per_round, self.rounds)
        return dataclasses.replace(self, min_separation=apart)

    def server_rate(self, num_parameters: int) -> float:
        """Returns the server's learning rate, given the size of the model.

        A round's mean is at most as long as the clip norm, and noise goes with it: so
        their product says how far a model moves, and how far is far goes with its size.
        But the noise of all rounds must leave the weights what they have learnt.
        """
        if self.server_learning_rate is not None:
            return self.server_learning_rate
        step = STEP * math.cbrt(num_parameters)
        # Root mean square of the noise in a weight, at a step of 1.
        noise = _noise_in_model(self)
        if step * noise > WEIGHT_NOISE:
            # Optimised noise differs in its last digits from machine to machine.
            step = float(f"{WEIGHT_NOISE / noise:.3g}")
        return step * (1 - self.server_momentum) / (self.clip_norm or 1.0)

    @property
    def cohort_words(self) -> str:
        """How many users a round has."""
        return f"{self.clients_per_round} users"

    def group_size(self, num_parameters: int) -> int:
        """Returns how many users train side by side, given the size of the model.

        The choice decides the order of additions and with it the last bits of a run.
        It follows from the configuration and the model alone, never from the machine.
        """
        if self.group_users is not None:
            return self.group_users
        return GROUP_USERS if num_parameters <= GROUP_PARAMETERS else 1

    def runtime_options(self) -> dict[str, Any]:
        """Returns the options of the runtime that it is created with."""
        names = ("lanes", "gpus_per_lane", "gpu_memory_mb")
        given = {name: getattr(self, name) for name in names}
        options = {name: value for name, value in given.items() if value is not None}
        if self.runtime == "ray":
            options |= {
                "address": self.ray_address,
                "cpus_per_lane": self.cpus_per_lane,
            }
        return options


@functools.lru_cache(maxsize=64)
def _noise_in_model(config: TrainConfig) -> float:
    """Returns the norm of all rounds' noise in a model of one parameter, in clip norms.

    It is a root mean square over the rounds. What was released before training is left
    out: it takes a small part of ε.
    """
    plan = config.build_plan()
    return Signal.of(plan, 1).ratio * plan.rounds if plan.noise_stddev else 0.0


_BUILD_AVERAGER = {
    "last": lambda c: averaging.last(),
    "uta": lambda c: averaging.uta(c.k),
    "ema": lambda c: averaging.ema(
        weight=c.ema_weight, decay=c.ema_decay, warm_up=c.ema_warm_up
    ),
    "pda": lambda c: averaging.pda(c.gamma),
    "schedule_free": lambda c: averaging.schedule_free(c.beta, c.gamma),
}
