"""Compares noise mechanisms: sensitivity, error, optimisation time, memory.

The error is the root mean square over rounds, per unit of noise multiplier and clip
norm, with the sensitivity counted in: √(mean of the squared rows of AC⁻¹) times the
sensitivity of C. A is the running sum, or what momentum 0.95 does with the rounds.

    python -m benchmarks.mechanisms --rounds=2000
    python -m benchmarks.mechanisms --rounds=512 --separation=0
"""

import functools
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import app, flags

from tff_agg import noise
from tff_agg.noise import toeplitz, workloads
from tff_agg.privacy import AtMostOnce, MinSeparation, Participation, sensitivity

_ROUNDS = flags.DEFINE_integer("rounds", 2000, "Rounds of the run.")
_SEPARATION = flags.DEFINE_integer(
    "separation", 342, "Least distance; 0 leaves it out."
)
_MOST = flags.DEFINE_integer("max_participations", 6, "Most participations.")
_DECAY = flags.DEFINE_float("momentum", 0.95, "Decay of the momentum workload.")
_DENSE = flags.DEFINE_bool("dense", True, "Include dense (minutes at 2,000 rounds).")
_OUT = flags.DEFINE_string("out", "results/mechanisms", "Folder for JSON and picture.")


def _error(mechanism: noise.Mechanism, n: int, decay: float) -> float:
    """Returns the root mean square error without the sensitivity."""
    workload = workloads.momentum(decay)
    if mechanism.toeplitz is not None:
        column = mechanism.toeplitz(n)[: mechanism.bands]
        target, weights = workload.first_column(n), toeplitz.error_weights(n, "mean")
        return toeplitz.error_with_gradient(column, target, weights).value ** 0.5
    if mechanism.decoder is None:
        decoder = np.linalg.inv(mechanism.matrix(n))
    else:
        decoder = mechanism.decoder(n)
    rows = workload.matrix(n) @ decoder
    return float(np.sqrt(np.square(rows).sum() / n))


def _candidates(
    n: int, schema: Participation, decay: float, dense: bool
) -> dict[str, Callable[[], noise.Mechanism]]:
    """Returns what makes each mechanism for a schema."""
    fit: dict[str, Any] = {
        "separation": schema.spacing(n),
        "participations": schema.largest(n),
    }
    bands = min(schema.spacing(n), n)
    made: dict[str, Callable[[], noise.Mechanism]] = {
        "identity": noise.identity,
        "tree, plain": noise.tree,
        "tree, plain, completed": lambda: noise.tree("plain", n, True),
        "tree, Honaker": lambda: noise.tree("honaker", n),
        "square root": lambda: noise.banded_square_root(n),
        "square root, 32 bands": lambda: noise.banded_square_root(min(32, n)),
        "banded, 32 bands": lambda: noise.banded(n, min(32, n), **fit),
    }
    if bands < n:
        made[f"banded, {bands} bands"] = lambda: noise.banded(n, bands, **fit)
    for d in (1, 2, 3, 4):
        made[f"blt, {d} buffers"] = functools.partial(noise.blt, n, d, **fit)
    made["blt, 3 buffers, for momentum"] = lambda: noise.blt(
        n, 3, workload=workloads.momentum(decay), **fit
    )
    if dense:
        made["dense"] = lambda: noise.dense(n)
    return made


def compare(
    n: int, schema: Participation, decay: float, dense: bool, known: dict
) -> list[dict]:
    """Returns a row of figures for each mechanism.

    `known` keeps what was made and measured for one schema and serves another too.
    """
    rows = []
    for name, make in _candidates(n, schema, decay, dense).items():
        reusable = name == "dense" or "tree" in name
        if not (reusable and name in known):
            start = time.perf_counter()
            mechanism = make()
            seconds = time.perf_counter() - start
            errors = [_error(mechanism, n, d) for d in (0.0, decay)]
            known[name] = mechanism, seconds, errors
        mechanism, seconds, errors = known[name]
        found = sensitivity(mechanism, schema, n)
        rows.append(
            {
                "mechanism": name,
                "sensitivity": found.value,
                "exact": found.exact,
                "rmse_prefix_sum": errors[0] * found.value,
                "rmse_momentum": errors[1] * found.value,
                "optimisation_seconds": seconds,
                "model_copies": mechanism.buffers,
            }
        )
    return rows


def _show(title: str, rows: list[dict], decay: float) -> None:
    """Prints a table."""
    print(f"\n{title}")
    head = ("sensitivity", "prefix sum", f"momentum {decay}", "seconds", "copies")
    print(f"{'mechanism':<30}" + "".join(f"{name:>15}" for name in head))
    for row in rows:
        mark = " " if row["exact"] else "≤"
        print(
            f"{row['mechanism']:<30}{mark}{row['sensitivity']:>14.4f}"
            f"{row['rmse_prefix_sum']:>15.3f}{row['rmse_momentum']:>15.2f}"
            f"{row['optimisation_seconds']:>15.2f}{row['model_copies']:>15}"
        )


def _draw(path: pathlib.Path, results: dict[str, list[dict]]) -> None:
    """Draws the error of prefix sums against memory for each schema."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        len(results), 1, figsize=(8, 4.2 * len(results)), squeeze=False
    )
    for axis, (title, rows) in zip(axes[:, 0], results.items(), strict=True):
        shown = sorted(rows, key=lambda row: row["rmse_prefix_sum"], reverse=True)
        names = [f"{row['mechanism']} ({row['model_copies']} copies)" for row in shown]
        values = [row["rmse_prefix_sum"] for row in shown]
        # Independent noise is far off the scale of all others: its bar is cut.
        right = 1.25 * sorted(values)[-2]
        bars = axis.barh(names, [min(v, 0.9 * right) for v in values], color="#4878a8")
        labels = [f"{v:.2f}" if v < 0.9 * right else f"{v:.2f} (cut)" for v in values]
        axis.bar_label(bars, labels, padding=3, fontsize=8)
        axis.set_xlim(0, right)
        axis.set_xlabel("RMSE of prefix sums per unit of noise multiplier")
        axis.set_title(title, fontsize=10)
        axis.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main(argv: list[str]) -> None:
    del argv
    n, decay = _ROUNDS.value, _DECAY.value
    schemas: dict[str, Participation] = {"one participation": AtMostOnce()}
    if _SEPARATION.value:
        title = f"at least {_SEPARATION.value} apart, {_MOST.value} times"
        schemas[title] = MinSeparation(_SEPARATION.value, _MOST.value)
    known: dict = {}
    results = {}
    for title, schema in schemas.items():
        results[title] = compare(n, schema, decay, _DENSE.value, known)
        _show(f"{n} rounds, {title}", results[title], decay)
    folder = pathlib.Path(_OUT.value)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"rounds": n, "momentum": decay, "schemas": results}, indent=2)
    (folder / "mechanisms.json").write_text(text + "\n")
    _draw(folder / "mechanisms.png", results)


if __name__ == "__main__":
    app.run(main)
