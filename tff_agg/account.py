r"""Prints the guarantee of a planned run, or the noise a guarantee needs.

The flags are those of training, and so is the plan: the same flags give the same noise.

Examples:
  tff-agg account --mechanism=blt --rounds=2000 --noise_multiplier=0.341
  tff-agg account --mechanism=tree --rounds=2000 --epsilon=8 --delta=1e-6 \
      --min_separation=342 --max_participations=6 --json
  tff-agg account --mechanism=dp_sgd --rounds=875 --noise_multiplier=3 \
      --batch_size=4096 --population=50000 --delta=1e-5

With --mechanism=dp_sgd, --noise_multiplier and --epsilon together give the steps.
"""

import dataclasses
import json
import sys
from collections.abc import Collection
from typing import Any

from tff_agg import fields, noise
from tff_agg.aliases import Json, JsonObject
from tff_agg.experiment import commands
from tff_agg.fields import described
from tff_agg.noise import cache
from tff_agg.privacy import Plan, PoissonSampling, PrivacyRecipe, delta_warning
from tff_agg.privacy.recipe import MECHANISMS

DP_SGD = "dp_sgd"
# The fields that mean something to DP-SGD.
_OF_DP_SGD = (
    "mechanism", "rounds", "clip_norm", "noise_multiplier", "epsilon", "delta",
    "noise_cache", "batch_size", "population", "json",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccountOptions(PrivacyRecipe):
    """A privacy recipe, or DP-SGD's: batches that are sampled, independent noise."""

    mechanism: str = described(
        "blt", "correlation of the noise; dp_sgd: none", (*MECHANISMS, DP_SGD)
    )
    # Some mechanisms take minutes to find: once is enough.
    noise_cache: str | None = described(
        str(cache.default_folder()), "folder where optimised mechanisms are kept",
        role="place",
    )  # fmt: skip
    batch_size: int | None = described(
        None, "dp_sgd: expected size of a batch, which is sampled", at_least=1,
        only_with=("mechanism", (DP_SGD,)),
    )  # fmt: skip
    population: int | None = described(
        None,
        "users (dp_sgd: examples) that there are; warns of a δ that is too large",
        at_least=1,
    )
    json: bool = described(False, "print one JSON object instead of a table")

    def __post_init__(self) -> None:
        if self.mechanism != DP_SGD:
            super().__post_init__()
            return
        fields.check(self)
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        strange = [
            name
            for name, default in defaults.items()
            if name not in _OF_DP_SGD and getattr(self, name) != default
        ]
        if strange:
            raise ValueError(
                f"mechanism={DP_SGD} has independent noise and sampled batches; it "
                f"takes no {', '.join(strange)}"
            )
        for name in ("batch_size", "population"):
            if getattr(self, name) is None:
                raise ValueError(f"mechanism={DP_SGD} needs {name}")
        if self.epsilon is None and self.noise_multiplier is None:
            raise ValueError(f"mechanism={DP_SGD} needs noise_multiplier or epsilon")

    def without_effect(self, given: Collection[str]) -> list[str]:
        """Returns which of the given fields change nothing; a text for each."""
        if self.mechanism != DP_SGD:
            return super().without_effect(given)
        found = [
            f"{name} has no place beside mechanism={DP_SGD}"
            for name in given
            if name not in _OF_DP_SGD
        ]
        if {"noise_multiplier", "epsilon", "rounds"} <= {*given}:
            found.append(
                "rounds: noise_multiplier, epsilon and rounds are one too many; two of "
                "them give the third"
            )
        return found

    def plan(self) -> Plan:
        """Returns the plan; of DP-SGD, two of noise, ε and steps give the third."""
        if self.mechanism != DP_SGD:
            return self.build_plan()
        assert self.batch_size is not None and self.population is not None
        common: dict[str, Any] = {
            "clip_norm": self.clip_norm,
            "cohort_size": self.batch_size,
            "mechanism": noise.identity(),
            "participation": PoissonSampling.of(self.batch_size, self.population),
            "delta": self.delta,
        }
        noise_multiplier = self.noise_multiplier
        if noise_multiplier is None:
            assert self.epsilon is not None
            return Plan.for_epsilon(self.epsilon, rounds=self.rounds, **common)
        common["noise_multiplier"] = noise_multiplier
        if self.epsilon is None:
            return Plan(rounds=self.rounds, **common)
        return Plan.rounds_for_epsilon(self.epsilon, **common)


def warning(options: AccountOptions) -> str | None:
    """Returns what to say about a δ that is too large for the population, or None."""
    if options.population is None:
        # There are at least as many.
        users = options.clients_per_round
        return delta_warning(options.delta, users, "users of a round")
    unit = "examples" if options.mechanism == DP_SGD else "users"
    return delta_warning(options.delta, options.population, unit)


def _table(figures: JsonObject) -> str:
    """Formats the figures, one per line."""
    lines = []
    for key, value in figures.items():
        if isinstance(value, dict):
            lines += [f"{key}"]
            lines += [f"  {k:<38} {_short(k, v)}" for k, v in value.items()]
        else:
            lines.append(f"{key:<40} {_short(key, value)}")
    return "\n".join(lines)


def _short(key: str, value: Json) -> str:
    """Formats one figure; what has no bound is None in JSON."""
    if value is None:
        unlimited = key in ("rounds", "max_participations", "epochs")
        return "any" if unlimited else "infinite"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 200 else text[:197] + "..."


def answer(options: AccountOptions) -> str:
    """Returns the figures as the options want them printed."""
    found = options.plan().to_json()
    if options.json:
        return json.dumps(found, ensure_ascii=False, allow_nan=False)
    return _table(found)


def run(options: AccountOptions) -> int:
    """Prints the figures."""
    text = answer(options)
    if warned := warning(options):
        sys.stderr.write(f"warning: {warned}\n")
    sys.stdout.write(text + "\n")
    return 0


def command(task: object = None) -> commands.Command:
    """Returns the command, which needs no task."""
    del task
    return commands.Command(run, (AccountOptions,), tensorflow=False)
