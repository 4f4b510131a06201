"""How far one user can move Cx: the sensitivity of a mechanism.

A user whose clipped update is at most 1 long in each of its rounds moves Cx by
‖Σᵢ cᵢ ⊗ uᵢ‖, over the columns cᵢ of C at those rounds. Its square is at most
Σᵢⱼ |⟨cᵢ, cⱼ⟩|, and exactly that where the inner products are not negative: the worst
user then sends the same vector every time. All methods below find the largest such sum
over the sets of rounds that a schema allows, or a bound from above. C is lower
triangular, so what a user sends may depend on all noise before.
"""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np

from tff_agg.noise import forest
from tff_agg.noise.mechanism import Mechanism
from tff_agg.privacy import tree_sensitivity
from tff_agg.privacy.participation import Participation

# Up to so many allowed sets of rounds are simply tried one by one.
_FEW_PATTERNS = 20_000


class Sensitivity(NamedTuple):
    """A sensitivity and how it was found.

    Attributes:
      value: The largest ‖C(x − x')‖ for contributions of norm at most 1.
      exact: Whether some user attains it; otherwise it is an upper bound.
      method: Names the way of computing.
    """

    value: float
    exact: bool
    method: str


def sensitivity(
    mechanism: Mechanism, participation: Participation, rounds: int
) -> Sensitivity:
    """Computes the sensitivity of a mechanism under a participation schema.

    Args:
      mechanism: The noise mechanism.
      participation: In which rounds one user may take part.
      rounds: The length of the run.

    Returns:
      The sensitivity for updates of norm at most 1.

    Example:
      >>> sensitivity(tree(), AtMostOnce(), 2000).value ** 2
      11.0
    """
    n = mechanism.check_rounds(rounds)
    found = _from_a_column_or_trees(mechanism, participation, n)
    return found or _from_the_matrix(mechanism, participation, n)


