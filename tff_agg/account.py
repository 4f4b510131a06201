"""Prints the guarantee of a planned run, or the noise a guarantee needs.

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

_MECHANISM = flags.DEFINE_enum("mechanism", "blt", MECHANISMS, "The noise.")
_ROUNDS = flags.DEFINE_integer("rounds", 2000, "Rounds (steps of DP-SGD).")
_MULTIPLIER = flags.DEFINE_float(
    "noise_multiplier", None, "Noise over the WHOLE sensitivity; or give --epsilon."
)
_PER_NODE = flags.DEFINE_float(
    "per_node_multiplier",
    None,
    "TF-Privacy's noise multiplier, per tree node; for trees, instead of "
    "--noise_multiplier.",
)
_EPSILON = flags.DEFINE_float("epsilon", None, "Find the noise for this ε instead.")
_DELTA = flags.DEFINE_float("delta", 1e-6, "δ.")
_SCHEMA = flags.DEFINE_enum(
    "participation", "at_most_once", SCHEMAS, "In which rounds a user may take part."
)
_SEPARATION = flags.DEFINE_integer(
    "separation", None, "Least difference of two rounds of a user (min_separation)."
)
_MOST = flags.DEFINE_integer(
    "max_participations", None, "Most rounds of a user; as many as fit by default."
)
_EPOCH = flags.DEFINE_integer("epoch_length", None, "Rounds an epoch.")
_CLIP = flags.DEFINE_float("clip_norm", 1.0, "Largest norm of a user's update.")
_COHORT = flags.DEFINE_integer("cohort_size", 100, "Users a round.")
_RESTART = flags.DEFINE_integer("restart_every", None, "Restart the noise so often.")
_COMPLETION = flags.DEFINE_bool("completion", False, "Complete the tree at its end.")
_BUFFERS = flags.DEFINE_integer("buffers", 3, "Buffers of blt.")
_BANDS = flags.DEFINE_integer("bands", 32, "Diagonals of banded and square_root.")
_MOMENTUM = flags.DEFINE_float(
    "momentum_decay", 0.0, "Server momentum that banded, blt and dense are made for."
)
_SAMPLING = flags.DEFINE_float(
    "sampling_probability", None, "Poisson sampling probability of DP-SGD."
)
_CACHE = flags.DEFINE_string(
    "cache", None, "Folder of optimised matrices; the user's cache folder by default."
)
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object instead of a table.")


def _participation() -> Participation:
    """Returns the schema that the flags describe."""
    if _SCHEMA.value == "min_separation":
        if _SEPARATION.value is None:
            raise ValueError("--participation=min_separation needs --separation")
        return MinSeparation(_SEPARATION.value, _MOST.value)
    if _SCHEMA.value == "fixed_epoch_order":
        if _EPOCH.value is None:
            raise ValueError("--participation=fixed_epoch_order needs --epoch_length")
        return FixedEpochOrder(_EPOCH.value, _MOST.value)
    if _SEPARATION.value is not None or _EPOCH.value is not None:
        raise ValueError(
            "--separation and --epoch_length need --participation=min_separation or "
            "fixed_epoch_order"
        )
    if _MOST.value not in (None, 1):
        raise ValueError(
            f"--max_participations={_MOST.value} contradicts "
            "--participation=at_most_once"
        )
    return AtMostOnce()


def _mechanism(participation: Participation) -> noise.Mechanism:
    """Returns the mechanism that the flags describe, made for the schema."""
    rounds = _RESTART.value or _ROUNDS.value
    fitted = participation.cut(rounds)
    folder = _CACHE.value or cache.default_folder()
    optimised: dict[str, Any] = {
        "momentum_decay": _MOMENTUM.value,
        "separation": fitted.spacing(rounds),
        "participations": fitted.largest(rounds),
        "cache": folder,
    }
    match _MECHANISM.value:
        case "identity":
            made = noise.identity()
        case "tree":
            needed = rounds if _COMPLETION.value else None
            made = noise.tree("plain", needed, _COMPLETION.value)
        case "honaker":
            made = noise.tree("honaker", rounds, _COMPLETION.value)
        case "banded":
            made = noise.banded(rounds, min(_BANDS.value, rounds), **optimised)
        case "square_root":
            made = noise.banded_square_root(_BANDS.value, _MOMENTUM.value)
        case "blt":
            made = noise.blt(rounds, _BUFFERS.value, **optimised)
        case _:
            made = noise.dense(rounds, momentum_decay=_MOMENTUM.value, cache=folder)
    return made if _RESTART.value is None else noise.restart_every(made, rounds)


def _plan() -> Plan:
    """Returns the plan that the flags describe."""
    participation = _participation()
    participation.largest(_ROUNDS.value)
    common: dict[str, Any] = {
        "clip_norm": _CLIP.value,
        "cohort_size": _COHORT.value,
        "rounds": _ROUNDS.value,
        "participation": participation,
        "delta": accounting.check_delta(_DELTA.value),
        "mechanism": _mechanism(participation),
    }
    if _PER_NODE.value is not None:
        return Plan.from_per_node_multiplier(_PER_NODE.value, **common)
    if _EPSILON.value is not None:
        return Plan.for_epsilon(_EPSILON.value, **common)
    return Plan(noise_multiplier=_MULTIPLIER.value, **common)


def _dp_sgd() -> dict[str, Any]:
    """Returns the figures of DP-SGD with Poisson sampling."""
    if _SAMPLING.value is None:
        raise ValueError("--mechanism=dp_sgd needs --sampling_probability")
    if _PER_NODE.value is not None or _SCHEMA.value != "at_most_once":
        raise ValueError(
            "--mechanism=dp_sgd samples examples anew in each step: it takes neither "
            "--participation nor --per_node_multiplier"
        )

    def epsilon(sigma: float, method: str = "pld") -> float:
        return accounting.dp_sgd_epsilon(
            sigma, _SAMPLING.value, _ROUNDS.value, _DELTA.value, method
        )

    sigma = _MULTIPLIER.value
    if sigma is None:
        sigma = accounting.calibrate(
            _EPSILON.value,
            _DELTA.value,
            epsilon_of=lambda s: epsilon(s, "rdp"),
        )
    by_method = {m: epsilon(sigma, m) for m in accounting.METHODS}
    return {
        # A ρ of the steps alone: sampling has no useful zCDP figure.
        "rho": _ROUNDS.value * accounting.rho(sigma) if sigma else None,
        "epsilon": by_method["pld"] if sigma else None,
        "delta": _DELTA.value,
        "noise_multiplier": sigma,
        "sensitivity": 1.0,
        "epsilon_by_conversion": by_method if sigma else {},
        "sampling_probability": _SAMPLING.value,
        "steps": _ROUNDS.value,
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


def main(argv: list[str]) -> None:
    """Reads the flags, prints the figures."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    given = [f for f in (_MULTIPLIER, _PER_NODE, _EPSILON) if f.value is not None]
    try:
        if len(given) != 1:
            raise ValueError(
                "give exactly one of --noise_multiplier, --per_node_multiplier and "
                "--epsilon"
            )
        sgd = _MECHANISM.value == "dp_sgd"
        figures = _dp_sgd() if sgd else _plan().to_json()
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    if _JSON.value:
        text = json.dumps(figures, ensure_ascii=False, allow_nan=False)
    else:
        text = _table(figures)
    sys.stdout.write(text + "\n")


def run() -> None:
    """The entry point of the command."""
    app.run(main)


if __name__ == "__main__":
    run()
