"""Sizes, ids and initial weights of the next-word model, and how rows are packed."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from stackoverflow.model import next_word, packing

SMALL = next_word.ModelConfig(
    vocab_size=30, embedding_size=6, lstm_size=7, max_tokens=9
)


def test_the_papers_model_has_the_papers_parameters():
    config = next_word.ModelConfig()
    sizes = [int(np.prod(shape)) for shape in config.weight_shapes]
    layers = [sizes[0], sum(sizes[1:4]), sum(sizes[4:6]), sum(sizes[6:])]
    assert layers == [960_384, 2_055_560, 64_416, 970_388]
    assert config.num_parameters == 4_050_748


def test_the_keras_model_has_the_same_weights_in_the_same_order():
    net = next_word.keras_model(next_word.ModelConfig())
    layers = [layer.count_params() for layer in net.layers]
    assert layers == [960_384, 2_055_560, 64_416, 970_388]
    shapes = tuple(tuple(v.shape) for v in net.trainable_variables)
    assert shapes == next_word.ModelConfig().weight_shapes


def test_special_ids_follow_the_words():
    config = next_word.ModelConfig()
    assert (config.bos, config.eos, config.oov) == (10_001, 10_002, 10_003)
    assert config.num_ids == 10_004
    assert config.row_length == 21


def test_initial_weights_are_spread_as_keras_spreads_them():
    config = next_word.ModelConfig(vocab_size=500, embedding_size=32, lstm_size=24)
    net = next_word.keras_model(config)
    found = next_word.initial_weights(config, seed=1)
    for name, ours, theirs in zip(
        next_word.WEIGHT_NAMES, found, net.get_weights(), strict=True
    ):
        assert ours.dtype == tf.float32
        assert abs(np.std(ours) - np.std(theirs)) <= 0.1 * np.std(theirs), name
        assert abs(np.max(ours) - np.max(theirs)) <= 0.2 * np.max(theirs), name
    np.testing.assert_array_equal(found[3], net.get_weights()[3])
    recurrent = found[2].numpy()
    np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(24), atol=1e-5)


def test_initial_weights_depend_on_the_seed_alone():
    first, again, other = (next_word.initial_weights(SMALL, seed) for seed in (5, 5, 6))
    in_graph = tf.function(lambda: next_word.initial_weights(SMALL, 5))()
    for a, b, c in zip(first, again, in_graph, strict=True):
        np.testing.assert_array_equal(a, b)
        # Orthogonal matrices may differ in the last bit between the two ways.
        np.testing.assert_allclose(a, c, atol=1e-6)
    assert np.abs(first[0] - other[0]).max() > 0


@pytest.mark.parametrize("name", ["vocab_size", "lstm_size", "max_tokens"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True])
def test_sizes_that_make_no_sense_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        next_word.ModelConfig(**{name: value})


def test_weights_of_another_model_are_refused():
    with pytest.raises(ValueError, match="shapes"):
        next_word.check_weights(SMALL, next_word.initial_weights(SMALL)[:-1])


def unpack(packed, rows):
    """The pairs by row, put together from time-major order."""
    pairs: list[list] = [[] for _ in range(rows)]
    inputs, targets = iter(packed.inputs.numpy()), iter(packed.targets.numpy())
    for size in packed.sizes.numpy():
        for place in range(size):
            row = packed.order.numpy()[place]
            pairs[row].append((next(inputs), next(targets)))
    assert next(inputs, None) is None
    return pairs


def test_packing_keeps_every_real_pair_and_nothing_else():
    rng = np.random.default_rng(0)
    for _ in range(20):
        lengths = rng.integers(0, 11, size=rng.integers(0, 9))
        rows = rng.integers(1, 34, size=[len(lengths), 10]).astype(np.int32)
        rows[np.arange(10)[None, :] >= lengths[:, None]] = 0
        packed = packing.pack(tf.constant(rows))
        assert np.all(np.diff(packed.sizes) <= 0)
        expected = []
        for row, length in zip(rows, np.minimum(lengths, 10), strict=True):
            real = row[:length]
            expected.append(list(itertools.pairwise(real)))
        assert unpack(packed, len(rows)) == expected


def test_positions_lead_back_to_the_rows():
    rows = tf.constant([[8, 1, 9, 0, 0], [8, 2, 3, 4, 9], [8, 9, 0, 0, 0]])
    packed = packing.pack(rows)
    places = packing.positions(packed).numpy()
    assert len(places) == 2 + 4 + 1
    found = rows.numpy()[places[:, 0], places[:, 1]]
    np.testing.assert_array_equal(found, packed.inputs)
    found = rows.numpy()[places[:, 0], places[:, 1] + 1]
    np.testing.assert_array_equal(found, packed.targets)


def test_what_follows_the_first_pad_is_left_out():
    packed = packing.pack(tf.constant([[8, 1, 0, 2, 9]]))
    assert packed.inputs.numpy().tolist() == [8]
    assert packed.targets.numpy().tolist() == [1]
