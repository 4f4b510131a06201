"""Buffered linear Toeplitz noise: near the best Toeplitz matrix with a few buffers.

C has ones on the diagonal and Σⱼ ωⱼ·θⱼ^(i−1) on its i-th sub-diagonal. Solving Cw = z
row by row needs only the d sums sⱼ = Σᵢ θⱼ^(i−1)·w_{t−i}: w = z − Σ ωⱼsⱼ, and then
sⱼ ← θⱼsⱼ + w. One draw and 2d multiply-adds a parameter a round: d + 2 with two
buffers. No way of computing it takes fewer in general, because C⁻¹ has 2d free numbers
and each multiplication by a constant brings in one of them.
"""

import functools
import math
import os

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


def blt_from(
    decays: tuple[float, ...], weights: tuple[float, ...], **reported: Json
) -> Mechanism:
    """Builds the mechanism with the given θ (decays) and ω (weights).

    Args:
      decays: θ, one for each buffer, each in (0, 1).
      weights: ω, one for each buffer, not negative, adding up to at most 1; the
        coefficients then fall and the sensitivity has a closed form.
      **reported: Further parameters to report.

    Example:
      >>> blt_from((0.5,), (0.25,)).toeplitz(4)
      array([1.    , 0.25  , 0.125 , 0.0625])
    """
    theta = tuple(float(value) for value in decays)
    omega = tuple(float(value) for value in weights)
    if not theta or len(theta) != len(omega):
        raise ValueError(
            f"decays and weights must be as many and at least one: {theta}, {omega}"
        )
    if not all(0 < value < 1 for value in theta):
        raise ValueError(f"decays must be in (0, 1), got {theta}")
    if not all(value >= 0 for value in omega) or sum(omega) > 1 + 1e-12:
        raise ValueError(
            f"weights must be non-negative and add up to at most 1, got {omega}"
        )

    def column(n: int) -> np.ndarray:
        return _column(np.array(theta), np.array(omega), n)

    def start(backend, like):
        return tuple(structure.map_leaves(backend.zeros, like) for _ in theta)

    def step(backend, buffers, round, draw, like):
        taken = [(-w, s) for w, s in zip(omega, buffers, strict=True)]
        noise = combine(backend, [(1.0, draw(round)), *taken])
        kept = tuple(
            combine(backend, [(t, s), (1.0, noise)])
            for t, s in zip(theta, buffers, strict=True)
        )
        return kept, noise

    return Mechanism(
        name="blt",
        stream=Stream(start, step),
        matrix=lambda n: toeplitz.explicit(column(n)),
        buffers=len(theta),
        parameters={"decays": list(theta), "weights": list(omega), **reported},
        toeplitz=column,
    )


def blt(
    rounds: int,
    buffers: int = 3,
    *,
    separation: int | None = None,
    participations: int = 1,
    workload: Workload = prefix_sum(),
    metric: str = "mean",
    cache: str | os.PathLike | None = None,
) -> Mechanism:
    """Optimises a buffered linear Toeplitz mechanism.

    Args:
      rounds: The run's length, for which it is optimised. It serves longer runs too.
      buffers: d, the model-sized buffers; 2 to 4 are nearly as good as any number.
      separation: The least distance of two participations of a user.
      participations: The most participations of a user.
      workload: What the server does with the rounds' sums; see `workloads`.
      metric: 'mean' squared error over the rounds, or the 'max'.
      cache: A folder for results, None for no cache.

    Returns:
      The mechanism.

    Example:
      >>> blt(rounds=100, buffers=2).buffers
      2
    """
    buffers = checks.whole("buffers", buffers, most=8)
    rounds, separation, participations = toeplitz.check_schema(
        rounds, separation, participations
    )
    toeplitz.error_weights(1, metric)
    inputs: JsonObject = {
        "rounds": rounds,
        "buffers": buffers,
        "separation": separation,
        "participations": participations,
        **workloads.check(workload).to_json(),
        "metric": metric,
    }
    theta, omega = caches.cached(
        cache,
        {"kind": "blt", **inputs},
        lambda: _optimise(
            rounds, buffers, separation, participations, workload, metric
        ),
    )
    return blt_from(tuple(theta), tuple(omega), optimised_for=inputs)


