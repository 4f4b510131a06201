"""Interval widths from one run's checkpoints against those from independent runs.

For each separation of the checkpoints, so that it shows how far apart they have to be
before they vary as much as runs of different seeds do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import cifar_arms as arms
from benchmarks.cifar_lanes import Bundle, Settings
from cifar.task import Cifar, CifarConfig
from tff_agg.experiment.study import show
from tff_agg.recycling import uncertainty

SIZES = (2, 3, 4, 5)
EXAMPLES = 1000
_REPEATS = 20


def steps(last: int, separations: Sequence[int]) -> tuple[int, ...]:
    """Returns the steps whose checkpoints are needed, the last one among them.

    Example:
      >>> steps(250, [1, 50])
      (50, 100, 150, 200, 246, 247, 248, 249, 250)
    """
    found = {last - n * apart for apart in separations for n in range(max(SIZES))}
    return tuple(sorted(step for step in found if step > 0))


def compare(
    bundles: Sequence[Bundle], settings: Settings, level: arms.Level, data_dir: str
) -> dict[str, Any]:
    """Compares the final iterates of runs with the checkpoints of each.

    Args:
      bundles: Runs of different seeds, two at least.
      settings: Which of each bundle's runs.
      level: Says how long the runs are and what separations to try.
      data_dir: Where the data are.

    Returns:
      'sizes'; 'independent': the mean widths from runs, by size; by separation,
      'checkpoints': those from checkpoints, and 'ratio'; 'walk': see `walk`, the mean
      over runs.
    """
    task = Cifar(CifarConfig(data_dir=data_dir, rounds=1, noise_multiplier=1.0))
    rows = task.flat_sample(task.fixed_sample("heldout", EXAMPLES))
    predict = task.predictor()
    needed = steps(level.steps, level.separations)
    variance = level.step_variance(settings["learning_rate"])
    scores, walks = [], []
    for bundle in bundles:
        kept = bundle.checkpoints(settings)
        scores.append({step: predict(kept[step], rows).scores for step in needed})
        walks.append(walk(kept, variance))
    return of_scores(scores, level.steps, level.separations) | {
        "walk": {
            apart: float(np.mean([found[apart] for found in walks]))
            for apart in walks[0]
        }
    }


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
) -> dict[str, Any]:
    """Compares by predicted distributions, [examples, classes] for each run's steps."""
    sizes = [size for size in SIZES if size <= len(scores)]

    def widths(models: Sequence[np.ndarray]) -> uncertainty.Widths:
        return uncertainty.interval_widths(models, lambda one, _: one, [None], sizes)

    def final(run: Mapping[int, np.ndarray]) -> np.ndarray:
        return run[last]

    found: dict[str, Any] = {"sizes": sizes, "checkpoints": {}, "ratio": {}}
    for apart in separations:

        def alone(
            run: Mapping[int, np.ndarray], apart: int = apart
        ) -> uncertainty.Widths:
            return widths([run[last - n * apart] for n in range(max(sizes))])

        both = uncertainty.compare_estimators(
            scores, final, widths, alone, repeats=_REPEATS
        )
        found["independent"] = both.independent.mean(axis=0).tolist()
        found["checkpoints"][apart] = both.checkpoints.mean(axis=0).tolist()
        found["ratio"][apart] = both.ratio.tolist()
    return found


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Lays the ratios out: a line for each kind of run and separation."""
    rows = [
        [name, apart, *(f"{ratio:.2f}" for ratio in ratios)]
        for name, facts in found.items()
        for apart, ratios in facts["ratio"].items()
    ]
    most = max((len(row) - 2 for row in rows), default=0)
    padded = [[*map(str, row), *[""] * (most + 2 - len(row))] for row in rows]
    sizes = [f"N={size}" for size in SIZES[:most]]
    header = ["ratio of widths", "steps apart", *sizes]
    return show.render(show.Table(header, padded))
