"""Compares noise mechanisms: sensitivity, error, optimisation time, memory.

The error is the root mean square over rounds, per unit of noise multiplier and clip
norm, with the sensitivity counted in: √(mean of the squared rows of AC⁻¹) times the
sensitivity of C. A is the running sum, or what momentum 0.95 does with the rounds.

    python -m benchmarks.mechanisms --rounds=2000
    python -m benchmarks.mechanisms --rounds=512 --separation=0
"""

import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import programs
from tff_agg import noise
from tff_agg.fields import described
from tff_agg.noise import toeplitz, workloads
from tff_agg.privacy import AtMostOnce, MinSeparation, Participation, sensitivity


@dataclasses.dataclass(frozen=True)
class Options:
    """What is compared."""

    rounds: int = described(2000, "rounds of the run", at_least=1)
    separation: int = described(342, "least distance; 0 leaves it out")
    max_participations: int = described(6, "most participations", at_least=1)
    momentum: float = described(0.95, "decay of the momentum workload")
    dense: bool = described(True, "include dense (minutes at 2,000 rounds)")
    out: str = described("results/mechanisms", "folder for JSON and picture")


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
    programs.tell(
        f"mechanism | sensitivity | | prefix sum | momentum {decay} | seconds | copies",
        "{mechanism} | {sensitivity:.4f} | {how} | {rmse_prefix_sum:.3f} | "
        "{rmse_momentum:.2f} | {optimisation_seconds:.2f} | {model_copies}",
        [{**row, "how": "exact" if row["exact"] else "at most"} for row in rows],
        title,
    )


def _draw(path: pathlib.Path, results: dict[str, list[dict]]) -> None:
    """Draws the error of prefix sums against memory for each schema."""
    from tff_agg.experiment.study import figures

    figure, axes = figures.new_figure(len(results), 8, share_y=False)
    for axis, (title, rows) in zip(axes, results.items(), strict=True):
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
    figures.save(figure, path)


def main(options: Options) -> None:
    """Compares, prints, writes and draws."""
    n, decay = options.rounds, options.momentum
    schemas: dict[str, Participation] = {"one participation": AtMostOnce()}
    if options.separation:
        most = options.max_participations
        title = f"at least {options.separation} apart, {most} times"
        schemas[title] = MinSeparation(options.separation, most)
    known: dict = {}
    results = {}
    for title, schema in schemas.items():
        results[title] = compare(n, schema, decay, options.dense, known)
        _show(f"{n} rounds, {title}", results[title], decay)
    content = {"rounds": n, "momentum": decay, "schemas": results}
    folder = programs.write(options.out, "mechanisms", content)
    _draw(folder / "mechanisms.png", results)


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)
