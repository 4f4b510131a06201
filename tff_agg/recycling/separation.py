"""How far apart checkpoints have to be, and how far their error bars still fall short.

Checkpoints that follow each other hardly differ: their spread is that of the noise of a
few rounds, not of a run. How long a run remembers its noise shows in its checkpoints.
Take second differences of a prediction f(θ_t), in which a steady climb cancels:

    D(s) = mean over t and predictions of (f(θ_t) − 2 f(θ_{t−s}) + f(θ_{t−2s}))² / 6.

Where the noise of s rounds ago is forgotten, D(s) is the variance of a prediction, and
no more for longer s. Where it is not, D(s) is less, and up to twice as much at 2s: for
a random walk, which forgets nothing. A memory of which r is left after s rounds has
D(s) = (1 − r)(3 − r)/3 of the variance. So D at the longest lag L and at 2L say how
much is left after L rounds, and with it the variance after all T rounds of the run;
D(s) over that variance gives the correlation over s rounds. Checkpoints are taken as
far apart as it takes to forget, and their bars are widened, all by one factor, to that
variance.

It is post-processing of released checkpoints: no privacy is spent.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tff_agg import checks

# Checkpoints that correlate by no more than this count as independent: with so much
# their spread is still nine tenths of what it should be.
_ENOUGH = 0.2
# More than this cannot be told from 1, where nothing is forgotten: D(2s)/D(s) is 1.995
# here, and 2 there.
_MOST_LEFT = 0.95
# At most so many spaces between the checkpoints that are compared.
_SPACES = 64


@dataclasses.dataclass(frozen=True)
class Memory:
    """How long a run's predictions remember the noise.

    Attributes:
      rounds: The evenly spaced rounds that were compared.
      lags: Numbers of rounds between two checkpoints, in order.
      correlations: How much predictions correlate over each of them, from 0 to 1.
      variance: Of a prediction in the last round, mean over all of them.
    """

    rounds: tuple[int, ...]
    lags: tuple[int, ...]
    correlations: tuple[float, ...]
    variance: float

    @property
    def separation(self) -> int:
        """The least lag with hardly any correlation; the longest if there is none."""
        both = zip(self.lags, self.correlations, strict=True)
        return next((s for s, r in both if r <= _ENOUGH), self.lags[-1])

    @property
    def most(self) -> int:
        """How many checkpoints there are, however near to each other."""
        return (self.rounds[-1] - self.rounds[0]) // self.lags[0] + 1

    def checkpoints(self, count: int) -> list[int]:
        """Returns the newest rounds that are `separation` apart.

        Args:
          count: How many, from 2 to `most`. If they do not fit, they are as far apart
            as they can be.

        Example:
          >>> memory = Memory((50, 60, 70, 80, 90, 100), (10, 20), (0.5, 0.1), 1.0)
          >>> memory.checkpoints(3), memory.checkpoints(4)
          ([60, 80, 100], [70, 80, 90, 100])
        """
        checks.whole("count", count, least=2, most=self.most)
        unit, last = self.lags[0], self.rounds[-1]
        widest = (last - self.rounds[0]) // (count - 1)
        apart = min(self.separation, widest // unit * unit)
        return [last - apart * i for i in reversed(range(count))]

    def widening(self, values: np.ndarray) -> float:
        """Returns the factor for the standard deviations of some checkpoints' values.

        With it, the mean of their variances is that of the run.

        Args:
          values: Predictions of at least two checkpoints, [checkpoints, predictions].

        Example:
          >>> memory = Memory((0, 1), (1,), (0.9,), variance=8.0)
          >>> memory.widening(np.array([[1.0], [3.0]]))
          2.0
        """
        spread = np.asarray(values, np.float64).var(axis=0, ddof=1).mean()
        return float(np.sqrt(self.variance / spread)) if spread > 0 else 1.0


def rounds_to_compare(
    available: Sequence[int], *, burn_in: int | None = None, period: int = 1
) -> list[int]:
    """Returns the rounds whose predictions tell how long a run remembers.

    They are evenly spaced, and multiples of the space, as stored checkpoints are
    (`keep_every`).

    Args:
      available: The rounds that have a checkpoint, in order.
      burn_in: The first round to use. Without it the second half of the run, and under
        a shift at least its last four periods.
      period: Of a periodic shift. Checkpoints that are not whole periods apart differ
        by its swing too, which is no noise.

    Example:
      >>> rounds_to_compare(range(1001), burn_in=900)[:3]
      [900, 902, 904]
      >>> rounds_to_compare([*range(0, 800, 10), *range(800, 1001)])[:3]
      [500, 510, 520]
    """
    have, last = set(available), available[-1]
    if burn_in is None:
        burn_in = last // 2 if period == 1 else min(last // 2, last - 4 * period)
    first = max(burn_in, available[0])
    for space in range(max(1, -(-(last - first) // _SPACES)), last - first + 1):
        spaced = range(-(-first // space) * space, last + 1, space)
        if (period == 1 or period % space == 0) and have.issuperset(spaced):
            return list(spaced)
    raise ValueError(f"there is one checkpoint from round {first} on; 2 are needed")


def memory_of(
    values: np.ndarray, rounds: Sequence[int], *, total: int, period: int = 1
) -> Memory | None:
    """Returns how long a run's predictions remember the noise.

    Args:
      values: Predictions, [rounds, predictions].
      rounds: Their rounds, evenly spaced; see `rounds_to_compare`.
      total: How many rounds of noise are in the last checkpoint.
      period: Of a periodic shift; only lags of whole periods are looked at.

    Returns:
      None where there are too few rounds to tell, or the predictions do not move.
    """
    values = np.asarray(values, np.float64)
    spaces = sorted({int(space) for space in np.diff(rounds)})
    if len(spaces) != 1 or (period > 1 and period % spaces[0]):
        raise ValueError(
            f"rounds must be evenly spaced, by a divisor of the period {period}; there "
            f"are spaces of {spaces}"
        )
    (space,) = spaces
    unit = period // space if period > 1 else 1
    by_shift = {
        shift: _second_difference(values, shift)
        for shift in range(unit, (len(rounds) - 1) // 2 + 1, unit)
    }
    # How much is left after a lag follows from D at the lag and at its double. Where no
    # lag has a double, nothing counts as left.
    doubled = [shift for shift in by_shift if 2 * shift in by_shift]
    longest = max(doubled or by_shift, default=0)
    if not longest or by_shift[longest] == 0:
        return None
    left = (
        _left_by_doubling(by_shift[2 * longest] / by_shift[longest]) if doubled else 0.0
    )
    variance = by_shift[longest] * _growth(left, 2 * total / (longest * space))
    lags = [shift for shift in by_shift if shift <= longest]
    return Memory(
        tuple(rounds),
        tuple(shift * space for shift in lags),
        tuple(_left_by_share(by_shift[shift] / variance) for shift in lags),
        variance,
    )


def _second_difference(values: np.ndarray, shift: int) -> float:
    """Returns D at a lag of so many rows."""
    newest, middle = values[2 * shift :], values[shift:-shift]
    difference = newest - 2.0 * middle + values[: -2 * shift]
    return float(np.mean(difference**2) / 6.0)


def _left_by_doubling(ratio: float) -> float:
    """Solves (1 + r)(3 − r²)/(3 − r) = D(2s)/D(s), which rises from 1 to 2."""
    grid = np.linspace(0.0, _MOST_LEFT, 1001)
    ratios = (1.0 + grid) * (3.0 - grid**2) / (3.0 - grid)
    return float(np.interp(ratio, ratios, grid))


def _left_by_share(share: float) -> float:
    """Solves (1 − r)(3 − r)/3 = share for r in [0, 1]."""
    return float(max(0.0, 2.0 - np.sqrt(1.0 + 3.0 * share)))


def _growth(left: float, lags: float) -> float:
    """Returns the variance of the last round over D at a lag.

    Args:
      left: How much is left after the lag.
      lags: Twice the length of the run, in such lags. After them 1 − left^lags of the
        variance of an endless run are there.
    """
    return 3.0 * (1.0 - left**lags) / ((1.0 - left) * (3.0 - left))