def so_far(
    mechanism: Mechanism, participation: Participation, rounds: int, planned: int
) -> Sensitivity:
    """Returns a sensitivity of the first rounds that is quick to find, and not below.

    What the first rounds show is part of what any more of them show, so that a later
    round's sensitivity holds as well. Where the whole matrix is needed, which takes up
    to a second, that of the next full percent of the planned rounds is taken.

    Args:
      mechanism: The noise mechanism.
      participation: In which rounds one user may take part.
      rounds: How many rounds are done.
      planned: How many there will be.
    """
    schema = participation.cut(rounds)
    found = _from_a_column_or_trees(mechanism, schema, mechanism.check_rounds(rounds))
    if found is not None:
        return found
    percent = -(-planned // 100)
    later = min(-(-rounds // percent) * percent, planned)
    return _at(mechanism, participation.cut(later), later)


@functools.lru_cache(maxsize=8)
def _at(mechanism: Mechanism, participation: Participation, rounds: int) -> Sensitivity:
    """Returns `sensitivity`, kept for the rounds until the next percent is full."""
    return sensitivity(mechanism, participation, rounds)


def _from_a_column_or_trees(
    mechanism: Mechanism, participation: Participation, n: int
) -> Sensitivity | None:
    """Returns the sensitivity where it needs no matrix, else None."""
    most = participation.largest(n)
    spacing = participation.spacing(n)
    if mechanism.forest is not None:
        squared, exact = tree_sensitivity.squared(mechanism.forest(n), participation)
        if exact or (patterns := _few_patterns(participation, n)) is None:
            return Sensitivity(math.sqrt(squared), exact, "tree, dynamic programming")
        nodes = forest.incidence(mechanism.forest(n))
        return _over_patterns(nodes.T @ nodes, patterns)
    if mechanism.toeplitz is not None:
        column = np.asarray(mechanism.toeplitz(n), np.float64)
        if most == 1:
            return Sensitivity(_norm(column), True, "Toeplitz, first column")
        if (column >= 0).all() and (np.diff(column) <= 0).all():
            # Falling coefficients: the columns 0, b, 2b, … overlap the most.
            return Sensitivity(
                _norm(_added_up(column, spacing, most)),
                True,
                "Toeplitz, falling coefficients",
            )
    return None


def _from_the_matrix(
    mechanism: Mechanism, participation: Participation, n: int
) -> Sensitivity:
    """Returns the sensitivity of any mechanism; takes a moment for many rounds."""
    most = participation.largest(n)
    spacing = participation.spacing(n)
    encoder = (mechanism.encoder or mechanism.matrix)(n)
    if most == 1:
        norms = np.square(encoder).sum(axis=0)
        return Sensitivity(math.sqrt(norms.max()), True, "largest column")
    gram = encoder.T @ encoder
    if mechanism.bands is not None and mechanism.bands <= spacing:
        if (cycle := participation.cycle) is not None:
            squared = best_sum_in_cycles(np.diag(gram), cycle, most)
        else:
            squared = best_sum(np.diag(gram), spacing, most)
        return Sensitivity(math.sqrt(squared), True, "banded, orthogonal columns")
    if (patterns := _few_patterns(participation, n)) is not None:
        return _over_patterns(gram, patterns)
    return Sensitivity(
        math.sqrt(upper_bound(gram, spacing, most)), False, "bound by rows"
    )


def _norm(vector: np.ndarray) -> float:
    return float(np.linalg.norm(vector))


def _added_up(column: np.ndarray, spacing: int, most: int) -> np.ndarray:
    """Adds up `most` copies of a column, each `spacing` rounds later."""
    total = np.zeros(len(column))
    for start in range(0, min(most * spacing, len(column)), spacing):
        total[start:] += column[: len(column) - start]
    return total


def _few_patterns(participation: Participation, n: int) -> list[tuple[int, ...]] | None:
    """Returns the allowed sets of rounds, or None if they are too many to try."""
    patterns = list(itertools.islice(participation.patterns(n), _FEW_PATTERNS + 1))
    return patterns if len(patterns) <= _FEW_PATTERNS else None


def _over_patterns(gram: np.ndarray, patterns: list[tuple[int, ...]]) -> Sensitivity:
    """Tries every allowed set of rounds."""
    magnitude = np.abs(gram)
    best = max(patterns, key=lambda p: magnitude[np.ix_(p, p)].sum())
    value = float(magnitude[np.ix_(best, best)].sum())
    exact = bool((gram[np.ix_(best, best)] >= 0).all())
    return Sensitivity(math.sqrt(value), exact, "every pattern")


def best_sum(values: np.ndarray, spacing: int, most: int) -> float:
    """Returns the largest sum of at most `most` entries `spacing` apart.

    Example:
      >>> best_sum(np.array([3.0, 4.0, 3.0]), spacing=2, most=2)
      6.0
    """
    return float(_best_sums(np.asarray(values)[None, :], spacing, most)[0])


def best_sum_in_cycles(values: np.ndarray, cycle: int, most: int) -> float:
    """Returns the largest sum of at most `most` entries that are whole cycles apart.

    Columns differ where a matrix is restarted, so the best entries that are merely far
    enough apart need not lie in one cycle: their sum would be a bound, not attained.

    Example:
      >>> best_sum_in_cycles(np.array([3.0, 4.0, 5.0, 3.0]), cycle=2, most=2)
      8.0
    """
    own = (np.asarray(values)[start::cycle] for start in range(cycle))
    return float(max(np.sort(one)[::-1][:most].sum() for one in own))


def _best_sums(rows: np.ndarray, spacing: int, most: int) -> np.ndarray:
    """Does `best_sum` for every row at once, by dynamic programming from the end."""
    count, n = rows.shape
    columns = np.ascontiguousarray(rows.T)
    allowed = np.zeros((n + 1, count))
    for _ in range(most):
        # after[j]: the best with one more entry, all of them from j on.
        after = np.zeros((n + 1, count))
        for j in range(n - 1, -1, -1):
            taken = columns[j] + allowed[min(n, j + spacing)]
            after[j] = np.maximum(after[j + 1], taken)
        allowed = after
    return allowed[0]


def upper_bound(gram: np.ndarray, spacing: int, most: int) -> float:
    """Bounds the squared sensitivity for any C, signs and all.

    The sum over pairs is the sum, over a user's rounds i, of Σⱼ |⟨cᵢ, cⱼ⟩|. Each of
    these is at most its largest value over all sets with the right spacing; then so is
    the sum of the largest of them.
    """
    per_round = _best_sums(np.abs(gram), spacing, most)
    return best_sum(per_round, spacing, most)
