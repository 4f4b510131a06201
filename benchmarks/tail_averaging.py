"""Averages of checkpoints against the last one: where a log factor comes from.

Projected noisy gradient descent that is ρ-zCDP, on three convex problems:

private: n points d_i in the unit ball, ℓ(θ; d) = ½ (θ − d)ᵀΛ(θ − d) with eigenvalues
  1, ½, ¼, …, 1/T. The noise shakes every coordinate, stiff or flat, by the same amount
  of loss, η σ²/4; averaging removes it from the stiff ones. So the last iterate pays
  for each of the log₂ T scales, an average only for the flattest few. The dimension
  grows with n here, p = 1 + log₂ T, and the factor is that of the dimension.
fixed dimension: the same with the eigenvalues of the smallest n for every n. The last
  iterate's loss stays where it is, in units of the bound without its log factor: there
  is no log n to be seen.
worst case: without noise, the piecewise linear function on which subgradient descent
  with steps 1/√t ends log(T) higher than its averages (after Harvey et al., 2019).

The noise has the variance L²T / (2n²ρ): the mean gradient changes by at most L/n when
one example is added or removed, and T steps of Δ²/(2σ²) each make ρ. (The paper prints
n where n² belongs.) The theorem bounds all problems from above. The worst case shows
that some need its log n, the fixed dimension that others do not.

    python -m benchmarks.tail_averaging --out=results/tail_averaging
"""

import dataclasses
import math
import pathlib
from typing import Any

import numpy as np

from benchmarks import programs
from tff_agg.fields import described

METHODS = ("last", "uta", "pda")
_LABELS = {
    "last": "last iterate",
    "uta": "UTA (last half)",
    "pda": "PDA (γ = 3)",
}


@dataclasses.dataclass(frozen=True)
class Study:
    """The settings of all problems."""

    exponents: tuple[int, ...] = described(
        (8, 9, 10, 11, 12, 13, 14, 15, 16), "of n, which is a power of two"
    )
    rho: float = described(1.0, "ρ of zCDP")
    steps_share: float = described(0.25, "T over n √ρ")
    learning_rate: float = described(0.5, "the rate")
    repeats: int = described(256, "repeats for each n", at_least=2)
    worst_case_steps: tuple[int, ...] = described(
        (32, 64, 128, 256, 512, 1024, 2048), "T of the worst case"
    )
    gamma: float = described(3.0, "γ of PDA")
    seed: int = described(0, "seeds data and noise")
    out: str = described("results/tail_averaging", "where the results go")


def noise_stddev(lipschitz: float, steps: int, n: int, rho: float) -> float:
    """Returns σ for which `steps` steps on n examples are together ρ-zCDP."""
    return lipschitz * math.sqrt(steps / (2 * rho)) / n


def zcdp(lipschitz: float, steps: int, n: int, stddev: float) -> float:
    """Returns the ρ of `steps` Gaussian steps; adding or removing one example."""
    return steps * (lipschitz / n) ** 2 / (2 * stddev**2)


def project(theta: np.ndarray) -> np.ndarray:
    """Projects each row onto the unit ball."""
    norm = np.sqrt(np.einsum("ij,ij->i", theta, theta))
    return theta / np.maximum(norm, 1.0)[:, None]


class Averages:
    """The last iterate, the mean of the last half and the PDA, as they go."""

    def __init__(self, start: np.ndarray, steps: int, gamma: float):
        self.values = {"last": start, "uta": np.zeros_like(start), "pda": start}
        self._steps, self._gamma, self._step = steps, gamma, 0

    def add(self, theta: np.ndarray) -> None:
        """Takes θ_1, …, θ_T."""
        self._step += 1
        t, tail = self._step, self._steps - self._steps // 2
        self.values["last"] = theta
        if t > self._steps - tail:
            self.values["uta"] += theta / tail
        weight = (self._gamma + 1) / (t + self._gamma)
        self.values["pda"] = self.values["pda"] * (1 - weight) + weight * theta


def steps_of(n: int, study: Study) -> int:
    """Returns T, in proportion to n."""
    return max(2, math.ceil(study.steps_share * n * math.sqrt(study.rho)))


def dimension_of(n: int, study: Study) -> int:
    """Returns 1 + log₂ T: as many scales as can be told apart within T steps."""
    return math.floor(math.log2(steps_of(n, study))) + 1


