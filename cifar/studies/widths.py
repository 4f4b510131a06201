"""Interval widths from one run's checkpoints against those from independent runs.

For each separation of the checkpoints, so that it shows how far apart they have to be
before they vary as much as runs of different seeds do.
"""

import csv
import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cifar.studies import arms, side_by_side
from cifar.task import Cifar, CifarConfig
from tff_agg.experiment.config import RunConfig
from tff_agg.experiment.study import figures
from tff_agg.experiment.study.declare import Line
from tff_agg.experiment.study.results import Results
from tff_agg.experiment.study.show import Table
from tff_agg.recycling import uncertainty

SIZES = (2, 3, 4, 5)
EXAMPLES = 1000
_REPEATS = 20


class Ratios(NamedTuple):
    """What checkpoints say of uncertainty, against independent runs.

    Attributes:
      sizes: Of the sets of models.
      independent: The mean widths from runs, by size.
      checkpoints: Those from checkpoints, by separation.
      ratio: The first over the second.
      walk: See `walk`; the mean over runs. Nothing where ε was given, not the noise.
    """

    sizes: Sequence[int]
    independent: Sequence[float]
    checkpoints: Mapping[int, Sequence[float]]
    ratio: Mapping[int, Sequence[float]]
    walk: Mapping[int, float]


def steps(last: int, separations: Sequence[int]) -> tuple[int, ...]:
    """Returns the steps whose checkpoints are needed, the last one among them.

    Example:
      >>> steps(250, [1, 50])
      (50, 100, 150, 200, 246, 247, 248, 249, 250)
    """
    found = {last - n * apart for apart in separations for n in range(max(SIZES))}
    return tuple(sorted(step for step in found if step > 0))


def kept(config: RunConfig) -> tuple[int, ...]:
    """Returns the steps of a run whose checkpoints are needed."""
    needed = [
        steps(level.steps, level.separations)
        for level in arms.LEVELS.values()
        if level.steps == config.rounds
    ]
    return tuple(sorted(set().union(*needed)))


def compare(results: Results, line: Line, level: arms.Level) -> Ratios | None:
    """Compares the final iterates of a line's runs with the checkpoints of each.

    None where checkpoints are missing.

    Args:
      results: Of two seeds at least.
      line: Whose runs.
      level: Says how long the runs are and what separations to try.
    """
    needed = steps(level.steps, level.separations)
    runs = [side_by_side.checkpoints(results.out, run) for run in results.runs(line)]
    if any(set(needed) - set(run) for run in runs):
        return None
    config = results.config(line)
    assert isinstance(config, CifarConfig)
    task = Cifar(config)
    rows = task.flat_sample(task.fixed_sample("heldout", EXAMPLES))
    predict = task.predictor()
    scores = [
        {step: predict(run[step], rows).scores for step in needed} for run in runs
    ]
    found = of_scores(scores, level.steps, level.separations)
    if level.noise_multiplier is None:
        return found
    variance = level.step_variance(config.learning_rate)
    walks = [walk(run, variance) for run in runs]
    mean = {apart: float(np.mean([w[apart] for w in walks])) for apart in walks[0]}
    return found._replace(walk=mean)


def walk(kept: Mapping[int, Mapping[str, Any]], variance: float) -> dict[int, float]:
    """Says how far the weights moved in the last steps, as compared with noise alone.

    The squared distance of the last checkpoint from each earlier one, over what the
    noise of the steps between would make by itself. It is 1 for a random walk that
    nothing pulls back, less where the loss does, and more where the steps agree.

    Args:
      kept: Checkpoints by step.
      variance: What one step's noise gives every weight.
    """
    last = max(kept)
    found = {}
    for step in sorted(kept, reverse=True)[1:]:
        moved = [np.square(kept[last][n] - kept[step][n]) for n in kept[last]]
        count = sum(part.size for part in moved)
        total = sum(float(part.sum(dtype=np.float64)) for part in moved)
        found[last - step] = total / ((last - step) * count * variance)
    return found


