"""The packed step is the plain Keras model's step, without the padding."""

import numpy as np
import pytest
import tensorflow as tf

from stackoverflow.model import local_training, lstm, next_word, packing

SMALL = next_word.ModelConfig(
    vocab_size=30, embedding_size=6, lstm_size=7, max_tokens=9
)


def random_rows(config, lengths, seed=0):
    """Rows with that many real tokens each, bos first."""
    rng = np.random.default_rng(seed)
    rows = np.zeros([len(lengths), config.row_length], np.int32)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = rng.integers(1, config.num_ids, length)
        row[:1][: length > 0] = config.bos
    return rows


def random_weights(config, seed=0, spread=0.5):
    rng = np.random.default_rng(seed)
    return [
        tf.constant(rng.normal(0, spread, shape), tf.float32)
        for shape in config.weight_shapes
    ]


def keras_gradients(config, weights, rows):
    """Gradients as stock TFF has them: Keras layers, masks and loss."""
    net = next_word.keras_model(config)
    net.set_weights([w.numpy() for w in weights])
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=0
    )
    with tf.GradientTape() as tape:
        loss = loss_fn(rows[:, 1:], net(rows[:, :-1], training=True))
    found = tape.gradient(loss, net.trainable_variables)
    return loss.numpy(), [tf.convert_to_tensor(g).numpy() for g in found]


def packed_gradients(weights, rows):
    packed = packing.pack(tf.constant(rows))
    step = lstm.gradients(weights, packed, scale=1.0)
    embedding = tf.scatter_nd(packed.inputs[:, None], step.embedding, weights[0].shape)
    found = [g.numpy() for g in [embedding, *step.others]]
    return np.mean(step.losses), found


BATCHES = {
    "mixed": [3, 10, 2, 7, 10, 5],
    "all full": [10, 10, 10, 10],
    "one prediction each": [2, 2, 2],
    "one row": [6],
    "one row, one prediction": [2],
    "with rows that predict nothing": [5, 1, 0, 3],
    "ascending": [2, 3, 4, 5, 6, 7, 8, 9, 10],
}


MODELS = {
    "small": SMALL,
    "least": next_word.ModelConfig(
        vocab_size=5, embedding_size=1, lstm_size=1, max_tokens=9
    ),
    "wide": next_word.ModelConfig(
        vocab_size=50, embedding_size=12, lstm_size=3, max_tokens=9
    ),
}
# Every batch with one model, and what is most and least with the others.
CASES = [("small", batch) for batch in BATCHES] + [
    (model, batch)
    for model in ("least", "wide")
    for batch in ("ascending", "one row, one prediction")
]


@pytest.mark.parametrize(("model", "batch"), CASES)
def test_gradients_are_those_of_keras(model, batch):
    config, lengths = MODELS[model], BATCHES[batch]
    rows = random_rows(config, lengths)
    weights = random_weights(config)
    loss, expected = keras_gradients(config, weights, rows)
    packed_loss, found = packed_gradients(weights, rows)
    np.testing.assert_allclose(packed_loss, loss, rtol=1e-5)
    for name, a, b in zip(next_word.WEIGHT_NAMES, found, expected, strict=True):
        # With one step there is nothing for the recurrent kernel to learn.
        assert np.abs(b).max() > 0 or (name == "lstm_recurrent" and max(lengths) < 3)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_gradients_of_the_full_model_are_those_of_keras():
    config = next_word.ModelConfig()
    rows = random_rows(config, [21, 3, 14, 9, 21, 2, 17, 12])
    weights = next_word.initial_weights(config, seed=3)
    loss, expected = keras_gradients(config, weights, rows)
    packed_loss, found = packed_gradients(weights, rows)
    np.testing.assert_allclose(packed_loss, loss, rtol=1e-5)
    for name, a, b in zip(next_word.WEIGHT_NAMES, found, expected, strict=True):
        # Relative to the tensor: single entries near zero have no digits to compare.
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max(), name


