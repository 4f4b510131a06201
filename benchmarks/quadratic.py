"""The checkpoint variance estimator on a quadratic loss: RMSE over its two knobs.

128 steps of noisy gradient descent on ½θ² with learning rate 0.07, started from
N(0, 100²), with noise such that the last iterate has variance exactly 1. The variance
is then estimated from the iterates of one run after a burn-in, some steps apart. As
all iterates are jointly Gaussian, the RMSE is known exactly as well: the simulation is
checked against it, and what the simulation cannot tell apart the exact figures can.

    python -m benchmarks.quadratic --out=results/quadratic
"""

import dataclasses
import math
import pathlib
from typing import Any, NamedTuple

import numpy as np

from benchmarks import programs
from tff_agg import checks
from tff_agg.fields import described
from tff_agg.recycling import uncertainty


@dataclasses.dataclass(frozen=True)
class Study:
    """The setting; the defaults are the paper's, the grid is ours."""

    steps: int = described(128, "steps of a run", at_least=2)
    learning_rate: float = described(0.07, "the rate")
    start_stddev: float = described(100.0, "standard deviation of the start")
    runs: int = described(1000, "how many runs to simulate", at_least=2)
    burn_ins: tuple[int, ...] = described(
        (8, 16, 32, 48, 64, 80, 96, 112, 120), "first checkpoints"
    )
    separations: tuple[int, ...] = described(
        (1, 2, 4, 8, 16, 32), "steps between two checkpoints"
    )
    resamples: int = described(1000, "resamples of the runs, for errors", at_least=2)
    seed: int = described(0, "seeds the simulation")
    out: str = described("results/quadratic", "where the results go")

    @property
    def contraction(self) -> float:
        """The factor by which a step shrinks θ."""
        return 1.0 - self.learning_rate

    @property
    def noise_stddev(self) -> float:
        """The noise of one step (learning rate included) that gives variance 1."""
        a2 = self.contraction**2
        from_start = a2**self.steps * self.start_stddev**2
        gained = (1 - a2**self.steps) / (1 - a2)
        return float(np.sqrt((1 - from_start) / gained))


class GaussianMoments(NamedTuple):
    """The exact mean and variance of the sample variance, and its error."""

    mean: float
    variance: float

    def rmse(self, truth: float) -> float:
        """Returns the root mean squared error as an estimate of `truth`."""
        return math.sqrt(self.variance + (self.mean - truth) ** 2)


def gaussian_moments(mean: np.ndarray, covariance: np.ndarray) -> GaussianMoments:
    """Returns the exact moments of the sample variance of jointly Gaussian values.

    The sample variance is the quadratic form xᵀAx with A = (I − 11ᵀ/k) / (k − 1).

    Args:
      mean: The means of the k values.
      covariance: Their k × k covariance.

    Example:
      >>> gaussian_moments(np.zeros(3), np.eye(3))  # Independent: unbiased.
      GaussianMoments(mean=1.0, variance=1.0)
    """
    mean = np.asarray(mean, np.float64)
    k = checks.whole("the number of values", len(mean), least=2)
    form = (np.eye(k) - 1.0 / k) / (k - 1)
    product = form @ covariance
    pushed = form @ mean
    return GaussianMoments(
        float(np.trace(product) + mean @ pushed),
        float(2 * np.sum(product * product.T) + 4 * pushed @ covariance @ pushed),
    )


def simulate(study: Study, rng: np.random.Generator) -> np.ndarray:
    """Returns the iterates of all runs, [runs, steps + 1]."""
    iterates = np.empty((study.runs, study.steps + 1))
    iterates[:, 0] = study.start_stddev * rng.standard_normal(study.runs)
    noise = study.noise_stddev * rng.standard_normal((study.runs, study.steps))
    for t in range(study.steps):
        iterates[:, t + 1] = study.contraction * iterates[:, t] + noise[:, t]
    return iterates


def covariance(study: Study, rounds: list[int]) -> np.ndarray:
    """Returns the exact covariance of the iterates at some rounds."""
    a, t = study.contraction, np.array(rounds)
    low = np.minimum.outer(t, t)
    gained = study.noise_stddev**2 * (1 - a ** (2 * low)) / (1 - a**2)
    variance = a ** (2 * low) * study.start_stddev**2 + gained
    return a ** np.abs(np.subtract.outer(t, t)) * variance


def rounds_of(study: Study, burn_in: int, separation: int) -> list[int] | None:
    """Returns the checkpoints of a cell, None where fewer than two fit."""
    rounds = list(range(burn_in, study.steps + 1, separation))
    return rounds if len(rounds) > 1 else None


def errors_of_cell(iterates: np.ndarray, rounds: list[int]) -> np.ndarray:
    """Returns each run's squared error of the estimated variance (the truth is 1)."""
    return (uncertainty.variance_estimate(iterates[:, rounds].T) - 1.0) ** 2