def of_scores(
    scores: Sequence[Mapping[int, np.ndarray]], last: int, separations: Sequence[int]
) -> Ratios:
    """Compares by predicted distributions, [examples, classes] for each run's steps."""
    sizes = [size for size in SIZES if size <= len(scores)]

    def widths(models: Sequence[np.ndarray]) -> uncertainty.Widths:
        return uncertainty.interval_widths(models, lambda one, _: one, [None], sizes)

    def alone(apart: int) -> Callable[[Mapping[int, np.ndarray]], uncertainty.Widths]:
        return lambda run: widths([run[last - n * apart] for n in range(max(sizes))])

    both = {
        apart: uncertainty.compare_estimators(
            scores, lambda run: run[last], widths, alone(apart), repeats=_REPEATS
        )
        for apart in separations
    }
    return Ratios(
        sizes,
        both[separations[0]].independent.mean(axis=0).tolist(),
        {apart: b.checkpoints.mean(axis=0).tolist() for apart, b in both.items()},
        {apart: b.ratio.tolist() for apart, b in both.items()},
        {},
    )


def table(found: Mapping[str, Ratios]) -> Table:
    """Lays the ratios out: a line for each kind of run and separation."""
    most = max(len(ratios.sizes) for ratios in found.values())
    rows = [
        [name, apart, *(f"{r:.2f}" for r in ratio), *[""] * (most - len(ratio))]
        for name, ratios in found.items()
        for apart, ratio in ratios.ratio.items()
    ]
    sizes = [f"N={size}" for size in SIZES[:most]]
    return Table(["ratio of widths", "steps apart", *sizes], rows)


def every_ratio(found: Mapping[str, Ratios]) -> Table:
    """Returns all widths, for programs."""
    rows = [
        [name, apart, size, independent, width, ratio]
        for name, ratios in found.items()
        for apart, widths in ratios.checkpoints.items()
        for size, independent, width, ratio in zip(
            ratios.sizes, ratios.independent, widths, ratios.ratio[apart], strict=True
        )
    ]
    header = ("line", "apart", "models", "independent", "checkpoints", "ratio")
    return Table(header, rows)


def every_walk(found: Mapping[str, Ratios]) -> Table:
    """Returns how far the weights have moved, for programs: see `walk`."""
    rows = [
        [name, apart, moved]
        for name, ratios in found.items()
        for apart, moved in ratios.walk.items()
    ]
    return Table(("line", "steps", "over_noise"), rows)


#: A panel: by the name of a curve, widths by the number of models.
Panel = Mapping[str, Mapping[int, float]]


def panels(found: Mapping[str, Ratios]) -> dict[str, Panel]:
    """Returns a panel for each line: independent runs, checkpoints so many apart."""
    drawn: dict[str, Panel] = {}
    for name, ratios in found.items():
        curves = {"independent runs": ratios.independent}
        for apart, widths in ratios.checkpoints.items():
            curves[f"checkpoints {apart} apart"] = widths
        drawn[name] = {
            curve: dict(zip(ratios.sizes, widths, strict=True))
            for curve, widths in curves.items()
        }
    return drawn


def panel_of(folder: str) -> Panel:
    """Returns the panel of what `uncertainty` has written, of whichever task."""
    widths: dict[str, dict[int, list[float]]] = {}
    with open(pathlib.Path(folder) / "widths.csv", newline="") as file:
        for row in csv.DictReader(file):
            of_curve = widths.setdefault(row["estimator"], {})
            of_curve.setdefault(int(row["models"]), []).append(float(row["width"]))
    return {
        curve: {size: float(np.mean(several)) for size, several in by_size.items()}
        for curve, by_size in widths.items()
    }


def draw(path: pathlib.Path, drawn: Mapping[str, Panel]) -> None:
    """Draws mean widths over the number of models, a panel for each kind of run."""
    figure, axes = figures.new_figure(len(drawn), width=4.2)
    for axis, (title, curves) in zip(axes, drawn.items(), strict=True):
        for (name, widths), colour in zip(
            curves.items(), itertools.cycle(figures.COLOURS), strict=False
        ):
            style = "--" if name == "independent runs" else "-"
            axis.plot([*widths], [*widths.values()], f"o{style}", color=colour,
                      label=name)  # fmt: skip
        axis.set_title(title, fontsize=9)
        axis.set(xlabel="number of models N", yscale="log")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("mean width of the 95 % interval")
    figures.legends(figure, axes)
    figures.save(figure, path)