@pytest.mark.parametrize("shift", [-500.0, 500.0])
def test_logits_far_from_zero_do_no_harm(shift):
    rows = random_rows(SMALL, [5, 8])
    weights = random_weights(SMALL)
    _, expected = packed_gradients(weights, rows)
    weights[-1] += shift
    loss, found = packed_gradients(weights, rows)
    assert np.isfinite(loss)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_a_logit_that_is_not_a_number_is_not_hidden():
    weights = random_weights(SMALL)
    weights[-1] = tf.tensor_scatter_nd_update(weights[-1], [[3]], [np.nan])
    loss, _ = packed_gradients(weights, random_rows(SMALL, [5, 8]))
    assert np.isnan(loss)


def keras_training(config, weights, rows, learning_rate, batch_size, epochs):
    net = next_word.keras_model(config)
    net.set_weights([w.numpy() for w in weights])
    net.compile(
        tf.keras.optimizers.legacy.SGD(learning_rate),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
    )
    net.fit(
        rows[:, :-1],
        rows[:, 1:],
        batch_size=batch_size,
        epochs=epochs,
        shuffle=False,
        verbose=0,
    )
    return net.get_weights()


def trained(work, weights, dataset):
    """What the local training of one user returns."""
    result = work.update(weights, dataset)
    return tf.nest.map_structure(lambda leaf: tf.squeeze(leaf, 0), result)


def test_local_training_is_that_of_keras():
    epochs = 2
    lengths = np.random.default_rng(1).integers(2, SMALL.row_length + 1, 23)
    rows = random_rows(SMALL, lengths)
    weights = random_weights(SMALL, spread=0.3)
    expected = keras_training(SMALL, weights, rows, 0.5, 4, epochs)
    work = local_training.packed_trainer(SMALL, 0.5, batch_size=4, epochs=epochs)
    start = work.initial_weights()._replace(trainable=tuple(weights))
    delta, count, sums = trained(work, start, tf.data.Dataset.from_tensors(rows))
    assert count == 23
    assert sums["tokens"] == epochs * (lengths - 1).sum()
    for old, change, new in zip(weights, delta, expected, strict=True):
        assert np.abs(change).max() > 1e-3
        np.testing.assert_allclose(old - change, new, rtol=1e-5, atol=2e-5)


def test_elements_of_a_dataset_are_taken_together():
    rows = random_rows(SMALL, [4, 9, 3, 10, 6])
    work = local_training.packed_trainer(SMALL, 0.5, batch_size=2)
    start = work.initial_weights()
    whole = work.update(start, tf.data.Dataset.from_tensors(rows))
    parts = tf.data.Dataset.from_tensor_slices(rows[:, None])
    cut = work.update(start, parts)
    for a, b in zip(tf.nest.flatten(whole), tf.nest.flatten(cut), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("lengths", [[], [0, 0], [1, 0, 1]], ids=str)
def test_a_client_without_predictions_changes_nothing(lengths):
    rows = random_rows(SMALL, lengths)
    work = local_training.packed_trainer(SMALL, 0.5)
    start = work.initial_weights()
    delta, count, sums = trained(work, start, tf.data.Dataset.from_tensors(rows))
    assert count == len(lengths)
    for change in tf.nest.flatten(delta):
        np.testing.assert_array_equal(change, np.zeros(change.shape))
    assert all(value == 0 for value in sums.values())
    assert all(v == 0 for v in local_training.finalize_metrics(sums).values())


def test_an_empty_dataset_changes_nothing():
    work = local_training.packed_trainer(SMALL, 0.5)
    empty = tf.data.Dataset.from_tensors(random_rows(SMALL, [3])).take(0)
    delta, count, _ = trained(work, work.initial_weights(), empty)
    assert count == 0
    assert all(np.all(change == 0) for change in tf.nest.flatten(delta))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("learning_rate", "0.1"),
        ("batch_size", 0),
        ("epochs", 1.5),
    ],
)
def test_wrong_arguments_are_named(name, value):
    arguments = {"learning_rate": 0.1, name: value}
    with pytest.raises(ValueError, match=name):
        local_training.packed_trainer(SMALL, **arguments)
