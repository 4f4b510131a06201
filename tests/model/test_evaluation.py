"""The evaluator counts what a plain loop over Keras' predictions counts."""

import math

import numpy as np
import pytest
import tensorflow as tf

from stackoverflow.model import metrics, next_word
from stackoverflow.model import scoring as evaluation

SMALL = next_word.ModelConfig(
    vocab_size=12, embedding_size=5, lstm_size=6, max_tokens=8
)


def sentences(config, count, seed=0):
    rng = np.random.default_rng(seed)
    rows = np.zeros([count, config.row_length], np.int32)
    words = [*range(1, config.vocab_size + 1), config.oov]
    for row in rows:
        length = rng.integers(0, config.max_tokens)
        row[0] = config.bos
        row[1 : length + 1] = rng.choice(words, length)
        row[length + 1] = config.eos
    return rows


def random_weights(config, seed=0):
    rng = np.random.default_rng(seed)
    return [
        rng.normal(0, 0.7, shape).astype(np.float32) for shape in config.weight_shapes
    ]


def by_hand(config, weights, rows):
    """Every prediction as (target, probabilities), from the Keras model."""
    net = next_word.keras_model(config)
    net.set_weights(weights)
    chances = tf.nn.softmax(net(rows[:, :-1])).numpy()
    return [
        (rows[r, t + 1], chances[r, t], (r, t))
        for r in range(rows.shape[0])
        for t in range(config.max_tokens)
        if rows[r, t + 1] != 0
    ]


def test_sums_are_those_of_a_plain_loop():
    # More rows than one pass takes, and more predictions than one block of logits.
    rows = sentences(SMALL, 400)
    weights = random_weights(SMALL)
    expected = dict.fromkeys(metrics.SUM_NAMES, 0.0)
    for target, chances, _ in by_hand(SMALL, weights, rows):
        right = np.argmax(chances) == target
        word = target not in (SMALL.oov, SMALL.eos)
        expected["loss"] -= math.log(chances[target])
        expected["tokens"] += 1
        expected["correct_all"] += right
        expected["countable"] += word
        expected["correct"] += right and word
        expected["countable_with_oov"] += target != SMALL.eos
        expected["correct_with_oov"] += right and target != SMALL.eos
    assert expected["countable"] < expected["countable_with_oov"] < expected["tokens"]
    found = evaluation.evaluator(SMALL)(weights, rows)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-4), name


def test_groups_add_up_to_the_whole():
    rows, weights = sentences(SMALL, 90), random_weights(SMALL)
    evaluate = evaluation.evaluator(SMALL)
    parts = metrics.add([evaluate(weights, rows[:31]), evaluate(weights, rows[31:])])
    assert parts == pytest.approx(evaluate(weights, rows))


def test_a_perfect_model_scores_one():
    config = next_word.ModelConfig(vocab_size=3, embedding_size=2, lstm_size=2)
    weights = [np.zeros(shape, np.float32) for shape in config.weight_shapes]
    weights[-1][2] = 50.0
    rows = np.zeros([5, config.row_length], np.int32)
    rows[:, 0], rows[:, 1:4], rows[:, 4] = config.bos, 2, config.eos
    found = metrics.finalize(evaluation.evaluator(config)(weights, rows))
    assert found["accuracy"] == found["accuracy_with_oov"] == 1.0
    assert found["accuracy_all"] == 0.75
    assert found["loss"] == pytest.approx(50 / 4)
    assert found["perplexity"] == pytest.approx(math.exp(50 / 4), rel=1e-4)
    assert found["tokens"] == 20


def test_equal_logits_are_no_hits():
    weights = [np.zeros(shape, np.float32) for shape in SMALL.weight_shapes]
    found = metrics.finalize(evaluation.evaluator(SMALL)(weights, sentences(SMALL, 50)))
    assert found["accuracy"] == 0.0
    assert found["perplexity"] == pytest.approx(SMALL.num_ids, rel=1e-4)


def test_nothing_to_count_is_not_a_number():
    found = metrics.finalize(
        evaluation.evaluator(SMALL)(
            random_weights(SMALL), np.zeros([0, SMALL.row_length], np.int32)
        )
    )
    assert found["tokens"] == 0
    assert math.isnan(found["accuracy"]) and math.isnan(found["loss"])


def test_a_diverged_model_has_infinite_perplexity():
    totals = {**dict.fromkeys(metrics.SUM_NAMES, 1.0), "loss": 1e6}
    assert metrics.finalize(totals)["perplexity"] == math.inf


def test_predictions_are_the_distributions_at_every_word_in_order():
    # More rows than one pass takes, and more words than one block of distributions.
    rows, weights = sentences(SMALL, 600), random_weights(SMALL)
    expected = [
        (target, chances)
        for target, chances, _ in by_hand(SMALL, weights, rows)
        if target not in (SMALL.oov, SMALL.eos)
    ]
    assert len(expected) > 1100
    scores, targets = evaluation.predictions(SMALL, weights, rows)
    assert targets.tolist() == [target for target, _ in expected]
    chances = np.stack([chances for _, chances in expected])
    np.testing.assert_allclose(scores, chances, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros([3, 5], np.int32), "shape"),
        (np.full([3, 9], 16, np.int32), "ids"),
        (np.full([3, 9], -1, np.int32), "ids"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        evaluation.evaluator(SMALL)(random_weights(SMALL), rows)


def test_sums_with_a_name_missing_are_refused():
    with pytest.raises(ValueError, match="tokens"):
        metrics.finalize({"loss": 1.0})