def private_descent(
    n: int, study: Study, rng: np.random.Generator, dimension: int | None = None
) -> dict[str, np.ndarray]:
    """Runs DP-GD on the quadratic; returns each repeat's excess risk by method.

    Args:
      n: How many examples.
      study: The settings.
      rng: Draws data and noise.
      dimension: How many eigenvalues; not given: as many as `dimension_of` says.
    """
    steps = steps_of(n, study)
    scales = 2.0 ** -np.arange(dimension or dimension_of(n, study))
    # ‖Λ(θ − d)‖ ≤ 2 on the unit ball, whose points the examples are.
    stddev = noise_stddev(2.0, steps, n, study.rho)
    centre = np.full(len(scales), 0.5 / math.sqrt(len(scales)))
    data = project(centre + 0.3 * rng.standard_normal((n, len(scales))))
    optimum = data.mean(axis=0)
    theta = np.zeros((study.repeats, len(scales)))
    averages = Averages(theta, steps, study.gamma)
    for start in range(0, steps, 512):
        count = min(512, steps - start)
        noise = stddev * rng.standard_normal((count, *theta.shape))
        for b in noise:
            gradient = scales * (theta - optimum)
            theta = project(theta - study.learning_rate * (gradient + b))
            averages.add(theta)
    return {
        name: 0.5 * (scales * (value - optimum) ** 2).sum(axis=1)
        for name, value in averages.values.items()
    }


def worst_case(steps: int, gamma: float) -> dict[str, float]:
    """Runs subgradient descent on max_i h_i·θ; returns the values by method.

    h_i has a_j = 1 / (8 (T − j + 1)) at j < i and −√i / (2√T) at i; the minimum over
    the unit ball is at most 0, and the start 0 has the value 0.
    """
    index = np.arange(1, steps + 2)
    slope = np.where(index <= steps, 1 / (8.0 * np.maximum(steps - index + 1, 1)), 0)
    drop = np.where(index <= steps, np.sqrt(index) / (2 * math.sqrt(steps)), 0.0)

    def pieces(theta: np.ndarray) -> np.ndarray:
        terms = slope * theta
        return np.cumsum(terms) - terms - drop * theta

    theta = np.zeros(steps + 1)
    averages = Averages(theta[None], steps, gamma)
    for t in range(1, steps + 1):
        active = int(np.argmax(pieces(theta)))
        gradient = np.where(np.arange(steps + 1) < active, slope, 0.0)
        gradient[active] = -drop[active]
        theta = project((theta - gradient / math.sqrt(t))[None])[0]
        averages.add(theta[None])
    return {name: float(pieces(v[0]).max()) for name, v in averages.values.items()}


def slope_with_error(
    x: np.ndarray, y: np.ndarray, error: np.ndarray
) -> dict[str, float]:
    """Fits y = a + b x by weighted least squares; returns b, its error and its z."""
    weight = 1 / error**2
    mean = np.average(x, weights=weight)
    spread = (weight * (x - mean) ** 2).sum()
    slope = float((weight * (x - mean) * y).sum() / spread)
    return {
        "slope": slope,
        "error": float(spread**-0.5),
        "z": float(slope * spread**0.5),
        "intercept": float(np.average(y, weights=weight) - slope * mean),
    }


def run(study: Study) -> dict[str, Any]:
    """Runs all problems and returns the figures."""
    rng = np.random.default_rng(study.seed)
    private = _private_rows(study, rng, None)
    smallest = dimension_of(2 ** study.exponents[0], study)
    fixed = _private_rows(study, rng, smallest)
    worst = [
        {
            "steps": steps,
            **{
                name: value * math.sqrt(steps)
                for name, value in worst_case(steps, study.gamma).items()
            },
        }
        for steps in study.worst_case_steps
    ]
    return {
        "study": dataclasses.asdict(study),
        "private": private,
        "fixed_dimension": fixed,
        "worst_case": worst,
        "per_doubling_of_n": _growth(private),
        "per_doubling_of_n_at_fixed_dimension": _growth(fixed),
    }


def _private_rows(
    study: Study, rng: np.random.Generator, dimension: int | None
) -> list[dict[str, Any]]:
    """Runs DP-GD for every n; excess risks in units of the bound without its log."""
    rows = []
    for n in (2**exponent for exponent in study.exponents):
        excess = private_descent(n, study, rng, dimension)
        unit = 2.0 * 2.0 / (n * math.sqrt(study.rho))  # L ‖C‖ / (n √ρ)
        row: dict[str, Any] = {
            "n": n,
            "dimension": dimension or dimension_of(n, study),
        }
        for name, values in excess.items():
            error = values.std(ddof=1) / math.sqrt(len(values))
            row[name] = float(values.mean() / unit)
            row[f"{name}_error"] = float(error / unit)
        for name in ("uta", "pda"):
            ratio = row["last"] / row[name]
            relative = [row[f"{m}_error"] / row[m] for m in ("last", name)]
            row[f"last_over_{name}"] = ratio
            row[f"last_over_{name}_error"] = ratio * math.hypot(*relative)
        rows.append(row)
    return rows


