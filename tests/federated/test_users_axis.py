"""Where a client is one user, the axis of users is known to have length one.

Then clipping takes one pass and no copy. Nothing would fail without it; the clients of
a large model would work a tenth longer.
"""

import pytest
import tensorflow as tf

from stackoverflow.model import local_training, next_word
from tff_agg.federated import clipping, grouping, trainers, vectorized


def updates_of(trainer):
    """The traced updates of a trainer."""
    spec = tf.data.DatasetSpec(trainer.element_spec)
    found = []

    def update(dataset):
        weights = tf.nest.map_structure(tf.convert_to_tensor, trainer.initial_weights())
        found.extend(tf.nest.flatten(trainer.update(weights, dataset)[0]))
        return ()

    with tf.Graph().as_default():
        if trainer.needs_graph:
            update(
                tf.data.experimental.from_variant(
                    tf.compat.v1.placeholder(tf.variant, []), trainer.element_spec
                )
            )
        else:
            tf.function(update, autograph=False).get_concrete_function(spec)
    return found


def packed(tiny):
    config = next_word.ModelConfig(vocab_size=20, embedding_size=4, lstm_size=5)
    return local_training.packed_trainer(config, 0.1)


ONE_BY_ONE = {
    "by hand": lambda tiny: tiny.trainer(),
    "functional": lambda tiny: trainers.trainer_from_model(
        tiny.functional_model(), 0.1
    ),
    "variables": lambda tiny: trainers.trainer_from_model(tiny.variable_model, 0.1),
    "packed": packed,
}


@pytest.mark.parametrize("kind", ONE_BY_ONE)
def test_one_user_is_known_to_be_one(tiny, kind):
    updates = updates_of(ONE_BY_ONE[kind](tiny))
    assert updates
    for update in updates:
        assert clipping.is_one_user(update) and update.shape.is_fully_defined()


def test_a_group_is_not(tiny):
    trainer = vectorized.trainer_side_by_side(tiny.functional_model(), 0.1)
    assert not any(map(clipping.is_one_user, updates_of(trainer)))
    assert trainer.element_spec == grouping.group_spec(
        tiny.functional_model().input_spec
    )


def test_one_user_is_clipped_without_a_matrix():
    traced = tf.function(clipping.clip_users, autograph=False).get_concrete_function(
        [tf.TensorSpec([1, 3, 2])], 1.0, "drop"
    )
    names = {op.type for op in traced.graph.get_operations()}
    assert "L2Loss" in names and not names & {"MatMul", "Square", "If", "StatelessIf"}
