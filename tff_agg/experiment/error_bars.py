"""Which of a run's checkpoints make its error bars, and how they are widened."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tff_agg.experiment.runs import Run
from tff_agg.recycling import separation
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
    available = [t for t in run.rounds(series) if t >= (burn_in or 0)]
    alone = ErrorBars(tuple(available))
    if len(available) < _LEAST_ROUNDS:
        return alone
    period = run.config.pds_period if run.config.pds else 1
    rounds = separation.rounds_to_compare(available, burn_in=burn_in, period=period)
    if len(rounds) < _LEAST_ROUNDS:
        return alone
    predict = run.task.predictor()
    parts: list[np.ndarray] = []
    for chunk in chunks:
        # Newest first: its likeliest class is looked at in all rounds.
        newest_first: list[np.ndarray] = []
        for t in reversed(rounds):
            scores = predict(run.load(t, series), chunk).scores
            if not newest_first:
                likeliest = scores.argmax(axis=1)
            newest_first.append(scores[np.arange(len(scores)), likeliest])
            if on_progress is not None:
                done = len(parts) * len(rounds) + len(newest_first)
                on_progress("rounds", done, len(chunks) * len(rounds))
        parts.append(np.stack(newest_first[::-1]))
    values = np.concatenate(parts, axis=1)
    memory = separation.memory_of(values, rounds, total=available[-1], period=period)
    return alone if memory is None else ErrorBars(alone.rounds, memory, values)