def _column(theta: np.ndarray, omega: np.ndarray, n: int) -> np.ndarray:
    """Returns the first n coefficients of C."""
    with np.errstate(under="ignore"):
        tail = omega @ theta[:, None] ** np.arange(n - 1)[None, :]
    return np.concatenate([[1.0], tail])


def _rational(theta: np.ndarray, omega: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns C's power series as a ratio of two polynomials of degree d."""
    factors = [np.array([1.0, -value]) for value in theta]

    def product(skip: int | None = None) -> np.ndarray:
        kept = [factor for i, factor in enumerate(factors) if i != skip]
        return functools.reduce(np.convolve, kept, np.ones(1))

    under = product()
    over = under.copy()
    for i, weight in enumerate(omega):
        over[1:] += weight * product(skip=i)
    return over, under


def _optimise(
    n: int,
    d: int,
    separation: int,
    participations: int,
    workload: Workload,
    metric: str,
) -> np.ndarray:
    """Minimises log(error² · sensitivity²) by L-BFGS from several starts."""
    target = workload.first_column(n)
    weights = toeplitz.error_weights(n, metric)
    powers = np.arange(n - 1, dtype=float)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        theta = expit(x[:d])
        total = expit(x[d])
        shares = np.exp(x[d + 1 :] - x[d + 1 :].max())
        shares /= shares.sum()
        omega = total * shares
        grid = theta[:, None] ** powers[None, :]
        column = np.concatenate([[1.0], omega @ grid])
        with np.errstate(over="ignore", invalid="ignore"):
            error = toeplitz.error_with_gradient(
                column, target, weights, _rational(theta, omega)
            )
        spread = toeplitz.spread_with_gradient(column, n, separation, participations)
        value = math.log(error.value) + math.log(spread.value)
        if not math.isfinite(value):
            return 1e6, np.zeros_like(x)
        slope = (error.gradient / error.value + spread.gradient / spread.value)[1:]
        by_omega = grid @ slope
        inner = np.zeros_like(grid)
        inner[:, 1:] = grid[:, :-1] * powers[1:]
        by_theta = omega * (inner @ slope)
        by_total = shares @ by_omega
        by_share = omega * (by_omega - by_total)
        gradient = np.concatenate(
            [
                by_theta * theta * (1 - theta),
                [by_total * total * (1 - total)],
                by_share,
            ]
        )
        return value, gradient

    root = workload.square_root(max(n, 2))
    best = None
    for farthest in _starts(n):
        x0 = _start(d, farthest, root)
        found = scipy.optimize.minimize(
            objective, x0, jac=True, method="L-BFGS-B", options={"maxiter": 1500}
        )
        if best is None or found.fun < best.fun:
            best = found
    assert best is not None
    theta = expit(best.x[:d])
    shares = np.exp(best.x[d + 1 :] - best.x[d + 1 :].max())
    omega = expit(best.x[d]) * shares / shares.sum()
    order = np.argsort(-theta)
    return np.stack([theta[order], omega[order]])


def _starts(n: int) -> list[float]:
    """Returns longest memories, in rounds, from which to start the search."""
    return [max(2.0, n * part) for part in (1.0, 0.25)]


def _start(d: int, farthest: float, root: np.ndarray) -> np.ndarray:
    """Returns decays with memories spread from a few rounds to `farthest`.

    The weights are fitted to `root`, the square root of the workload.
    """
    memory = np.geomspace(farthest, 2.0, d) if d > 1 else np.array([farthest**0.5])
    theta = np.clip(1 - 1 / (memory + 1), 0.05, 1 - 1e-7)
    # A workload that sums nothing has a root of one term.
    target = np.maximum(root[1:], 1e-9)
    scale = 1 / target
    grid = theta[:, None] ** np.arange(len(target))[None, :]
    omega, _ = scipy.optimize.nnls((grid * scale).T, target * scale)
    omega = np.maximum(omega, 1e-4)
    total = min(max(omega.sum(), 0.02), 0.98)
    return np.concatenate([logit(theta), [logit(total)], np.log(omega / omega.sum())])
