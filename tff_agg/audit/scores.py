"""Scores: how much of each canary there is in what was released.

The statistic is the matched filter, the likelihood ratio of Gaussian noise: with y the
projections of the released rows on a canary's direction, b what they would be without
noise if it took part, and K the noise's covariance over rows, it is b'K⁻¹y, divided by
√(b'K⁻¹b) to have variance 1. With K = BC⁻¹C⁻ᵀB', B the rows' shares of the rounds and a
the canary's rounds, that is the correlation of Ca with C times the released increments.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg

# Of the mean variance of a row: where noise cancels out, something must be left to
# divide by.
_RIDGE = 1e-9


class Scores(NamedTuple):
    """The scores of canaries.

    Attributes:
      values: [canaries]; noise of variance 1 if the covariance was right.
      shown: [canaries], the mean of an included canary's score.
    """

    values: np.ndarray
    shown: np.ndarray


def matched_filter(
    rows: np.ndarray, expected: np.ndarray, covariance: np.ndarray
) -> Scores:
    """Scores canaries against the noise's covariance.

    Args:
      rows: [rows, canaries], the released rows projected on each canary's direction.
      expected: [rows, canaries], what they would be without noise if it took part.
      covariance: [rows, rows], the noise's.

    Example:
      >>> matched_filter(np.array([[3.0]]), np.array([[1.0]]), np.array([[4.0]]))
      Scores(values=array([1.5]), shown=array([0.5]))
    """
    if not rows.shape == expected.shape or len(covariance) != len(rows):
        raise ValueError(
            f"rows {rows.shape}, expected {expected.shape} and covariance "
            f"{covariance.shape} do not fit together"
        )
    # Rows of very different sizes make a covariance that is harder to factor.
    scale = 1 / np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    scaled = covariance * scale[:, None] * scale[None, :]
    scaled = scaled + _RIDGE * np.eye(len(scaled))
    factor = scipy.linalg.cho_factor(scaled, lower=True)
    signal = expected * scale[:, None]
    weights = scipy.linalg.cho_solve(factor, signal)
    shown = np.sqrt(np.maximum((weights * signal).sum(axis=0), 0.0))
    raw = (weights * rows * scale[:, None]).sum(axis=0)
    values = np.divide(raw, shown, out=np.zeros_like(raw), where=shown > 0)
    return Scores(values, shown)


def planned_covariance(
    shares: np.ndarray, matrix: np.ndarray, noise: float
) -> np.ndarray:
    """Returns the covariance over rows of the noise that was planned.

    Args:
      shares: [rows, rounds], how much of each round is in each row.
      matrix: [rounds, rounds], the mechanism's C.
      noise: The factor of its unit noise.

    Example:
      >>> planned_covariance(np.eye(1), np.array([[2.0]]), noise=2.0)
      array([[1.]])
    """
    # shares · C⁻¹, by solving Cᵀx = sharesᵀ.
    decoded = scipy.linalg.solve_triangular(matrix, shares.T, lower=True, trans=1).T
    return noise**2 * decoded @ decoded.T


def measured_covariance(probes: np.ndarray) -> np.ndarray | None:
    """Returns the covariance over rows that the probes show, None if they are too few.

    An attacker need not believe the plan. Noise that repeats itself, or a round that
    was released twice, leaves combinations of rows with no noise; this finds them.

    Args:
      probes: [rows, probes], the released rows projected on directions nobody sent.

    Example:
      >>> measured_covariance(np.array([[1.0, -1.0, 1.0, -1.0]]))
      array([[1.]])
    """
    rows, count = probes.shape
    return probes @ probes.T / count if count >= 2 * rows else None


def guess(scores: Scores) -> np.ndarray:
    """Guesses who was included, from the scores alone.

    The threshold lies halfway between the means of both kinds. Where that is comes from
    the mean over all canaries, half of whom took part: no coin is looked at.

    Returns:
      [canaries], how sure the guess is; positive for "included".

    Example:
      >>> guess(Scores(np.array([-0.1, 2.1]), np.ones(2))) > 0
      array([False,  True])
    """
    values, shown = scores
    power = float(shown @ shown)
    factor = 2 * float(values @ shown) / power if power else 0.0
    if factor <= 0:
        factor = 1.0
    return shown * (values - factor * shown / 2)
