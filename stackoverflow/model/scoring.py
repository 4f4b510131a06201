"""Evaluates a next-word model on rows of tokens, quickly and in bounded memory."""

import concurrent.futures
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from stackoverflow.model import lstm, metrics, next_word, packing
from tff_agg.recycling.outputs import Predictions

# Rows in one pass: enough that the LSTM's products are no longer thin.
_ROWS = 256
# Predictions whose logits exist at one time: 512 × 10,004 floats are 20 MB.
_LOGITS = 512


class Scores(NamedTuple):
    """Predicted distributions at some word positions.

    Attributes:
      probabilities: float32 [n, ids], softmax over all ids.
      targets: int32 [n], the words that came.
      positions: int32 [n, 2], the row (of those given) and the time step.
    """

    probabilities: np.ndarray
    targets: np.ndarray
    positions: np.ndarray


def evaluator(config: next_word.ModelConfig) -> Callable[..., dict[str, float]]:
    """Makes a function that sums up a model's hits and losses over rows.

    Args:
      config: The sizes of the model.

    Returns:
      A function `(weights, rows) -> sums`: weights in the order of
      `next_word.WEIGHT_NAMES`, rows int [any, row_length]. The sums are Python floats,
      to be added with `metrics.add` and read with `metrics.finalize`.

    Example:
      >>> config = next_word.ModelConfig(vocab_size=8, embedding_size=2, lstm_size=3)
      >>> evaluate = evaluator(config)
      >>> rows = np.zeros([4, config.row_length], np.int32)
      >>> evaluate(next_word.initial_weights(config), rows)["tokens"]
      0.0
    """
    step = _sums_step(config)

    def evaluate(weights: Sequence[Any], rows: np.ndarray) -> dict[str, float]:
        tensors = _tensors(config, weights)
        chunks = [chunk for _, chunk in _chunks(config, rows, _ROWS)]
        # Side by side, since training leaves one thread to each operation; added in
        # order, so that the result does not depend on timing.
        with concurrent.futures.ThreadPoolExecutor(_cores()) as pool:
            try:
                parts = list(pool.map(lambda chunk: step(tensors, chunk), chunks))
            except BaseException:
                # Interrupted: the rest of the queue is nobody's concern.
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return metrics.add(
            {name: float(value) for name, value in part.items()} for part in parts
        )

    return evaluate


def predict_scores(
    config: next_word.ModelConfig,
    weights: Sequence[Any],
    rows: np.ndarray,
    *,
    max_positions: int = 1024,
) -> Iterator[Scores]:
    """Yields the predicted distributions at every word that counts in the accuracy.

    Targets that are padding, begin or end of sentence or out of vocabulary are left
    out. Which positions are yielded, and in which order and portions, depends on the
    rows only: streams of several checkpoints over the same rows run in step and can be
    zipped.

    Args:
      config: The sizes of the model.
      weights: In the order of `next_word.WEIGHT_NAMES`.
      rows: int [any, row_length].
      max_positions: The most positions in one portion; with 10,004 ids, 1,024 of them
        take 41 MB.

    Example:
      >>> config = next_word.ModelConfig(vocab_size=8, embedding_size=2, lstm_size=3)
      >>> row = np.array([[config.bos, 3, config.eos] + [0] * 18])
      >>> [scores] = predict_scores(config, next_word.initial_weights(config), row)
      >>> scores.probabilities.shape, scores.targets.tolist()
      ((1, 12), [3])
    """
    if max_positions < 1:
        raise ValueError(f"max_positions must be at least 1, got {max_positions}.")
    tensors = _tensors(config, weights)
    hidden, softmax = _scores_steps(config)
    for start, chunk in _chunks(config, rows, _ROWS):
        states, targets, places = hidden(tensors, chunk)
        for first in range(0, int(targets.shape[0]), max_positions):
            part = slice(first, first + max_positions)
            yield Scores(
                probabilities=softmax(tensors[6:], states[part]).numpy(),
                targets=targets[part].numpy(),
                positions=places[part].numpy() + np.array([start, 0], np.int32),
            )


