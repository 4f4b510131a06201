"""Banded Toeplitz noise: a few diagonals, so that distant rounds are orthogonal.

With as many bands as participations of a user are apart, the columns of C that one
user can touch do not overlap, and k participations cost exactly √k times one.
"""

import math
import os
from collections.abc import Sequence

import numpy as np
import scipy.optimize
from scipy.special import expit, logit

from tff_agg import checks, structure
from tff_agg.aliases import Json, JsonObject
from tff_agg.backends import combine
from tff_agg.noise import cache as caches
from tff_agg.noise import toeplitz, workloads
from tff_agg.noise.mechanism import Mechanism, Stream
from tff_agg.noise.workloads import Workload, prefix_sum


def banded_from(
    coefficients: Sequence[float] | np.ndarray, **reported: Json
) -> Mechanism:
    """Builds the mechanism whose C has the given diagonals.

    Solving Cw = z row by row takes the last b − 1 rows of w, which are the buffers.

    Args:
      coefficients: The diagonals of C, the main one (not zero) first.
      **reported: Further parameters to report.

    Example:
      >>> banded_from([1.0, 0.5]).matrix(3)
      array([[1. , 0. , 0. ],
             [0.5, 1. , 0. ],
             [0. , 0.5, 1. ]])
    """
    diagonals = np.asarray(coefficients, np.float64)
    if diagonals.ndim != 1 or not len(diagonals) or not np.isfinite(diagonals).all():
        raise ValueError(f"coefficients must be finite numbers, got {coefficients!r}")
    if diagonals[0] <= 0:
        raise ValueError(f"the main diagonal must be positive, got {diagonals[0]}")
    bands = len(diagonals)
    first, *others = (float(value) for value in diagonals)

    def column(n: int) -> np.ndarray:
        return np.concatenate([diagonals, np.zeros(max(0, n - bands))])[:n]

    def start(backend, like):
        return tuple(structure.map_leaves(backend.zeros, like) for _ in others)

    def step(backend, buffers, round, draw, like):
        taken = [(-c / first, w) for c, w in zip(others, buffers, strict=True)]
        noise = combine(backend, [(1.0 / first, draw(round)), *taken])
        # The newest comes first; shifting a tuple copies nothing.
        return (noise, *buffers)[: bands - 1], noise

    return Mechanism(
        name="banded",
        stream=Stream(start, step),
        matrix=lambda n: toeplitz.explicit(column(n)),
        buffers=bands - 1,
        parameters={"coefficients": diagonals.tolist(), **reported},
        toeplitz=column,
        bands=bands,
    )


def banded_square_root(bands: int, workload: Workload = prefix_sum()) -> Mechanism:
    """The square root of the workload, cut after `bands` diagonals.

    Args:
      bands: How many diagonals; as many as the run has rounds gives the whole root.
      workload: What the server does with the rounds' sums; see `workloads`.

    Example:
      >>> banded_square_root(3).toeplitz(4)
      array([1.   , 0.5  , 0.375, 0.   ])
    """
    bands, workload = checks.whole("bands", bands), workloads.check(workload)
    return banded_from(
        workload.square_root(bands),
        form="square root",
        **workload.to_json(),
    )


def banded(
    rounds: int,
    bands: int,
    *,
    separation: int | None = None,
    participations: int = 1,
    workload: Workload = prefix_sum(),
    metric: str = "mean",
    cache: str | os.PathLike | None = None,
) -> Mechanism:
    """Optimises a banded Toeplitz mechanism with falling coefficients.

    Args:
      rounds: The run's length, for which it is optimised. It serves longer runs too.
      bands: How many diagonals C has; the state holds one buffer less.
      separation: The least distance of two participations of a user.
      participations: The most participations of a user.
      workload: What the server does with the rounds' sums; see `workloads`.
      metric: 'mean' squared error over the rounds, or the 'max'.
      cache: A folder for results, None for no cache.

    Returns:
      The mechanism.

    Example:
      >>> banded(rounds=100, bands=8).buffers
      7
    """
    rounds, separation, participations = toeplitz.check_schema(
        rounds, separation, participations
    )
    bands = checks.whole("bands", bands, most=rounds)
    toeplitz.error_weights(1, metric)
    inputs: JsonObject = {
        "rounds": rounds,
        "bands": bands,
        "separation": separation,
        "participations": participations,
        **workloads.check(workload).to_json(),
        "metric": metric,
    }
    found = caches.cached(
        cache,
        {"kind": "banded", **inputs},
        lambda: _optimise(rounds, bands, separation, participations, workload, metric),
    )
    return banded_from(found, optimised_for=inputs)


def _optimise(
    n: int,
    bands: int,
    separation: int,
    participations: int,
    workload: Workload,
    metric: str,
) -> np.ndarray:
    """Minimises log(error² · sensitivity²) over the ratios of neighbouring diagonals.

    Ratios between 0 and 1 keep the coefficients falling, for which the sensitivity is
    known exactly.
    """
    if bands == 1:
        return np.ones(1)
    target = workload.first_column(n)
    weights = toeplitz.error_weights(n, metric)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        ratios = expit(x)
        column = np.concatenate([[1.0], np.cumprod(ratios)])
        error = toeplitz.error_with_gradient(column, target, weights)
        spread = toeplitz.spread_with_gradient(column, n, separation, participations)
        slope = error.gradient / error.value + spread.gradient / spread.value
        by_ratio = np.cumsum((slope[1:] * column[1:])[::-1])[::-1]
        value = math.log(error.value) + math.log(spread.value)
        return value, by_ratio * (1 - ratios)

    root = workload.square_root(bands)
    # A workload that sums nothing has a root of one term.
    ratios = np.divide(
        root[1:], root[:-1], out=np.zeros(bands - 1), where=root[:-1] > 0
    )
    start = logit(np.clip(ratios, 1e-6, 1 - 1e-6))
    found = scipy.optimize.minimize(
        objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000}
    )
    return np.concatenate([[1.0], np.cumprod(expit(found.x))])
