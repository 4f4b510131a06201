r"""Prints the guarantee of a planned run, or the noise a guarantee needs.

The flags are those of training, and so is the plan: the same flags give the same noise.

Examples:
  python -m tff_agg.account --mechanism=blt --rounds=2000 --noise_multiplier=0.341
  python -m tff_agg.account --mechanism=tree --rounds=2000 --epsilon=8 --delta=1e-6 \
      --min_separation=342 --max_participations=6 --json
  python -m tff_agg.account --mechanism=dp_sgd --rounds=875 --noise_multiplier=3 \
      --batch_size=4096 --population=50000 --delta=1e-5

With --mechanism=dp_sgd, --noise_multiplier and --epsilon together give the steps.
"""

import json
import sys
from typing import Any

from absl import app, flags

from tff_agg import noise
from tff_agg.aliases import Json, JsonObject
from tff_agg.experiment.commands import flags as flag_fields
from tff_agg.noise import cache
from tff_agg.privacy import (
    Plan,
    PoissonSampling,
    PrivacyRecipe,
    delta_warning,
)

DP_SGD = "dp_sgd"
# The fields of a recipe that mean something to DP-SGD, too.
_OF_DP_SGD = (
    "mechanism",
    "rounds",
    "clip_norm",
    "noise_multiplier",
    "epsilon",
    "delta",
    "noise_cache",
)


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags; importing this module defines none.

    Args:
      values: Where to define them: `flags.FLAGS` in the command, a fresh
        `flags.FlagValues()` for any other use.
    """
    flag_fields.define(
        PrivacyRecipe,
        values,
        # Some mechanisms take minutes to find: once is enough.
        defaults={"noise_cache": str(cache.default_folder())},
        more_choices={"mechanism": [DP_SGD]},
    )
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_integer(
        "batch_size", None, "dp_sgd: expected size of a batch, which is sampled", **own
    )
    flags.DEFINE_integer(
        "population",
        None,
        "users (dp_sgd: examples) that there are; warns of a δ that is too large",
        **own,
    )
    flags.DEFINE_bool("json", False, "print one JSON object instead of a table", **own)


def plan(given: flags.FlagValues) -> Plan:
    """Returns the plan that the flags describe.

    Raises:
      ValueError: Names the flag or the argument that is wrong.
    """
    if given.mechanism == DP_SGD:
        return _dp_sgd(given)
    if given.batch_size is not None:
        raise ValueError(f"batch_size={given.batch_size} needs mechanism={DP_SGD}")
    return flag_fields.read(PrivacyRecipe, given).build_plan()


def _dp_sgd(given: flags.FlagValues) -> Plan:
    """Returns the plan of DP-SGD: two of noise, ε and steps give the third."""
    recipe_flags = flag_fields.values_of(PrivacyRecipe, given)
    strange = [
        name for name in recipe_flags if name not in _OF_DP_SGD and given[name].present
    ]
    if strange:
        raise ValueError(
            f"mechanism={DP_SGD} has independent noise and sampled batches; it takes "
            f"no {', '.join(strange)}"
        )
    for name in ("batch_size", "population"):
        if given[name].value is None:
            raise ValueError(f"mechanism={DP_SGD} needs {name}")
    common: dict[str, Any] = {
        "clip_norm": given.clip_norm,
        "cohort_size": given.batch_size,
        "mechanism": noise.identity(),
        "participation": PoissonSampling.of(given.batch_size, given.population),
        "delta": given.delta,
    }
    if given.epsilon is None:
        if given.noise_multiplier is None:
            raise ValueError(f"mechanism={DP_SGD} needs noise_multiplier or epsilon")
        return Plan(
            noise_multiplier=given.noise_multiplier, rounds=given.rounds, **common
        )
    if given.noise_multiplier is None:
        return Plan.for_epsilon(given.epsilon, rounds=given.rounds, **common)
    if given["rounds"].present:
        raise ValueError(
            "noise_multiplier, epsilon and rounds are one too many: two of them give "
            "the third"
        )
    return Plan.rounds_for_epsilon(
        given.epsilon, noise_multiplier=given.noise_multiplier, **common
    )


def warning(given: flags.FlagValues) -> str | None:
    """Returns what to say about a δ that is too large for the population, or None."""
    if given.population is None:
        # As many there are at least.
        return delta_warning(given.delta, given.clients_per_round, "users of a round")
    unit = "examples" if given.mechanism == DP_SGD else "users"
    return delta_warning(given.delta, given.population, unit)


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


def answer(given: flags.FlagValues) -> str:
    """Returns the figures as the flags want them printed."""
    found = plan(given).to_json()
    if given.json:
        return json.dumps(found, ensure_ascii=False, allow_nan=False)
    return _table(found)


def main(argv: list[str]) -> None:
    """Prints the figures, or what is wrong with the flags."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    try:
        text = answer(flags.FLAGS)
        warned = warning(flags.FLAGS)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    if warned:
        sys.stderr.write(f"warning: {warned}\n")
    sys.stdout.write(text + "\n")


def run() -> None:
    """Runs the command: defines its flags, reads them, prints."""
    define_flags(flags.FLAGS)
    app.run(main)


if __name__ == "__main__":
    run()
