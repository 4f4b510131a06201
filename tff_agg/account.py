r"""Prints the guarantee of a planned run, or the noise a guarantee needs.

Examples:
  python -m tff_agg.account --mechanism=blt --rounds=2000 --noise_multiplier=0.341
  python -m tff_agg.account --mechanism=tree --rounds=2000 --epsilon=8 --delta=1e-6 \
      --participation=min_separation --separation=342 --max_participations=6 --json
  python -m tff_agg.account --mechanism=dp_sgd --rounds=875 --noise_multiplier=3 \
      --sampling_probability=0.08 --delta=1e-5
"""

import json
import sys
from typing import Any

from absl import app, flags

from tff_agg import noise
from tff_agg.noise import cache
from tff_agg.privacy import (
    AtMostOnce,
    FixedEpochOrder,
    MinSeparation,
    Participation,
    Plan,
    accounting,
)

MECHANISMS = (
    "identity",
    "tree",
    "honaker",
    "banded",
    "square_root",
    "blt",
    "dense",
    "dp_sgd",
)
SCHEMAS = ("at_most_once", "min_separation", "fixed_epoch_order")


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags; importing this module defines none.

    Args:
      values: Where to define them: `flags.FLAGS` in the command, a fresh
        `flags.FlagValues()` for any other use.
    """
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_enum("mechanism", "blt", MECHANISMS, "The noise.", **own)
    flags.DEFINE_integer("rounds", 2000, "Rounds (steps of DP-SGD).", **own)
    flags.DEFINE_float(
        "noise_multiplier",
        None,
        "Noise over the WHOLE sensitivity; or give --epsilon.",
        **own,
    )
    flags.DEFINE_float(
        "per_node_multiplier",
        None,
        "TF-Privacy's noise multiplier, per tree node; for trees, instead of "
        "--noise_multiplier.",
        **own,
    )
    flags.DEFINE_float("epsilon", None, "Find the noise for this ε instead.", **own)
    flags.DEFINE_float("delta", 1e-6, "δ.", **own)
    flags.DEFINE_enum(
        "participation",
        "at_most_once",
        SCHEMAS,
        "In which rounds a user may take part.",
        **own,
    )
    flags.DEFINE_integer(
        "separation",
        None,
        "Least difference of two rounds of a user (min_separation).",
        **own,
    )
    flags.DEFINE_integer(
        "max_participations",
        None,
        "Most rounds of a user; as many as fit by default.",
        **own,
    )
    flags.DEFINE_integer("epoch_length", None, "Rounds an epoch.", **own)
    flags.DEFINE_float("clip_norm", 1.0, "Largest norm of a user's update.", **own)
    flags.DEFINE_integer("cohort_size", 100, "Users a round.", **own)
    flags.DEFINE_integer("restart_every", None, "Restart the noise so often.", **own)
    flags.DEFINE_bool("completion", False, "Complete the tree at its end.", **own)
    flags.DEFINE_integer("buffers", 3, "Buffers of blt.", **own)
    flags.DEFINE_integer("bands", 32, "Diagonals of banded and square_root.", **own)
    flags.DEFINE_float(
        "momentum_decay",
        0.0,
        "Server momentum that banded, blt and dense are made for.",
        **own,
    )
    flags.DEFINE_float(
        "sampling_probability", None, "Poisson sampling probability of DP-SGD.", **own
    )
    flags.DEFINE_string(
        "cache",
        None,
        "Folder of optimised matrices; the user's cache folder by default.",
        **own,
    )
    flags.DEFINE_bool("json", False, "Print one JSON object instead of a table.", **own)


def _participation(given: flags.FlagValues) -> Participation:
    """Returns the schema that the flags describe."""
    if given.participation == "min_separation":
        if given.separation is None:
            raise ValueError("--participation=min_separation needs --separation")
        return MinSeparation(given.separation, given.max_participations)
    if given.participation == "fixed_epoch_order":
        if given.epoch_length is None:
            raise ValueError("--participation=fixed_epoch_order needs --epoch_length")
        return FixedEpochOrder(given.epoch_length, given.max_participations)
    if given.separation is not None or given.epoch_length is not None:
        raise ValueError(
            "--separation and --epoch_length need --participation=min_separation or "
            "fixed_epoch_order"
        )
    if given.max_participations not in (None, 1):
        raise ValueError(
            f"--max_participations={given.max_participations} contradicts "
            "--participation=at_most_once"
        )
    return AtMostOnce()


def _mechanism(
    given: flags.FlagValues, participation: Participation
) -> noise.Mechanism:
    """Returns the mechanism that the flags describe, made for the schema."""
    rounds = given.restart_every or given.rounds
    fitted = participation.cut(rounds)
    folder = given.cache or cache.default_folder()
    optimised: dict[str, Any] = {
        "momentum_decay": given.momentum_decay,
        "separation": fitted.spacing(rounds),
        "participations": fitted.largest(rounds),
        "cache": folder,
    }
    match given.mechanism:
        case "identity":
            made = noise.identity()
        case "tree":
            needed = rounds if given.completion else None
            made = noise.tree("plain", needed, given.completion)
        case "honaker":
            made = noise.tree("honaker", rounds, given.completion)
        case "banded":
            made = noise.banded(rounds, min(given.bands, rounds), **optimised)
        case "square_root":
            made = noise.banded_square_root(given.bands, given.momentum_decay)
        case "blt":
            made = noise.blt(rounds, given.buffers, **optimised)
        case _:
            made = noise.dense(
                rounds, momentum_decay=given.momentum_decay, cache=folder
            )
    return made if given.restart_every is None else noise.restart_every(made, rounds)


def _plan(given: flags.FlagValues) -> Plan:
    """Returns the plan that the flags describe."""
    participation = _participation(given)
    participation.largest(given.rounds)
    common: dict[str, Any] = {
        "clip_norm": given.clip_norm,
        "cohort_size": given.cohort_size,
        "rounds": given.rounds,
        "participation": participation,
        "delta": accounting.check_delta(given.delta),
        "mechanism": _mechanism(given, participation),
    }
    if given.per_node_multiplier is not None:
        return Plan.from_per_node_multiplier(given.per_node_multiplier, **common)
    if given.epsilon is not None:
        return Plan.for_epsilon(given.epsilon, **common)
    return Plan(noise_multiplier=given.noise_multiplier, **common)


def _dp_sgd(given: flags.FlagValues) -> dict[str, Any]:
    """Returns the figures of DP-SGD with Poisson sampling."""
    if given.sampling_probability is None:
        raise ValueError("--mechanism=dp_sgd needs --sampling_probability")
    if given.per_node_multiplier is not None or given.participation != "at_most_once":
        raise ValueError(
            "--mechanism=dp_sgd samples examples anew in each step: it takes neither "
            "--participation nor --per_node_multiplier"
        )

    def epsilon(sigma: float, method: str = "pld") -> float:
        return accounting.dp_sgd_epsilon(
            sigma, given.sampling_probability, given.rounds, given.delta, method
        )

    sigma = given.noise_multiplier
    if sigma is None:
        sigma = accounting.calibrate(
            given.epsilon,
            given.delta,
            epsilon_of=lambda s: epsilon(s, "rdp"),
        )
    by_method = {m: epsilon(sigma, m) for m in accounting.METHODS}
    return {
        # A ρ of the steps alone: sampling has no useful zCDP figure.
        "rho": given.rounds * accounting.rho(sigma) if sigma else None,
        "epsilon": by_method["pld"] if sigma else None,
        "delta": given.delta,
        "noise_multiplier": sigma,
        "sensitivity": 1.0,
        "epsilon_by_conversion": by_method if sigma else {},
        "sampling_probability": given.sampling_probability,
        "steps": given.rounds,
        "mechanism": "dp_sgd",
        "adjacency": "one example added or removed, Poisson sampling",
    }


def _table(figures: dict[str, Any]) -> str:
    """Formats the figures, one a line."""
    lines = []
    for key, value in figures.items():
        if isinstance(value, dict):
            lines += [f"{key}"]
            lines += [f"  {k:<38} {_short(k, v)}" for k, v in value.items()]
        else:
            lines.append(f"{key:<40} {_short(key, value)}")
    return "\n".join(lines)


def _short(key: str, value: Any) -> str:
    """Formats one figure; what has no bound is None in JSON."""
    if value is None:
        unlimited = key in ("rounds", "max_participations", "epochs")
        return "any" if unlimited else "infinite"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 200 else text[:197] + "..."


def figures(given: flags.FlagValues) -> dict[str, Any]:
    """Returns the figures that the flags ask for.

    Raises:
      ValueError: Names the flag or the argument that is wrong.
    """
    ways = (given.noise_multiplier, given.per_node_multiplier, given.epsilon)
    if sum(way is not None for way in ways) != 1:
        raise ValueError(
            "give exactly one of --noise_multiplier, --per_node_multiplier and "
            "--epsilon"
        )
    if given.mechanism == "dp_sgd":
        return _dp_sgd(given)
    return _plan(given).to_json()


def answer(given: flags.FlagValues) -> str:
    """Returns the figures as the flags want them printed."""
    found = figures(given)
    if given.json:
        return json.dumps(found, ensure_ascii=False, allow_nan=False)
    return _table(found)


def main(argv: list[str]) -> None:
    """Prints the figures, or what is wrong with the flags."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    try:
        text = answer(flags.FLAGS)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    sys.stdout.write(text + "\n")


def run() -> None:
    """Runs the command: defines its flags, reads them, prints."""
    define_flags(flags.FLAGS)
    app.run(main)


if __name__ == "__main__":
    run()
