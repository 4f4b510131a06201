"""What several seeds say: means, spreads, gains, and whether a gain stands clear."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from tff_agg.recycling.metrics import ACCURACY, Metric

#: With fewer seeds there is no verdict: Student's quantile says nothing.
FEWEST_SEEDS = 3
_CONFIDENCE = 0.95


class Gain(NamedTuple):
    """How much better one method is than another, with the same seeds.

    Whatever the metric's direction, everything is positive where it is better.

    Attributes:
      mean: Over the seeds, in the values' own unit.
      relative: The same as a share of the other's mean; NaN where that is 0.
      error: The standard error of the mean; 0 for a single seed.
      t: The mean in standard errors; NaN for a single seed.
      clear: Whether it stands clear of the seeds' spread by Student's t at 95 %; None
        where there are fewer than three seeds.
      spread_ratio: The values' standard deviation as a share of the other's; NaN where
        that is 0.
      seeds_better: With how many seeds it is better.
    """

    mean: float
    relative: float
    error: float
    t: float
    clear: bool | None
    spread_ratio: float
    seeds_better: int


def std(values: Sequence[float]) -> float:
    """Returns the standard deviation over seeds; 0 for a single one.

    It is NaN where a run has diverged.
    """
    if not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values) if len(values) > 1 else 0.0


def gain(
    values: Sequence[float], baseline: Sequence[float], metric: Metric = ACCURACY
) -> Gain:
    """Compares two methods seed by seed.

    Args:
      values: One for each seed.
      baseline: The other method's, with the same seeds.
      metric: Says in which direction values are better.

    Example:
      >>> loss = Metric('loss', higher_is_better=False)
      >>> found = gain([3.8, 3.9, 3.8], [4.0, 4.1, 4.0], loss)
      >>> round(found.relative, 3), found.clear
      (0.05, True)
    """
    sign = 1 if metric.higher_is_better else -1
    changes = [sign * (v - other) for v, other in zip(values, baseline, strict=True)]
    mean = statistics.fmean(changes)
    error = std(changes) / math.sqrt(len(changes))
    t = _ratio(mean, error) if len(changes) > 1 else math.nan
    clear = None
    if len(changes) >= FEWEST_SEEDS:
        from scipy import stats

        # With three seeds the usual two errors would say far too much.
        quantile = stats.t.ppf((1 + _CONFIDENCE) / 2, len(changes) - 1)
        clear = bool(abs(mean) > quantile * error)
    base = abs(statistics.fmean(baseline))
    return Gain(
        mean=mean,
        relative=mean / base if base else math.nan,
        error=error,
        t=t,
        clear=clear,
        spread_ratio=std(values) / std(baseline) if std(baseline) else math.nan,
        seeds_better=sum(change > 0 for change in changes),
    )


def _ratio(mean: float, error: float) -> float:
    """Returns a mean in standard errors, also of changes that are all alike."""
    if error:
        return mean / error
    return math.copysign(math.inf, mean) if mean else 0.0
