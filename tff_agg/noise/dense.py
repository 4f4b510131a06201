"""Dense noise: the best lower-triangular matrix for a workload, one participation.

Among all C with unit columns, the one with the least total error ‖AC⁻¹‖² satisfies a
fixed-point equation in n unknowns. Every round's noise depends on all earlier draws,
which are regenerated: no buffers, t draws in round t. It is the yardstick, and usable
for small models.
"""

import os

import numpy as np
import scipy.linalg

from tff_agg import checks
from tff_agg.aliases import Json, JsonObject
from tff_agg.backends import combine
from tff_agg.noise import cache as caches
from tff_agg.noise import workloads
from tff_agg.noise.mechanism import Mechanism, Stream
from tff_agg.noise.workloads import Workload, prefix_sum

_MOST_ITERATIONS = 60


def dense_from(matrix: np.ndarray, **reported: Json) -> Mechanism:
    """Builds the mechanism with any lower-triangular C.

    Args:
      matrix: C, lower triangular with a positive diagonal.
      **reported: Further parameters to report.

    Example:
      >>> dense_from(np.eye(3)).max_rounds
      3
    """
    c = np.array(matrix, np.float64)
    if c.ndim != 2 or c.shape[0] != c.shape[1] or not np.isfinite(c).all():
        raise ValueError(f"matrix must be square and finite, got shape {c.shape}")
    if np.triu(c, 1).any() or not (np.diag(c) > 0).all():
        raise ValueError("matrix must be lower triangular with a positive diagonal")
    c.flags.writeable = False
    rounds = len(c)
    inverse = scipy.linalg.solve_triangular(c, np.eye(rounds), lower=True)

    def step(backend, buffers, round, draw, like):
        row = backend.take(inverse, round)

        def more(at, total):
            return at < round

        def body(at, total):
            return at + 1, combine(backend, [(1.0, total), (row[at], draw(at))])

        total = combine(backend, [(row[round], draw(round))])
        first = backend.constant(0, np.int64)
        return (), backend.while_loop(more, body, (first, total))[1]

    return Mechanism(
        name="dense",
        stream=Stream(start=lambda backend, like: (), step=step),
        matrix=lambda n: c[:n, :n].copy(),
        max_rounds=rounds,
        parameters={"rounds": rounds, **reported},
        content=lambda: {
            "mechanism": "dense",
            # The triangle, row by row: JSON gives back every bit.
            "rows": [row[: i + 1].tolist() for i, row in enumerate(c)],
            **reported,
        },
    )


def dense(
    rounds: int,
    *,
    workload: Workload = prefix_sum(),
    tolerance: float = 1e-3,
    cache: str | os.PathLike | None = None,
) -> Mechanism:
    """Finds the best lower-triangular factorisation for one participation.

    Args:
      rounds: The run's length; no other is served.
      workload: What the server does with the rounds' sums; see `workloads`.
      tolerance: Relative gap between the squared error and its lower bound.
      cache: A folder for results, None for no cache.

    Returns:
      The mechanism, with columns of C of norm 1.

    Example:
      >>> dense(rounds=64).matrix(64).shape
      (64, 64)
    """
    rounds = checks.whole("rounds", rounds)
    tolerance = checks.number("tolerance", tolerance, "(0, 1)")
    workload = workloads.check(workload)
    inputs: JsonObject = {
        "kind": "dense",
        "rounds": rounds,
        **workload.to_json(),
        "tolerance": tolerance,
    }
    found = caches.cached(
        cache, inputs, lambda: optimal(workload.matrix(rounds), tolerance)
    )
    return dense_from(found, **workload.to_json())


def optimal(workload: np.ndarray, tolerance: float = 1e-3) -> np.ndarray:
    """Returns the lower-triangular C with unit columns and least ‖AC⁻¹‖.

    With G = AᵀA and X = CᵀC the problem is min tr(G X⁻¹) with ones on X's diagonal.
    Its dual is max (tr (√v G √v)^½)² / Σv, at whose optimum v is the diagonal of that
    square root: the fixed point that is iterated. The dual bounds what is left to gain.
    """
    gram = workload.T @ workload
    v = np.sqrt(np.diag(gram))
    for _ in range(_MOST_ITERATIONS):
        scale = np.sqrt(v)
        values, vectors = np.linalg.eigh(scale[:, None] * gram * scale)
        values = np.sqrt(np.maximum(values, values[-1] * 1e-30))
        diagonal = np.square(vectors) @ values
        # Rescaling to unit columns makes X feasible: an upper bound of the optimum.
        norms = np.sqrt(diagonal)
        inverse = (vectors / values) @ vectors.T
        primal = float(np.sum(gram * inverse * np.outer(norms, norms)))
        dual = float(values.sum() ** 2 / v.sum())
        if primal - dual <= tolerance * dual:
            break
        # A plain iteration would put the diagonal in v's place. Going three times as
        # far (in logarithms) converges several times faster; five times diverges.
        v = v * (diagonal / v) ** 3
        v = v * (values.sum() / v.sum())
    feasible = (vectors * values) @ vectors.T / np.outer(norms, norms)
    # Reversing rows and columns turns the Cholesky factor into CᵀC = X, C lower.
    lower = np.linalg.cholesky(feasible[::-1, ::-1])
    return np.tril(lower.T[::-1, ::-1])
