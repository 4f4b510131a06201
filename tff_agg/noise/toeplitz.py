"""Lower-triangular Toeplitz matrices as power series, and the error they leave.

A lower-triangular Toeplitz matrix is its first column; products and inverses are those
of power series. If the noise C⁻¹z goes through a workload A (what training does with
the rounds' sums), what comes out has the rows of B = AC⁻¹. For a single unit of noise
multiplier the error also carries the sensitivity of C.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg

from tff_agg import checks

METRICS = ("mean", "max")


def check_schema(
    rounds: int, separation: int | None, participations: int
) -> tuple[int, int, int]:
    """Returns what a mechanism is optimised for, its separation filled in."""
    rounds = checks.whole("rounds", rounds)
    participations = checks.whole("participations", participations)
    if separation is None:
        if participations > 1:
            raise ValueError(
                f"participations={participations} needs a separation of the rounds"
            )
        return rounds, rounds, participations
    separation = checks.whole("separation", separation)
    if (participations - 1) * separation >= rounds:
        raise ValueError(
            f"participations={participations} at separation={separation} do not fit "
            f"into rounds={rounds}"
        )
    return rounds, separation, participations


def square_root(series: np.ndarray) -> np.ndarray:
    """Returns the square root of a power series, as many terms as it has.

    Example:
      >>> square_root(np.ones(3))
      array([1.   , 0.5  , 0.375])
    """
    if not series[0] > 0:
        raise ValueError(f"the first term must be positive, got {series[0]}")
    root = np.zeros(len(series))
    root[0] = series[0] ** 0.5
    for k in range(1, len(series)):
        inside = root[1:k] @ root[k - 1 : 0 : -1]
        root[k] = (series[k] - inside) / (2 * root[0])
    return root


def explicit(column: np.ndarray) -> np.ndarray:
    """Returns the lower-triangular Toeplitz matrix of a first column."""
    return scipy.linalg.toeplitz(column, np.zeros(len(column)))


def error_weights(n: int, metric: str) -> np.ndarray:
    """Returns how B's squared coefficients add up to the squared error."""
    checks.choice("metric", metric, METRICS)
    return np.arange(n, 0, -1) / n if metric == "mean" else np.ones(n)


class Value(NamedTuple):
    """A number and its gradient with respect to the first column of C."""

    value: float
    gradient: np.ndarray


def error_with_gradient(
    column: np.ndarray,
    workload: np.ndarray,
    weights: np.ndarray,
    series: tuple[np.ndarray, np.ndarray] | None = None,
) -> Value:
    """Returns the squared error and its gradient in len(column) coefficients.

    Args:
      column: First column of C.
      workload: First column of A.
      weights: From `error_weights`.
      series: (numerator, denominator) of a short rational form of C, if there is one;
        dividing by it is much cheaper than by a long column.
    """
    # It imports scipy.stats: a third of what a program without noise would wait for.
    import scipy.signal

    over, under = series if series is not None else (column, np.ones(1))
    rows = scipy.signal.lfilter(under, over, workload)
    again = scipy.signal.lfilter(under, over, rows)
    pull = 2 * weights * rows
    # d rows = −(rows / c)·dc as power series: its adjoint is a correlation.
    lags = scipy.signal.fftconvolve(pull[::-1], again)[: len(workload)][::-1]
    return Value(float(weights @ rows**2), -lags[: len(column)])


def spread_with_gradient(
    column: np.ndarray, n: int, separation: int, participations: int
) -> Value:
    """Returns the squared norm of the columns 0, b, 2b, … of C added up.

    That is the squared sensitivity where the coefficients are non-negative and fall.
    """
    total = np.zeros(n)
    starts = [i * separation for i in range(participations) if i * separation < n]
    for start in starts:
        stop = min(n, start + len(column))
        total[start:stop] += column[: stop - start]
    gradient = np.zeros(len(column))
    for start in starts:
        stop = min(n, start + len(column))
        gradient[: stop - start] += 2 * total[start:stop]
    return Value(float(total @ total), gradient)
