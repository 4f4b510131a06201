"""Evaluates a next-word model on rows of tokens, quickly and in bounded memory."""

import concurrent.futures
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from stackoverflow.model import lstm, metrics, next_word, packing
from tff_agg.processes import usable_cores
from tff_agg.recycling.outputs import Predictions

# Rows in one pass: enough that the LSTM's products are no longer thin.
_ROWS = 256
# Predictions whose logits exist at one time: 512 × 10,004 floats are 20 MB.
_LOGITS = 512
# Positions whose distributions are computed at one time: 41 MB of them.
_POSITIONS = 1024


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
        chunks = list(_chunks(config, rows))
        # Side by side, since training leaves one thread to each operation; added in
        # order, so that the result does not depend on timing.
        with concurrent.futures.ThreadPoolExecutor(usable_cores()) as pool:
            try:
                parts = list(pool.map(lambda chunk: step(tensors, chunk), chunks))
            except BaseException:
                # Interrupted: nobody waits for the rest.
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return metrics.add(
            {name: float(value) for name, value in part.items()} for part in parts
        )

    return evaluate


def predictions(
    config: next_word.ModelConfig, weights: Sequence[Any], rows: np.ndarray
) -> Predictions:
    """Returns the predicted distributions at every word that counts in the accuracy.

    Targets that are padding, begin or end of sentence or out of vocabulary are left
    out. The others are in the order of the rows, and in a row of the words.

    Args:
      config: The sizes of the model.
      weights: In the order of `next_word.WEIGHT_NAMES`.
      rows: int [any, row_length].

    Example:
      >>> config = next_word.ModelConfig(vocab_size=8, embedding_size=2, lstm_size=3)
      >>> row = np.array([[config.bos, 3, config.eos] + [0] * 18])
      >>> scores, targets = predictions(config, next_word.initial_weights(config), row)
      >>> scores.shape, targets.tolist()
      ((1, 12), [3])
    """
    tensors = _tensors(config, weights)
    hidden, softmax = _prediction_steps(config)
    scores = [np.empty((0, config.num_ids), np.float32)]
    targets = [np.empty(0, np.int32)]
    for chunk in _chunks(config, rows):
        states, words, places = hidden(tensors, chunk)
        by_place = np.lexsort((places[:, 1], places[:, 0]))
        parts = [
            softmax(tensors[-2:], states[first : first + _POSITIONS]).numpy()
            for first in range(0, len(by_place), _POSITIONS)
        ]
        if parts:
            scores.append(np.concatenate(parts)[by_place])
            targets.append(words.numpy()[by_place])
    return Predictions(np.concatenate(scores), np.concatenate(targets))


def _chunks(config: next_word.ModelConfig, rows: np.ndarray) -> Iterator[tf.Tensor]:
    """Cuts checked rows into tensors of at most `_ROWS` rows."""
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
    for start in range(0, rows.shape[0], _ROWS):
        yield tf.constant(rows[start : start + _ROWS], tf.int32)


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
def _prediction_steps(config: next_word.ModelConfig) -> tuple[Callable, Callable]:
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
