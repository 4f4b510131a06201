"""What the next-word model is judged by: accuracies, loss, perplexity.

Everything is first summed up, then finalised, so that batches, clients and groups of
users can be added in any order. The accuracy without unknown words
leaves out the targets that are no words: padding, begin and end of sentence, and
out-of-vocabulary words. The paper does not define its accuracy; this is the convention
of earlier work on the same data. A prediction may be any id.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from stackoverflow.model import next_word
from stackoverflow.token_ids import PAD

SUM_NAMES = (
    "loss",
    "tokens",
    "correct",
    "countable",
    "correct_with_oov",
    "countable_with_oov",
    "correct_all",
)


def sums(
    config: next_word.ModelConfig, targets: Any, predicted: Any, losses: Any
) -> Any:
    """Sums up predictions along their last axis, in TensorFlow ops.

    Args:
      config: Says which ids are special.
      targets: int32 [n], or [users, n]; 0, which is padding, does not count.
      predicted: Of the same shape, the most likely id at each position.
      losses: float32 of the same shape, the cross entropy at each position.

    Returns:
      A dict of float32 scalars, or [users]: the sums named in `SUM_NAMES`. `correct` of
      `countable` is without end of sentence and out of vocabulary, `…_with_oov` is
      without end of sentence only, `correct_all` is of all `tokens`.
    """
    import tensorflow as tf

    # Not `!=`: inside TFF's graphs that compares objects, not values.
    real = tf.not_equal(targets, PAD)
    right = tf.equal(tf.cast(predicted, targets.dtype), targets) & real
    no_end = (
        real & tf.not_equal(targets, config.eos) & tf.not_equal(targets, config.bos)
    )
    words = no_end & tf.not_equal(targets, config.oov)

    def count(condition):
        return tf.reduce_sum(tf.cast(condition, tf.float32), -1)

    return {
        "loss": tf.reduce_sum(tf.where(real, losses, 0.0), -1),
        "tokens": count(real),
        "correct": count(right & words),
        "countable": count(words),
        "correct_with_oov": count(right & no_end),
        "countable_with_oov": count(no_end),
        "correct_all": count(right),
    }


def add(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Adds sums up, name by name; no parts at all give zeros."""
    total = dict.fromkeys(SUM_NAMES, 0.0)
    for part in parts:
        for name in SUM_NAMES:
            total[name] += float(part[name])
    return total


def finalize(totals: Mapping[str, float]) -> dict[str, float]:
    """Turns sums into metrics; what nothing was counted for is NaN.

    Returns:
      `accuracy` (of earlier work: without end of sentence and out of vocabulary),
      `accuracy_with_oov` (out of vocabulary counted), `accuracy_all` (end of sentence
      counted too), `loss` (the mean cross entropy over all real tokens), `perplexity`
      and `tokens`.

    Example:
      >>> finalize({**dict.fromkeys(SUM_NAMES, 2.0), "countable": 4.0})["accuracy"]
      0.5
    """
    missing = [name for name in SUM_NAMES if name not in totals]
    if missing:
        raise ValueError(f"totals must hold {SUM_NAMES}; {missing} are missing.")
    loss = _ratio(totals["loss"], totals["tokens"])
    return {
        "accuracy": _ratio(totals["correct"], totals["countable"]),
        "accuracy_with_oov": _ratio(
            totals["correct_with_oov"], totals["countable_with_oov"]
        ),
        "accuracy_all": _ratio(totals["correct_all"], totals["tokens"]),
        "loss": loss,
        # Above this e^loss is beyond a double; a diverged model is not an error here.
        "perplexity": math.exp(loss) if not loss > 700 else math.inf,
        "tokens": float(totals["tokens"]),
    }


def of_shares(
    config: next_word.ModelConfig, targets: Mapping[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Returns the metrics of a model that knows the shares of the words, and no more.

    Its guess is the word that is most frequent among those that count.

    Args:
      config: Says which ids are special.
      targets: By group, the ids that came, without padding.

    Returns:
      The metrics by group, and over all of them under 'all'.
    """
    counts = {
        kind: np.bincount(ids, minlength=config.num_ids).astype(np.float64)
        for kind, ids in targets.items()
    }
    whole = np.sum(list(counts.values()), axis=0)
    seen = whole > 0
    losses = np.zeros_like(whole)
    losses[seen] = -np.log(whole[seen] / whole.sum())
    left_out = {
        "": [],
        "_with_oov": [config.bos, config.eos],
        "_words": [config.bos, config.eos, config.oov],
    }

    def sums_of(count: np.ndarray) -> dict[str, float]:
        right, counted = {}, {}
        for name, ids in left_out.items():
            among = np.delete(np.arange(len(whole)), ids)
            right[name] = float(count[among[whole[among].argmax()]])
            counted[name] = float(count[among].sum())
        return {
            "loss": float(count @ losses),
            "tokens": counted[""],
            "correct": right["_words"],
            "countable": counted["_words"],
            "correct_with_oov": right["_with_oov"],
            "countable_with_oov": counted["_with_oov"],
            "correct_all": right[""],
        }

    by_group = {kind: sums_of(count) for kind, count in counts.items()}
    totals = {"all": add(by_group.values())} | by_group
    return {kind: finalize(total) for kind, total in totals.items()}


def _ratio(part: float, whole: float) -> float:
    """Divides, with NaN for nothing of nothing."""
    return float(part) / float(whole) if whole else math.nan
