"""Which of a run's checkpoints make its error bars, and how these compare with runs'.

Checkpoints are taken as far apart as somebody has asked for, or as far as the run's
predictions need; in the second case the bars are widened by what they fall short.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tff_agg.experiment.runs import Run
from tff_agg.recycling import separation, uncertainty
from tff_agg.recycling.methods import Progress
from tff_agg.recycling.separation import Memory

# Fewer rounds say nothing about how long a run remembers its noise.
_LEAST_ROUNDS = 9


@dataclasses.dataclass(frozen=True)
class ErrorBars:
    """How a run's checkpoints stand for independent runs.

    Attributes:
      rounds: All that may be used, in order.
      memory: How long predictions remember the noise; None where that is not known.
        The newest of `rounds` are then taken as they come.
      values: The predictions in the rounds of `memory`, [rounds, predictions].
      apart: The rounds between two of `rounds`, where they were chosen.
    """

    rounds: tuple[int, ...]
    memory: Memory | None = None
    values: np.ndarray | None = None
    apart: int | None = None

    @property
    def separation(self) -> int:
        """The rounds between two checkpoints."""
        return self.memory.separation if self.memory else self.apart or 1

    @property
    def burn_in(self) -> int:
        """The first round that is looked at."""
        return self.rounds[0] if self.memory is None else self.memory.rounds[0]

    @property
    def most(self) -> int:
        """How many checkpoints there are, however near to each other."""
        return len(self.rounds) if self.memory is None else self.memory.most

    def checkpoints(self, count: int) -> list[int]:
        """Returns the rounds of so many checkpoints, in order."""
        if self.memory is None:
            return list(self.rounds[-count:])
        return self.memory.checkpoints(count)

    def widening(self, rounds: Sequence[int]) -> float:
        """Returns the factor for the bars of what `checkpoints` has returned."""
        if self.memory is None or self.values is None:
            return 1.0
        rows = [self.memory.rounds.index(t) for t in rounds]
        return self.memory.widening(self.values[rows])

    def in_words(self) -> str:
        """Says where the bars come from."""
        if self.apart is not None:
            return f"Checkpoints {self.apart} rounds apart, as asked; bars as they are."
        if self.memory is None:
            return (
                f"The {len(self.rounds)} checkpoints are too few to tell how long "
                "predictions remember the noise: the bars are rather too short."
            )
        last = self.memory.rounds[-1]
        return (
            f"Checkpoints {self.separation} rounds apart, from round {self.burn_in} to "
            f"{last}; bars widened to what the changes of predictions over up to "
            f"{self.memory.lags[-1]} rounds say of a whole run."
        )


def of_run(
    run: Run,
    chunks: Sequence[object],
    series: str = "iterate",
    burn_in: int | None = None,
    on_progress: Progress | None = None,
) -> ErrorBars:
    """Looks at a run's predictions, round by round.

    Args:
      run: The run.
      chunks: Examples to predict, in portions that fit into memory.
      series: Which checkpoints: 'iterate' or 'aggregate'.
      burn_in: The first round to look at; see `separation.rounds_to_compare`.
      on_progress: Called with 'rounds', how many predictions are done, and of how many.
    """
    predict = run.task.predictor()
    return of_scores(
        lambda number, chunk: predict(run.load(number, series), chunk).scores,
        [t for t in run.rounds(series) if t >= (burn_in or 0)],
        chunks,
        period=run.config.pds_period if run.config.pds else 1,
        burn_in=burn_in,
        on_progress=on_progress,
    )


def of_scores(
    scores: Callable[[int, object], np.ndarray],
    available: Sequence[int],
    chunks: Sequence[object],
    *,
    period: int = 1,
    burn_in: int | None = None,
    on_progress: Progress | None = None,
) -> ErrorBars:
    """Looks at what the checkpoints of one run predict.

    Args:
      scores: Predicts a chunk with a round's checkpoint, [examples, classes].
      available: The rounds that have a checkpoint, in order.
      chunks: Examples to predict.
      period: Of a periodic shift.
      burn_in: As in `of_run`.
      on_progress: As in `of_run`.
    """
    alone = ErrorBars(tuple(available))
    if len(available) < _LEAST_ROUNDS:
        return alone
    rounds = separation.rounds_to_compare(available, burn_in=burn_in, period=period)
    if len(rounds) < _LEAST_ROUNDS:
        return alone
    parts: list[np.ndarray] = []
    for chunk in chunks:
        # Newest first: its likeliest class is looked at in all rounds.
        newest_first: list[np.ndarray] = []
        for t in reversed(rounds):
            found = scores(t, chunk)
            if not newest_first:
                likeliest = found.argmax(axis=1)
            newest_first.append(found[np.arange(len(found)), likeliest])
            if on_progress is not None:
                done = len(parts) * len(rounds) + len(newest_first)
                on_progress("rounds", done, len(chunks) * len(rounds))
        parts.append(np.stack(newest_first[::-1]))
    values = np.concatenate(parts, axis=1)
    memory = separation.memory_of(values, rounds, total=available[-1], period=period)
    return alone if memory is None else ErrorBars(alone.rounds, memory, values)


class Handle(NamedTuple):
    """One checkpoint: which run's, of which round."""

    run: int
    round: int


def compare(
    newest: Sequence[int],
    bars: Callable[[int], ErrorBars],
    scores: Callable[[Handle, object], np.ndarray],
    chunks: Sequence[object],
    sizes: Sequence[int],
    *,
    repeats: int = 5,
    seed: int = 0,
    level: float = 0.95,
    on_progress: Progress | None = None,
) -> uncertainty.Comparison:
    """Compares the error bars of independent runs with those of one run's checkpoints.

    Args:
      newest: The last round of each run. Of a single run there are only checkpoints.
      bars: Returns the checkpoints of a run.
      scores: Predicts a chunk with a checkpoint, [examples, classes].
      chunks: Examples to predict, in portions that fit into memory.
      sizes: The numbers of models.
      repeats: How many times runs are drawn.
      seed: Seeds the drawing.
      level: The confidence.
      on_progress: Called with 'predictions', how many are done, and of how many.
    """
    single = len(newest) == 1
    passes = sum(sizes) if single else repeats * (sum(sizes) + max(sizes))
    done = 0

    def advance(steps: int) -> None:
        nonlocal done
        done += steps
        if on_progress is not None:
            on_progress("predictions", done, passes * len(chunks))

    def widths(models: Sequence[Handle], of: Sequence[int]) -> uncertainty.Widths:
        return uncertainty.interval_widths(
            models, scores, chunks, of, level=level, on_progress=advance
        )

    def alone(run: int) -> uncertainty.Widths:
        means = []
        for size in sizes:
            rounds = bars(run).checkpoints(size)
            newest_first = [Handle(run, t) for t in reversed(rounds)]
            width = widths(newest_first, [size])
            means.append(width.means[0] * bars(run).widening(rounds))
        return uncertainty.Widths(tuple(sizes), np.array(means), width.examples)

    if single:
        nothing = np.empty((0, len(sizes)))
        return uncertainty.Comparison(tuple(sizes), nothing, alone(0).means[None])
    return uncertainty.compare_estimators(
        range(len(newest)),
        final=lambda run: Handle(run, newest[run]),
        widths=functools.partial(widths, of=sizes),
        alone=alone,
        repeats=repeats,
        seed=seed,
    )
