"""How much predictions vary because of the noise: from one run's checkpoints.

The noise of private training makes its model, and every prediction f(θ), random. The
honest way to estimate the variance is to train k times; it costs k times the privacy
and the time. The checkpoints of a single run are a cheap stand-in: late enough (after
a burn-in) they are all distributed like the last one, and far enough apart (by a
separation) they are nearly independent. Both estimators are here, for any predictions.

| here         | the paper                                  |
|--------------|--------------------------------------------|
| `values`     | f(θ_{t_1}), …, f(θ_{t_k})                  |
| `weights`    | p_1, …, p_k                                |
| `burn_in`    | t_1, the round of the first checkpoint     |
| `separation` | γ, the rounds between two checkpoints      |

What γ a run needs is in `tff_agg.recycling.separation`, what theory says of γ and t_1
in `tff_agg.recycling.theory`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from tff_agg import checks


def variance_estimate(
    values: np.ndarray, weights: Sequence[float] | np.ndarray | None = None
) -> np.ndarray:
    """Estimates Var(Σ p_i f(θ_i)) from the values f(θ_1), …, f(θ_k).

    S = (Σ p_i²) / (k − 1) · Σ (f(θ_i) − mean)². Without weights it is the variance of
    the last checkpoint's value (p_k = 1): the sample variance.

    Args:
      values: The values, one checkpoint (or one run) along the first axis; at least 2.
      weights: p_1, …, p_k, not negative and summing to one.

    Returns:
      S, of the shape of one checkpoint's values.

    Example:
      >>> float(variance_estimate(np.array([1.0, 2.0, 3.0])))
      1.0
      >>> float(variance_estimate(np.array([1.0, 3.0]), weights=[0.5, 0.5]))
      1.0
    """
    values = np.asarray(values, np.float64)
    count = _check_count("values", values.shape[0] if values.ndim else 1)
    return convex_scale(weights, count) * values.var(axis=0, ddof=1)


def convex_scale(weights: Sequence[float] | np.ndarray | None, count: int) -> float:
    """Returns Σ p_i², after checking that the weights are a convex combination."""
    if weights is None:
        return 1.0
    p = np.asarray(weights, np.float64)
    if p.shape != (count,):
        raise ValueError(f"weights must be {count} numbers; got the shape {p.shape}.")
    if (p < 0).any() or not np.isclose(p.sum(), 1.0, rtol=0, atol=1e-6):
        raise ValueError(
            f"weights must not be negative and must sum to one; got {p.tolist()} with "
            f"the sum {p.sum():g}."
        )
    return float(np.sum(p**2))


def checkpoint_rounds(last: int, *, burn_in: int = 0, separation: int = 1) -> list[int]:
    """Returns the rounds that the estimator uses, in order and ending with the last.

    Args:
      last: The last round, T.
      burn_in: No round before this one is used.
      separation: The rounds from one checkpoint to the next.

    Example:
      >>> checkpoint_rounds(128, burn_in=64, separation=16)
      [64, 80, 96, 112, 128]
    """
    checks.whole("separation", separation)
    checks.whole("burn_in", burn_in, least=0, most=last)
    rounds = list(range(last, burn_in - 1, -separation))[::-1]
    _check_count("the rounds", len(rounds))
    return rounds


class Widths(NamedTuple):
    """Average widths of confidence intervals, by the number of models.

    Attributes:
      sizes: The numbers of models N, in order.
      means: For each N the width averaged over all examples.
      examples: How many examples (or positions) that were.
    """

    sizes: tuple[int, ...]
    means: np.ndarray
    examples: int


def interval_factor(count: int, level: float = 0.95) -> float:
    """Returns the width of Student's interval of a mean, 2 t/√N standard deviations.

    Args:
      count: The number of models N.
      level: The confidence.

    Example:
      >>> round(interval_factor(10), 3)
      1.431
    """
    import scipy.stats

    _check_count("count", count)
    quantile = scipy.stats.t.ppf((1 + level) / 2, count - 1)
    return float(2 * quantile * math.sqrt(1 / count))


Model = TypeVar("Model")
Chunk = TypeVar("Chunk")
Run = TypeVar("Run")


def interval_widths(
    models: Sequence[Model],
    predict: Callable[[Model, Chunk], np.ndarray],
    chunks: Iterable[Chunk],
    sizes: Iterable[int],
    *,
    level: float = 0.95,
    on_progress: Callable[[int], None] | None = None,
) -> Widths:
    """Averages the interval widths of the highest mean score over examples.

    For every example and every N of `sizes`, the first N models' scores are averaged;
    the class with the highest mean score is chosen; the width is that of the confidence
    interval of its score. One pass serves all N: memory is two arrays of one chunk's
    scores in double precision, whatever the number of models.

    Args:
      models: In the order in which they count: the checkpoints newest first, or the
        final models of independent runs in random order.
      predict: `predict(model, chunk)` returns scores [examples, classes].
      chunks: Portions of the examples.
      sizes: The numbers of models N, each from 2 to len(models).
      level: The confidence.
      on_progress: Called with 1 after each prediction.

    Example:
      >>> scores = np.array([[0.9, 0.1]]), np.array([[0.7, 0.3]])
      >>> widths = interval_widths(scores, lambda model, _: model, [0], [2])
      >>> round(float(widths.means[0]), 3)  # 2 · 12.706 · 0.1414 / √2
      2.541
    """
    sizes = tuple(sorted(set(sizes)))
    for size in sizes:
        _check_count("sizes", size)
        if size > len(models):
            raise ValueError(f"sizes has {size}, but there are {len(models)} models.")
    factors = {size: interval_factor(size, level) for size in sizes}
    totals = np.zeros(len(sizes))
    examples = 0
    for chunk in chunks:
        # Welford's recurrence: equal scores give a variance of exactly zero.
        mean = spread = np.zeros((0, 0))
        for count, model in enumerate(models[: sizes[-1]], 1):
            # A copy of our own: the recurrence works in place.
            scores = np.array(predict(model, chunk), np.float64)
            if count == 1:
                mean, spread = scores, np.zeros_like(scores)
            else:
                delta = scores - mean
                mean += delta / count
                np.subtract(scores, mean, out=scores)
                delta *= scores
                spread += delta
            if count in factors:
                rows = np.arange(len(mean))
                chosen = spread[rows, mean.argmax(axis=1)] / (count - 1)
                width = factors[count] * np.sqrt(np.maximum(chosen, 0)).sum()
                totals[sizes.index(count)] += width
            if on_progress is not None:
                on_progress(1)
        examples += len(mean)
    if not examples:
        raise ValueError("chunks held no examples.")
    return Widths(sizes, totals / examples, examples)


class Comparison(NamedTuple):
    """Interval widths by both estimators, with repeats along the first axis.

    Attributes:
      sizes: The numbers of models N.
      independent: [repeats, sizes], from the final models of independent runs.
      checkpoints: [repeats, sizes], from the last checkpoints of one run.
    """

    sizes: tuple[int, ...]
    independent: np.ndarray
    checkpoints: np.ndarray

    @property
    def ratio(self) -> np.ndarray:
        """The independent runs' mean width over the checkpoints', for each N."""
        return self.independent.mean(axis=0) / self.checkpoints.mean(axis=0)


def compare_estimators(
    runs: Sequence[Run],
    final: Callable[[Run], Model],
    widths: Callable[[Sequence[Model]], Widths],
    alone: Callable[[Run], Widths],
    *,
    repeats: int = 5,
    seed: int = 0,
) -> Comparison:
    """Compares intervals from independent runs with those from one run's checkpoints.

    In every repeat the independent estimator draws runs at random without replacement,
    and the checkpoint estimator draws one run and takes checkpoints of it.

    Args:
      runs: The runs, at least 2.
      final: Returns a run's final model (or a handle that `widths` can predict with).
      widths: Turns a sequence of models into `Widths`, for the same sizes every time.
      alone: Returns the `Widths` of a run's checkpoints, for these sizes.
      repeats: How many times to draw.
      seed: Seeds the drawing.

    Returns:
      The widths of both, by repeat and by number of models.
    """
    _check_count("runs", len(runs))
    rng = np.random.default_rng(seed)
    sizes: tuple[int, ...] = ()
    independent, checkpoints = [], []
    for _ in range(repeats):
        order = rng.permutation(len(runs))
        of_runs = widths([final(runs[i]) for i in order])
        sizes = of_runs.sizes
        independent.append(of_runs.means)
        chosen = runs[rng.integers(len(runs))]
        checkpoints.append(alone(chosen).means)
    return Comparison(sizes, np.array(independent), np.array(checkpoints))


def _check_count(name: str, count: int) -> int:
    if count < 2:
        raise ValueError(
            f"{name}: {count} is too few; a variance needs at least 2 values."
        )
    return count
