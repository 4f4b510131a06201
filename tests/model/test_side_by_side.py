"""Users of the next-word model side by side get what they get one by one."""

import numpy as np
import pytest
import tensorflow as tf

from stackoverflow.model import group_training as group_trainer
from stackoverflow.model import local_training, metrics, next_word, side_by_side
from tff_agg import noise, privacy, runtime
from tff_agg.federated import process
from tff_agg.server.state import iterate

SIZES = next_word.ModelConfig(
    vocab_size=30, embedding_size=5, lstm_size=7, max_tokens=4
)
# Users without rows, with one row, with several batches; two alike.
COUNTS = (4, 0, 1, 7, 4, 2, 0)
RATE = 0.7


def rows_of(counts=COUNTS, seed=0):
    rng = np.random.default_rng(seed)
    users = []
    for count in counts:
        rows = rng.integers(1, SIZES.vocab_size + 1, (count, SIZES.row_length))
        rows[:, 0] = SIZES.bos
        for row, length in zip(
            rows, rng.integers(2, SIZES.row_length + 1, count), strict=True
        ):
            row[length - 1 : length] = SIZES.eos
            row[length:] = 0
        users.append(rows.astype(np.int32))
    return users


def weights_at(scale=1.0, seed=3):
    return [w * scale for w in next_word.initial_weights(SIZES, seed)]


def as_users(rows):
    return side_by_side.Users(
        tf.constant(np.concatenate(rows)), tf.constant([len(r) for r in rows], tf.int32)
    )


@pytest.mark.parametrize(
    ("batch_size", "epochs", "scale"),
    [(16, 1, 1.0), (2, 2, 1.0), (16, 1, 40.0)],
    ids=["one step", "several steps and epochs", "large logits"],
)
def test_updates_and_metrics_are_those_of_users_one_by_one(batch_size, epochs, scale):
    users, weights = rows_of(), weights_at(scale)
    how = {"learning_rate": RATE, "batch_size": batch_size, "epochs": epochs}
    together = tf.function(
        lambda rows, counts: group_trainer.train_users(
            SIZES, weights, side_by_side.Users(rows, counts), **how
        )
    )
    moved, sums = together(*as_users(users))
    alone = tf.function(
        lambda rows: local_training.train_on_rows(SIZES, weights, rows, **how),
        input_signature=[tf.TensorSpec([None, SIZES.row_length], tf.int32)],
    )
    for place, rows in enumerate(users):
        final, wanted = alone(rows)
        for stack, old, new in zip(moved, weights, final, strict=True):
            np.testing.assert_allclose(
                stack[place], old - new, rtol=1e-4, atol=1e-6 * scale
            )
        for name in metrics.SUM_NAMES:
            np.testing.assert_allclose(sums[name][place], wanted[name], rtol=1e-5)
    if scale == 1.0:
        assert max(np.abs(m[0]).max() for m in moved) > 1e-3
    assert all(not np.any(m[1]) for m in moved), "a user without rows moved"


def test_nobody_has_rows():
    users = rows_of((0, 0))
    moved, sums = group_trainer.train_users(
        SIZES, weights_at(), as_users(users), learning_rate=RATE
    )
    assert all(m.shape[0] == 2 and not np.any(m) for m in moved)
    assert all(not np.any(s) for s in sums.values())


def test_both_kinds_of_steps_have_the_same_gradients():
    users, weights = as_users(rows_of()), weights_at()
    count = len(COUNTS)
    shared = side_by_side.first_step(weights, users, 0.5)
    stacked = [tf.repeat(w[None], count, 0) for w in weights]
    own = side_by_side.later_step(stacked, users, 0.5)
    for one, other in zip(shared.gradients, own.gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)


def build(trainer_of, **arguments):
    plan = privacy.Plan(
        clip_norm=0.2,
        cohort_size=len(COUNTS),
        rounds=4,
        mechanism=noise.tree(),
        noise_multiplier=0.1,
        noise_seed_is_known=True,
    )
    return process.build_dp_ftrl_process(
        trainer_of(SIZES, RATE, batch_size=3), plan=plan, noise_seed=(1, 2), **arguments
    )


def test_a_process_of_groups_is_that_of_its_users():
    users = rows_of()
    alone = build(local_training.packed_trainer)
    grouped = build(group_trainer.packed_group_trainer)
    groups = [users[:3], users[3:]]
    with runtime.running_on("local", lanes=2):
        wanted, expected = alone.next(
            alone.initialize(), [tf.data.Dataset.from_tensors(r) for r in users]
        )
        data = [group_trainer.group_of_rows(group) for group in groups]
        found, metrics_found = grouped.next(grouped.initialize(), data)
        again, _ = grouped.next(grouped.initialize(), data)
        # Two elements are so many more users.
        joined, counted = grouped.next(
            grouped.initialize(), [data[0].concatenate(data[1])]
        )
    for pair in ((wanted, found), (wanted, joined)):
        one, other = map(iterate, pair)
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for a, b in zip(iterate(found), iterate(again), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(
        tf.nest.flatten(expected), tf.nest.flatten(metrics_found), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    assert counted["aggregator"]["clients"] == len(COUNTS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be a positive"),
        ({"learning_rate": 0.1, "batch_size": 0}, "batch_size must be a whole number"),
        ({"learning_rate": 0.1, "epochs": True}, "epochs must be a whole number"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        group_trainer.packed_group_trainer(SIZES, **arguments)