def rmse_with_error(
    squared: np.ndarray, resamples: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Returns the RMSE and the bootstrap's standard error of it."""
    draws = rng.integers(len(squared), size=(resamples, len(squared)))
    return float(np.sqrt(squared.mean())), float(
        np.sqrt(squared[draws].mean(axis=1)).std(ddof=1)
    )


def paired_difference(
    a: np.ndarray, b: np.ndarray, resamples: int, rng: np.random.Generator
) -> dict[str, float]:
    """Compares two cells over the same runs: RMSE(a) − RMSE(b), its error, its z."""
    draws = rng.integers(len(a), size=(resamples, len(a)))
    spread = np.sqrt(a[draws].mean(axis=1)) - np.sqrt(b[draws].mean(axis=1))
    difference = float(np.sqrt(a.mean()) - np.sqrt(b.mean()))
    error = float(spread.std(ddof=1))
    return {"difference": difference, "error": error, "z": difference / error}


def run(study: Study) -> dict[str, Any]:
    """Runs the whole study and returns its figures."""
    rng = np.random.default_rng(study.seed)
    iterates = simulate(study, rng)
    cells, squared = [], {}
    for burn_in in study.burn_ins:
        for separation in study.separations:
            rounds = rounds_of(study, burn_in, separation)
            if rounds is None:
                continue
            errors = errors_of_cell(iterates, rounds)
            squared[burn_in, separation] = errors
            rmse, error = rmse_with_error(errors, study.resamples, rng)
            moments = gaussian_moments(np.zeros(len(rounds)), covariance(study, rounds))
            cells.append(
                {
                    "burn_in": burn_in,
                    "separation": separation,
                    "checkpoints": len(rounds),
                    "rmse": rmse,
                    "rmse_error": error,
                    "exact_rmse": moments.rmse(1.0),
                    "exact_bias": moments.mean - 1.0,
                }
            )
    return {
        "study": dataclasses.asdict(study),
        "last_iterate_variance": float(covariance(study, [study.steps])[0, 0]),
        "cells": cells,
        "findings": _findings(study, cells, squared, rng),
        "two_independent_runs": _two_runs(study, rng),
    }


def _findings(study, cells, squared, rng) -> list[dict[str, Any]]:
    """Puts the paper's statements to the test, each as one paired comparison."""
    exact = {(c["burn_in"], c["separation"]): c["exact_rmse"] for c in cells}
    statements = [
        ("too short a burn-in is worse: 32 against 64", (32, 2), (64, 2)),
        ("too long a burn-in is worse: 112 against 64", (112, 2), (64, 2)),
        ("64 is better than 48", (48, 2), (64, 2)),
        ("64 is better than 80", (80, 2), (64, 2)),
        ("at burn-in 64, separation 2 is better than 1", (64, 1), (64, 2)),
        ("at burn-in 64, separation 2 is better than 4", (64, 4), (64, 2)),
        ("at burn-in 64, separation 2 is better than 16", (64, 16), (64, 2)),
    ]
    found = []
    for text, worse, better in statements:
        if worse not in squared or better not in squared:
            continue
        result = paired_difference(
            squared[worse], squared[better], study.resamples, rng
        )
        found.append(
            {
                "statement": text,
                **result,
                "exact_difference": exact[worse] - exact[better],
                "verdict": _verdict(result["z"]),
            }
        )
    return found


def _verdict(z: float) -> str:
    if abs(z) < 3:
        return "not significant"
    return "holds" if z > 0 else "the opposite holds"


def _two_runs(study: Study, rng: np.random.Generator) -> dict[str, float]:
    """Two independent runs of half the steps: what the paper compares with."""
    half = dataclasses.replace(study, steps=study.steps // 2)
    noise = study.noise_stddev
    ends = []
    for _ in range(2):
        theta = study.start_stddev * rng.standard_normal(study.runs)
        for _ in range(half.steps):
            theta = study.contraction * theta + noise * rng.standard_normal(study.runs)
        ends.append(theta)
    squared = (uncertainty.variance_estimate(np.array(ends)) - 1.0) ** 2
    rmse, error = rmse_with_error(squared, study.resamples, rng)
    a, n = study.contraction, half.steps
    variance = a ** (2 * n) * study.start_stddev**2 + noise**2 * (1 - a ** (2 * n)) / (
        1 - a**2
    )
    exact = gaussian_moments(np.zeros(2), variance * np.eye(2))
    stationary = gaussian_moments(np.zeros(2), np.eye(2))
    return {
        "rmse": rmse,
        "rmse_error": error,
        "exact_rmse": exact.rmse(1.0),
        "exact_rmse_without_bias": stationary.rmse(1.0),
    }


def _cell(c: dict[str, float]) -> str:
    digits = 3 if c["exact_rmse"] < 10 else 1
    rmse, error, exact = (
        f"{c[key]:.{digits}f}" for key in ("rmse", "rmse_error", "exact_rmse")
    )
    return f"{rmse} ± {error} ({exact})"


def table(result: dict[str, Any]) -> str:
    """Formats the figures for the terminal."""
    study = result["study"]
    lines = ["RMSE ± standard error over the runs (exact value)", ""]
    head = "".join(f"{f'every {s}':>23}" for s in study["separations"])
    lines.append(f"{'burn-in':>8}{head}")
    by_key = {(c["burn_in"], c["separation"]): c for c in result["cells"]}
    for burn_in in study["burn_ins"]:
        row = f"{burn_in:>8}"
        for separation in study["separations"]:
            c = by_key.get((burn_in, separation))
            row += f"{_cell(c) if c else '—':>23}"
        lines.append(row)
    lines.append("")
    for f in result["findings"]:
        lines.append(
            f"{f['statement']}: {f['difference']:+.3f} ± {f['error']:.3f} "
            f"(z = {f['z']:+.1f}, exact {f['exact_difference']:+.4f}): {f['verdict']}"
        )
    two = result["two_independent_runs"]
    lines.append(
        f"two independent runs of {study['steps'] // 2} steps: RMSE {two['rmse']:.2f} "
        f"± {two['rmse_error']:.2f} (exact {two['exact_rmse']:.3f}; "
        f"√2 = {two['exact_rmse_without_bias']:.3f} without the bias)"
    )
    return "\n".join(lines)


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    """Draws the heat map and, beside it, two cuts with error bars."""
    from matplotlib.colors import LogNorm

    from tff_agg.experiment.study import figures

    study = result["study"]
    burn_ins, separations = list(study["burn_ins"]), list(study["separations"])
    grid = np.full((len(burn_ins), len(separations)), np.nan)
    by_key = {(c["burn_in"], c["separation"]): c for c in result["cells"]}
    for (b, s), cell in by_key.items():
        grid[burn_ins.index(b), separations.index(s)] = cell["rmse"]
    figure, (left, middle, right) = figures.new_figure(3, 5.0, 4.6, share_y=False)
    norm = LogNorm(0.4, 10, clip=True)
    image = left.imshow(grid, norm=norm, cmap="viridis_r", aspect="auto")
    for (b, s), cell in by_key.items():
        row, column = burn_ins.index(b), separations.index(s)
        dark = cell["rmse"] > 2
        left.text(
            column,
            row,
            f"{cell['rmse']:.2f}\n±{cell['rmse_error']:.2f}"
            if cell["rmse"] < 100
            else f"{cell['rmse']:.0f}\n±{cell['rmse_error']:.0f}",
            ha="center",
            va="center",
            fontsize=7.5,
            color="white" if dark else "black",
        )
    left.set_xticks(range(len(separations)), [str(s) for s in separations])
    left.set_yticks(range(len(burn_ins)), [str(b) for b in burn_ins])
    left.set(xlabel="steps between checkpoints", ylabel="burn-in (first checkpoint)")
    left.set_title(f"RMSE of the estimated variance, {study['runs']} runs")
    bar = figure.colorbar(image, ax=left, extend="both", label="RMSE (truth: 1)")
    bar.set_ticks([0.5, 1, 2, 5, 10], labels=["0.5", "1", "2", "5", "10"])
    bar.minorticks_off()
    cuts = [
        (middle, [(64, s) for s in separations]),
        (right, [(b, 2) for b in burn_ins if b >= 32]),
    ]
    for axes, keys in cuts:
        keys = [key for key in keys if key in by_key]
        if not keys:
            continue
        x = [key[1] if axes is middle else key[0] for key in keys]
        found = [by_key[key] for key in keys]
        axes.errorbar(
            x,
            [c["rmse"] for c in found],
            [2 * c["rmse_error"] for c in found],
            fmt="o",
            capsize=3,
            label="simulated, ± 2 standard errors",
        )
        axes.plot(x, [c["exact_rmse"] for c in found], "-", lw=1, label="exact")
        two = result["two_independent_runs"]["exact_rmse_without_bias"]
        axes.axhline(two, color="grey", ls=":", label="two independent runs (√2)")
        axes.set(ylabel="RMSE")
        if axes is middle:
            axes.set_ylim(0, 2)
            axes.set_xscale("log", base=2)
            axes.set_xticks(x, [str(v) for v in x])
            axes.set(title="burn-in 64", xlabel="steps between checkpoints")
        else:
            axes.set_yscale("log")
            axes.set_yticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
            axes.minorticks_off()
            axes.set(title="every 2 steps", xlabel="burn-in (first checkpoint)")
        axes.legend(fontsize=8)
    figures.save(figure, path)


def main(study: Study) -> None:
    """Simulates, writes, draws and prints."""
    result = run(study)
    draw(result, programs.write(study.out, "quadratic", result) / "quadratic.png")
    print(table(result))


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Study)
