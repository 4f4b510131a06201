"""From scores and guesses to ε: an estimate, and bounds that need no normality.

The analysis says how well anybody can tell whether one user took part: as well as a
normal variable of mean 0 or μ = 1/σ and variance 1 can be told apart (μ-GDP). All
figures here are computed as a μ and turned into ε at the run's δ.

An audit flips a fair coin for each of m canaries and guesses the coins from what was
released. Three bounds turn the number of right guesses into a lower bound:

* `lower_bound`: what is claimed of the run itself. The canaries' directions are
  orthogonal and the noise is independent over coordinates, so that the posterior of the
  coins, given everything released and all other users' data, is a product. Whatever is
  guessed, the right guesses number no more, stochastically, than independent coins with
  chances Φ(λᵢμ/2), where λᵢ is the canary's share of the sensitivity.
* `lower_bound_if_dependent`: any mechanism that is μ-GDP for each user, however the
  canaries' fates hang together (Mahloujifar, Melis and Chaudhuri, 2024).
* `epsilon_lower_bound`: any (ε, δ)-DP mechanism (Steinke, Nasr and Jagielski, 2023).

The second and the third pay for their generality: one run can be lucky for all
canaries at once, and no number of canaries changes that.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from tff_agg import checks

_CONFIDENCE = "[0.5, 1)"
_LARGEST_MU = 1e4
_TOLERANCE = 1e-4


class Fit(NamedTuple):
    """How far apart included and excluded scores lie, in standard deviations.

    Attributes:
      mu: The distance, for the canary that shows the most.
      low: The lower end of its confidence interval.
      high: The upper end.
    """

    mu: float
    low: float
    high: float


def fit(
    scores: np.ndarray,
    included: np.ndarray,
    shown: np.ndarray,
    *,
    confidence: float = 0.95,
) -> Fit:
    """Fits two normal distributions of one variance to the scores.

    The mean of an included canary's score grows in proportion to what it shows; that of
    an excluded one is the same for all. This estimate, unlike the bounds, relies on the
    scores being normal.

    Args:
      scores: [canaries].
      included: [canaries], who took part.
      shown: [canaries], the expected score of each, if included, up to a factor.
      confidence: Of the two-sided interval.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> included = np.arange(4000) % 2 == 0
      >>> scores = rng.normal(size=4000) + 1.5 * included
      >>> round(fit(scores, included, np.ones(4000)).mu, 1)
      1.5
    """
    scores, included = np.asarray(scores, float), np.asarray(included, bool)
    checks.number("confidence", confidence, _CONFIDENCE)
    if min(included.sum(), (~included).sum()) < 2:
        raise ValueError(
            f"an estimate needs two canaries of either kind, got {included.sum()} "
            f"included of {len(included)}"
        )
    signal = included * np.asarray(shown, float)
    if not signal.any():
        return Fit(0.0, 0.0, 0.0)
    columns = np.stack([np.ones(len(scores)), signal], axis=1)
    inverse = np.linalg.inv(columns.T @ columns)
    line = inverse @ columns.T @ scores
    rest = scores - columns @ line
    free = len(scores) - 2
    spread = math.sqrt(max(float(rest @ rest) / free, 1e-300))
    top = float(np.max(shown))
    mu = float(line[1]) * top / spread
    # The slope's own error, and that of the spread it is divided by.
    error = math.sqrt(inverse[1, 1] * top**2 + mu**2 / (2 * free))
    width = float(ndtri(0.5 + confidence / 2)) * error
    return Fit(max(mu, 0.0), max(mu - width, 0.0), max(mu + width, 0.0))


def lower_bound(
    correct: int, strengths: np.ndarray, *, confidence: float = 0.95
) -> float:
    """Returns a lower bound on μ from guesses about independent canaries.

    Args:
      correct: How many canaries were guessed right; all were guessed.
      strengths: [canaries], λ: each canary's share of the sensitivity, in (0, 1].
      confidence: How often, at least, the bound is not above the truth.

    Example:
      >>> round(lower_bound(700, np.ones(1000)), 2)
      0.91
    """
    strengths = np.asarray(strengths, float)
    _check_guesses(correct, len(strengths), len(strengths))
    checks.number("confidence", confidence, _CONFIDENCE)
    if not ((strengths > 0) & (strengths <= 1)).all():
        raise ValueError("strengths must be in (0, 1]")

    def chance(mu: float) -> float:
        return chance_of_at_least(correct, ndtr(strengths * mu / 2))

    return _largest_refuted(lambda mu: chance(mu) < 1 - confidence)


def chance_of_at_least(correct: int, chances: np.ndarray) -> float:
    """Returns the chance that so many of independent events happen.

    Example:
      >>> round(float(chance_of_at_least(1, np.array([0.5, 0.5]))), 2)
      0.75
    """
    # Canaries of the same rounds have the same chance: one binomial for each of these.
    values, counts = np.unique(np.round(chances, 12), return_counts=True)
    shares = np.ones(1)
    for p, count in zip(values, counts, strict=True):
        shares = np.convolve(shares, binom.pmf(np.arange(count + 1), count, p))
    return float(shares[correct:].sum())


def lower_bound_if_dependent(
    correct: int, guesses: int, canaries: int, *, confidence: float = 0.95
) -> float:
    """Returns a lower bound on μ that holds however the canaries depend on each other.

    For a mechanism that is μ-GDP for each user, the chances pᵢ of i right guesses obey,
    for every v, with f̄(x) = Φ(Φ⁻¹(x) + μ), r guesses and m canaries,

      Σ_{i≥v} i·pᵢ / m ≤ f̄(Σ_{i≥v−1} (r − i)·pᵢ / m).

    (Take a canary at random; compare "its guess is right, and v − 1 others are" with
    "its guess is wrong, and v − 1 others are right": flipping its coin swaps them.) So
    many right guesses force a mass on fewer, and that on fewer still. The chance of
    `correct` is too large if the mass so forced exceeds 1. The least mass is found from
    the top downwards, each time putting as little as the inequality asks for.

    Args:
      correct: How many guesses were right.
      guesses: How many were made; a number fixed beforehand.
      canaries: Of how many canaries.
      confidence: How often, at least, the bound is not above the truth.

    Example:
      >>> round(lower_bound_if_dependent(230, 250, 1000), 1)
      0.8
    """
    _check_guesses(correct, guesses, canaries)
    checks.number("confidence", confidence, _CONFIDENCE)

    def refuted(mu: float) -> bool:
        mass = 1 - confidence
        right, wrong = correct * mass / canaries, (guesses - correct) * mass / canaries
        for i in range(correct - 1, -1, -1):
            asked = float(ndtr(ndtri(right) - mu))
            if asked <= wrong:
                return False
            more = (asked - wrong) * canaries / (guesses - i)
            mass += more
            if mass > 1:
                return True
            wrong, right = asked, right + i * more / canaries
        return False

    return _largest_refuted(refuted)


def epsilon_lower_bound(
    correct: int,
    guesses: int,
    canaries: int,
    delta: float,
    *,
    confidence: float = 0.95,
) -> float:
    """Returns a lower bound on ε for any (ε, δ)-DP mechanism, from one run.

    The chance of `correct` right guesses is at most β(correct) + 2mδ·maxᵢ (β(correct −
    i) − β(correct))/i, where β is the upper tail of `guesses` coins with chance
    e^ε/(1 + e^ε) each.

    Args:
      correct: How many guesses were right.
      guesses: How many were made; a number fixed beforehand.
      canaries: Of how many canaries.
      delta: δ.
      confidence: How often, at least, the bound is not above the truth.

    Example:
      >>> round(epsilon_lower_bound(245, 250, 1000, 1e-6), 1)
      3.1
    """
    _check_guesses(correct, guesses, canaries)
    checks.number("confidence", confidence, _CONFIDENCE)
    checks.delta(delta)

    def refuted(epsilon: float) -> bool:
        p = 1 / (1 + math.exp(-epsilon))
        tail = binom.sf(np.arange(correct, -1, -1) - 1, guesses, p)
        steps = np.arange(1, correct + 1)
        slope = float(np.max((tail[1:] - tail[0]) / steps, initial=0.0))
        return bool(tail[0] + 2 * canaries * delta * slope < 1 - confidence)

    return _largest_refuted(refuted, top=50.0)


def _largest_refuted(refuted, top: float = _LARGEST_MU) -> float:
    """Returns the largest number that is refuted, 0 if none is; all below are too."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
        if high > top:
            return low
    while high - low > _TOLERANCE * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _check_guesses(correct: int, guesses: int, canaries: int) -> None:
    """Refuses counts that do not fit together."""
    if not 0 <= correct <= guesses <= canaries or canaries < 1:
        raise ValueError(
            "correct, guesses and canaries must rise from 0 on, got "
            f"{correct!r}, {guesses!r}, {canaries!r}"
        )
