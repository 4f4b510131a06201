"""Interval widths from one run's checkpoints against those from independent runs.

For each separation of the checkpoints, so that it shows how far apart they have to be
before they vary as much as runs of different seeds do; and as far apart as their
predictions say, widened, which nobody chooses.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cifar.studies import arms, side_by_side
from cifar.task import Cifar, CifarConfig
from tff_agg.aliases import Weights
from tff_agg.experiment import error_bars
from tff_agg.experiment.config import RunConfig
from tff_agg.experiment.study import widths
from tff_agg.experiment.study.declare import Line
from tff_agg.experiment.study.results import Results
from tff_agg.recycling import separation
from tff_agg.recycling.uncertainty import Comparison

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


def kept(config: RunConfig) -> tuple[int, ...]:
    """Returns the steps of a run whose checkpoints are needed."""
    every = range(1, config.rounds + 1)
    needed = {*separation.rounds_to_compare(every, period=_period(config))}
    for level in arms.LEVELS.values():
        if level.steps == config.rounds:
            needed.update(steps(level.steps, level.separations))
    return tuple(sorted(needed))


def _period(config: RunConfig) -> int:
    return config.pds_period if config.pds else 1


def checkpoints(results: Results, line: Line) -> list[dict[int, Weights]]:
    """Returns the checkpoints of each run of a line, by step; none if some lack."""
    needed = set(kept(results.config(line)))
    runs = [side_by_side.checkpoints(results.out, run) for run in results.runs(line)]
    return [] if any(needed - set(run) for run in runs) else runs


def compare(
    config: CifarConfig, runs: Sequence[Mapping[int, Weights]], level: arms.Level
) -> dict[str, Comparison]:
    """Compares the final iterates of runs with the checkpoints of each.

    Args:
      config: The runs'.
      runs: The checkpoints of two runs at least.
      level: Says how long the runs are and what separations to try.
    """
    task = Cifar(config)
    rows = task.flat_sample(task.fixed_sample("heldout", EXAMPLES))
    predict = task.predictor()
    scores = [
        {step: predict(run[step], rows).scores for step in kept(config)} for run in runs
    ]
    return of_scores(scores, level.steps, (*level.separations, 0), _period(config))


def walks(
    config: CifarConfig, runs: Sequence[Mapping[int, Weights]], level: arms.Level
) -> dict[int, float]:
    """Returns the mean of `walk` over runs; nothing where the noise follows from ε."""
    if level.noise_multiplier is None:
        return {}
    variance = level.step_variance(config.learning_rate)
    needed = steps(level.steps, level.separations)
    of_runs = [walk({step: run[step] for step in needed}, variance) for run in runs]
    return {apart: float(np.mean([w[apart] for w in of_runs])) for apart in of_runs[0]}


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
    scores: Sequence[Mapping[int, np.ndarray]],
    last: int,
    separations: Sequence[int],
    period: int = 1,
) -> dict[str, Comparison]:
    """Compares by predicted distributions, [examples, classes] for each run's steps.

    Args:
      scores: Of each run.
      last: The last step.
      separations: In steps; 0: as found.
      period: Of the shift; 1: there is none.
    """
    sizes = [size for size in SIZES if size <= len(scores)]

    @functools.cache
    def bars(apart: int, run: int) -> error_bars.ErrorBars:
        if apart:
            rounds = range(last - (max(sizes) - 1) * apart, last + 1, apart)
            return error_bars.ErrorBars(tuple(rounds), apart=apart)
        own = scores[run]
        return error_bars.of_scores(
            lambda step, chunk: own[step], sorted(own), [None], period=period
        )

    return {
        widths.in_words(apart): error_bars.compare(
            [last] * len(scores),
            functools.partial(bars, apart),
            lambda handle, chunk: scores[handle.run][handle.round],
            [None],
            sizes,
            repeats=_REPEATS,
        )
        for apart in separations
    }