def _growth(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Fits how much each figure grows with each doubling of n."""
    x = np.log2([row["n"] for row in rows])
    found = {}
    for key in ("last", "uta", "pda", "last_over_uta", "last_over_pda"):
        values, errors = (np.array([r[k] for r in rows]) for k in (key, f"{key}_error"))
        found[key] = slope_with_error(x, values, errors)
    return found


def table(result: dict[str, Any]) -> str:
    """Formats the figures for the terminal."""
    lines = ["DP-GD: excess risk · n√ρ / (L‖C‖), ± standard error over repeats"]
    for title, rows, growth in (
        ("as many dimensions as scales", "private", "per_doubling_of_n"),
        (
            "one dimension for all n",
            "fixed_dimension",
            "per_doubling_of_n_at_fixed_dimension",
        ),
    ):
        lines += ["", f"{title}:", "", *_private_lines(result[rows])]
        lines += ["", "growth per doubling of n (weighted least squares):"]
        for key, fit in result[growth].items():
            lines.append(
                f"{key:>16}: {fit['slope']:+.4f} ± {fit['error']:.4f} "
                f"(z = {fit['z']:+.1f})"
            )
    lines += ["", "worst case without noise: excess · √T", ""]
    lines.append(f"{'T':>8}{'last':>10}{'UTA':>10}{'PDA':>10}")
    for row in result["worst_case"]:
        lines.append(
            f"{row['steps']:>8}" + "".join(f"{row[m]:>10.4f}" for m in METHODS)
        )
    return "\n".join(lines)


def _private_lines(rows: list[dict[str, Any]]) -> list[str]:
    heads = ("p", "last", "UTA", "PDA", "last/UTA", "last/PDA")
    lines = [f"{'n':>8}{heads[0]:>4}" + "".join(f"{h:>16}" for h in heads[1:])]
    for row in rows:
        cells = [
            f"{row[k]:.4f} ± {row[k + '_error']:.4f}" for k in ("last", "uta", "pda")
        ]
        cells += [
            f"{row[k]:.2f} ± {row[k + '_error']:.2f}"
            for k in ("last_over_uta", "last_over_pda")
        ]
        head = f"{row['n']:>8}{row['dimension']:>4}"
        lines.append(head + "".join(f"{c:>16}" for c in cells))
    return lines


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    """Draws the problems, and the ratio that grows with the dimension."""
    from tff_agg.experiment.study import figures

    figure, (left, middle, right) = figures.new_figure(3, 5.0, 4.4, share_y=False)
    private, worst = result["private"], result["worst_case"]
    n = np.array([row["n"] for row in private])
    for name in METHODS:
        left.errorbar(
            n,
            [row[name] for row in private],
            [2 * row[f"{name}_error"] for row in private],
            fmt="o-",
            capsize=3,
            label=_LABELS[name],
        )
        right.plot(
            [row["steps"] for row in worst],
            [row[name] for row in worst],
            "o-",
            label=_LABELS[name],
        )
    fixed = result["fixed_dimension"]
    left.plot(
        n,
        [row["last"] for row in fixed],
        "k:",
        label=f"last iterate, p = {fixed[0]['dimension']} for all n",
    )
    left.set(
        xlabel="n",
        ylabel="excess risk · n√ρ / (L‖C‖)",
        title="DP-GD, ρ-zCDP, p = 1 + log₂ T: only the last iterate grows",
    )
    for name in ("uta", "pda"):
        key = f"last_over_{name}"
        points = middle.errorbar(
            n,
            [row[key] for row in private],
            [2 * row[f"{key}_error"] for row in private],
            fmt="o",
            capsize=3,
            label=f"last / {_LABELS[name]}",
        )
        fit = result["per_doubling_of_n"][key]
        middle.plot(
            n,
            fit["intercept"] + fit["slope"] * np.log2(n),
            "--",
            color=points[0].get_color(),
            label=f"a + {fit['slope']:.3f} log₂ n",
        )
    middle.set(
        xlabel="n", ylabel="ratio of excess risks", title="The factor of the dimension"
    )
    right.set(
        xlabel="T",
        ylabel="excess · √T",
        title="Worst case without noise (steps 1/√t)",
    )
    for axes in (left, middle, right):
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
    figures.save(figure, path)


def main(study: Study) -> None:
    """Simulates, writes, draws and prints."""
    result, name = run(study), "tail_averaging"
    draw(result, programs.write(study.out, name, result) / f"{name}.png")
    print(table(result))


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Study)
