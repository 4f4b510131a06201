"""A client's dataset starts no threads that it does not need; its elements stay."""

import os

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_agg import runtime
from tff_agg.runtime.compile import dataset_options

_TYPE = tff.SequenceType(np.int64)


@tff.tensorflow.computation(_TYPE)
def _digest(dataset):
    # Another order of the elements gives another number.
    return dataset.reduce(np.int64(0), lambda digest, i: digest * 31 + i)


def _digest_of(make_dataset):
    """Runs a client with such a dataset twice; returns the second result."""

    # A computation of its own each time: it is compiled as things stand now.
    @tff.federated_computation(tff.FederatedType(_TYPE, tff.CLIENTS))
    def digest(clients):
        return tff.federated_sum(tff.federated_map(_digest, clients))

    with runtime.running_on("local", lanes=1):
        digest([make_dataset()])
        return digest([make_dataset()])


def _threads_with_a_client():
    """Counts the threads that come while a client's dataset is read."""
    made, seen = [], []

    def threads():
        return len(os.listdir("/proc/self/task"))

    def look(i):
        seen.append(threads())
        return i

    def make():
        seen.clear()
        made.append(threads())
        return tf.data.Dataset.range(4).map(
            lambda i: tf.ensure_shape(tf.numpy_function(look, [i], tf.int64), [])
        )

    _digest_of(make)
    assert len(seen) == 4
    return max(seen) - made[-1]


def _leave_alone(monkeypatch):
    monkeypatch.setattr(dataset_options, "without_threads", lambda given, _: given)


def test_clients_start_fewer_threads(monkeypatch):
    ours = _threads_with_a_client()
    # TensorFlow's own choice; operations that read a dataset have threads either way.
    _leave_alone(monkeypatch)
    assert ours < _threads_with_a_client()


def test_elements_stay_as_they_are(monkeypatch):
    def make():
        tripled = tf.data.Dataset.range(50).map(
            lambda i: i * 3, num_parallel_calls=tf.data.AUTOTUNE
        )
        return tripled.shuffle(20, seed=5).repeat(3).prefetch(tf.data.AUTOTUNE)

    found = _digest_of(make)
    _leave_alone(monkeypatch)
    assert found == _digest_of(make) != 0
