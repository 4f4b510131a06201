"""The aggregation by itself, in a learning process that TFF composes."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_agg import noise
from tff_agg.federated import factory
from tff_agg.server import state as states

SEED = (123456789012345, -987654321)


def test_a_stock_algorithm_with_it_is_the_process_of_our_own(tiny):
    plan = tiny.plan(
        clip_norm=0.1, noise_multiplier=0.5, mechanism=noise.tree(),
        noise_seed_is_known=True, rounds=2,
    )  # fmt: skip
    stock = tff.learning.algorithms.build_unweighted_fed_avg(
        tiny.variable_model,
        tff.learning.optimizers.build_sgdm(0.3),
        tff.learning.optimizers.build_sgdm(0.7),
        model_aggregator=factory.DPFTRLSumFactory(plan, noise_seed=SEED),
    )
    own = tiny.build(
        tiny.variable_model,
        plan=plan,
        client_optimizer=0.3,
        server_learning_rate=0.7,
        noise_seed=SEED,
    )
    found, wanted = stock.initialize(), own.initialize()
    start = tiny.vector(states.aggregate(wanted))
    for t in range(2):
        data = [tiny.examples(2 * t), tiny.examples(2 * t + 1)]
        found, metrics = stock.next(found, data)
        wanted, expected = own.next(wanted, data)
    np.testing.assert_allclose(
        tiny.vector(found.global_model_weights.trainable),
        tiny.vector(states.aggregate(wanted)),
        atol=1e-6,
    )
    assert np.abs(tiny.vector(states.aggregate(wanted)) - start).max() > 0.01
    assert metrics["aggregator"] == expected["aggregator"]
    assert 0 < metrics["aggregator"]["clipped_fraction"] <= 1
    # It keeps to the plan, whoever composes it.
    with pytest.raises(Exception, match="the plan ends after 2 rounds"):
        stock.next(found, data)
    with pytest.raises(Exception, match="at most 2 clients per round"):
        stock.next(stock.initialize(), [*data, data[0]])


def test_one_client_moves_the_mean_by_no_more_than_its_share(tiny):
    made = factory.DPFTRLSumFactory(tiny.plan(clip_norm=1.5, cohort_size=4)).create(
        tff.types.to_type([(np.float32, [3]), (np.float16, [2])])
    )
    client = [tf.constant([0.0, 3e4, 0.0]), tf.constant([4e4, 0.0], tf.float16)]
    result = made.next(made.initialize(), [client]).result
    assert [leaf.dtype for leaf in result] == [np.float32, np.float16]
    np.testing.assert_allclose(result[0], [0, 0.6 * 1.5 / 4, 0], rtol=1e-3)
    np.testing.assert_allclose(result[1], [0.8 * 1.5 / 4, 0], rtol=1e-3)


def test_what_is_no_float_is_refused(tiny):
    with pytest.raises(TypeError, match="value_type must be a tensor or a structure"):
        factory.DPFTRLSumFactory(tiny.plan()).create(tff.TensorType(np.int32, [2]))
