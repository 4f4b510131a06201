"""The packed trainer inside the whole process, on the local runtime."""

import numpy as np
import pytest
import tensorflow as tf

from stackoverflow.model import local_training, next_word
from tff_agg import averaging, noise, privacy, runtime
from tff_agg.federated import process
from tff_agg.server import state as states

SMALL = next_word.ModelConfig(
    vocab_size=30, embedding_size=6, lstm_size=7, max_tokens=9
)


def client(seed, rows=11):
    rng = np.random.default_rng(seed)
    found = rng.integers(1, SMALL.num_ids, [rows, SMALL.row_length]).astype(np.int32)
    lengths = rng.integers(2, SMALL.row_length + 1, rows)
    found[np.arange(SMALL.row_length)[None, :] >= lengths[:, None]] = 0
    return found


def test_a_round_is_the_mean_of_the_clients_updates():
    work = local_training.packed_trainer(SMALL, 0.5, batch_size=4)
    plan = privacy.Plan(
        clip_norm=1e6,
        cohort_size=3,
        rounds=4,
        mechanism=noise.tree(),
        noise_multiplier=0.0,
    )
    training = process.build_dp_ftrl_process(
        work, plan=plan, averager=averaging.last(), server_learning_rate=1.0
    )
    clients = [client(0), client(1), client(2, rows=0)]
    data = [tf.data.Dataset.from_tensors(rows) for rows in clients]
    with runtime.running_on("local"):
        state = training.initialize()
        before = [np.asarray(w) for w in states.aggregate(state)]
        output = training.next(state, data)
        after = [np.asarray(w) for w in states.aggregate(output.state)]
    start = work.initial_weights()._replace(
        trainable=tuple(tf.constant(w) for w in before)
    )
    deltas = [[leaf[0] for leaf in work.update(start, dataset)[0]] for dataset in data]
    for old, new, *parts in zip(before, after, *deltas, strict=True):
        mean = np.sum([part.numpy() for part in parts], axis=0) / 3
        assert np.abs(mean).max() > 1e-4
        np.testing.assert_allclose(new, old - mean, rtol=1e-5, atol=1e-6)
    found = output.metrics["client_work"]
    assert found["num_examples"] == 22
    tokens = sum(int((rows[:, 1:] != 0).sum()) for rows in clients)
    assert found["train"]["tokens"] == tokens
    assert found["train"]["loss"] == pytest.approx(np.log(SMALL.num_ids), rel=0.1)