def predictions(
    config: next_word.ModelConfig, weights: Sequence[Any], rows: np.ndarray
) -> Predictions:
    """Returns the distributions of `predict_scores` at once, in the order of the words.

    The order does not depend on the portions that rows were worked on in.
    """
    parts = list(predict_scores(config, weights, rows))
    count = sum(len(part.targets) for part in parts)
    scores = np.empty((count, config.num_ids), np.float32)
    targets = np.empty(count, np.int32)
    places = np.concatenate([np.zeros((0, 2), int), *(p.positions for p in parts)])
    order = np.empty(count, int)
    order[np.lexsort((places[:, 1], places[:, 0]))] = np.arange(count)
    start = 0
    for part in parts:
        here = order[start : start + len(part.targets)]
        scores[here], targets[here] = part.probabilities, part.targets
        start += len(here)
    return Predictions(scores, targets)


def _cores() -> int:
    """Counts the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _chunks(
    config: next_word.ModelConfig, rows: np.ndarray, size: int
) -> Iterator[tuple[int, tf.Tensor]]:
    """Cuts checked rows into tensors of at most `size` rows, with their first index."""
    rows = np.asarray(rows)
    if rows.ndim != 2 or rows.shape[1] != config.row_length:
        raise ValueError(
            f"rows must have the shape [any, {config.row_length}], got {rows.shape}."
        )
    if rows.size and not (rows.min() >= 0 and rows.max() < config.num_ids):
        raise ValueError(
            f"rows must hold ids from 0 to {config.num_ids - 1}, got "
            f"{rows.min()} to {rows.max()}."
        )
    for start in range(0, rows.shape[0], size):
        yield start, tf.constant(rows[start : start + size], tf.int32)


def _tensors(config: next_word.ModelConfig, weights: Sequence[Any]) -> list[tf.Tensor]:
    """Checks the weights and turns them into tensors."""
    return [
        tf.convert_to_tensor(w, tf.float32)
        for w in next_word.check_weights(config, weights)
    ]


@functools.cache
def _sums_step(config: next_word.ModelConfig) -> Callable[..., Any]:
    """Compiles the pass over one chunk of rows that returns sums."""

    @tf.function(input_signature=_signature(config), autograph=False)
    def step(weights, rows):
        packed = packing.pack(rows)
        states = lstm.hidden_states(weights, packed)
        *_, output, output_bias = weights
        count = tf.shape(states)[0]

        def body(first, total):
            part = slice(first, first + _LOGITS)
            logits = tf.matmul(states[part], output) + output_bias
            targets = packed.targets[part]
            scored = lstm.score(logits, targets)
            new = metrics.sums(config, targets, scored.predicted, scored.losses)
            return first + _LOGITS, {name: total[name] + new[name] for name in total}

        zeros = {name: tf.zeros([]) for name in metrics.SUM_NAMES}
        return tf.while_loop(
            lambda first, _: first < count, body, [0, zeros], parallel_iterations=2
        )[1]

    return step


@functools.cache
def _scores_steps(config: next_word.ModelConfig) -> tuple[Callable, Callable]:
    """Compiles the pass to the output layer, at positions that count, and the rest."""

    @tf.function(input_signature=_signature(config), autograph=False)
    def hidden(weights, rows):
        packed = packing.pack(rows)
        targets = packed.targets
        counts = tf.where(
            tf.reduce_all(
                [
                    tf.not_equal(targets, special)
                    for special in (config.bos, config.eos, config.oov)
                ],
                axis=0,
            )
        )[:, 0]
        states = tf.gather(lstm.hidden_states(weights, packed), counts)
        places = tf.gather(packing.positions(packed), counts)
        return states, tf.gather(targets, counts), places

    @tf.function(reduce_retracing=True, autograph=False)
    def softmax(output, states):
        return tf.nn.softmax(tf.matmul(states, output[0]) + output[1])

    return hidden, softmax


def _signature(config: next_word.ModelConfig) -> list[Any]:
    """The weights and rows that a compiled pass takes."""
    weights = [tf.TensorSpec(shape, tf.float32) for shape in config.weight_shapes]
    return [weights, tf.TensorSpec([None, config.row_length], tf.int32)]
