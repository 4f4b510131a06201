"""What several seeds say: means, spreads, gains, and whether a gain stands clear."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# Student's quantile at so many seeds or fewer says nothing.
FEWEST_SEEDS = 3


class Gain(NamedTuple):
    """How much better one method is than another, with the same seeds.

    Attributes:
      mean: Over the seeds; in the values' own unit, positive or not.
      relative: The same as a share of the other's mean.
      error: The standard error of the mean; 0 for a single seed.
      clear: Whether it stands clear of the seeds' spread by Student's t at 95 %; None
        where there are fewer than three seeds.
    """

    mean: float
    relative: float
    error: float
    clear: bool | None


def spread(values: Sequence[float]) -> float:
    """Returns the standard deviation over seeds; 0 for a single one."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def gain(values: Sequence[float], baseline: Sequence[float]) -> Gain:
    """Compares two methods seed by seed.

    Example:
      >>> gain([0.22, 0.23, 0.24], [0.2, 0.2, 0.2]).clear
      True
    """
    changes = [one - other for one, other in zip(values, baseline, strict=True)]
    mean = statistics.fmean(changes)
    error = spread(changes) / math.sqrt(len(changes))
    clear = None
    if len(changes) >= FEWEST_SEEDS:
        from scipy import stats

        # With three seeds the usual two errors would say far too much.
        clear = bool(abs(mean) > stats.t.ppf(0.975, len(changes) - 1) * error)
    return Gain(mean, mean / statistics.fmean(baseline), error, clear)
