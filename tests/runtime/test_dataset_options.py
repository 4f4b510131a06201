"""A client's dataset neither starts threads of its own nor changes its elements."""

import os

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.runtime import dataset_options

_TYPE = tff.SequenceType(np.int64)


def _elements(dataset, prepare):
    """Collects a dataset's elements with a loop in a graph, as a client's work does."""

    @tf.function
    def collect(variant):
        (prepared,) = prepare([variant], [_TYPE])
        spec = tf.TensorSpec([], tf.int64)
        found = tf.TensorArray(tf.int64, 0, dynamic_size=True)
        for element in tf.data.experimental.from_variant(prepared, spec):
            found = found.write(found.size(), element)
        return found.stack()

    return lambda: collect(tf.data.experimental.to_variant(dataset)).numpy().tolist()


def _unchanged(tensors, types):
    del types
    return tensors


def _started_while_running(prepare):
    """Counts the threads that come with a client's dataset, its second time."""
    seen = []

    def look(i):
        seen.append(len(os.listdir("/proc/self/task")))
        return i

    dataset = tf.data.Dataset.range(4).map(
        lambda i: tf.ensure_shape(tf.numpy_function(look, [i], tf.int64), [])
    )
    run = _elements(dataset, prepare)
    run()
    seen.clear()
    before = len(os.listdir("/proc/self/task"))
    assert run() == [0, 1, 2, 3]
    return max(seen) - before


def test_starts_no_threads():
    assert _started_while_running(dataset_options.without_threads) <= 0
    # What it is good for: TensorFlow's own choice starts some for each client.
    assert _started_while_running(_unchanged) > 0


def test_elements_stay_as_they_are():
    dataset = (
        tf.data.Dataset.range(50)
        .map(lambda i: i * 3, num_parallel_calls=tf.data.AUTOTUNE)
        .shuffle(20, seed=5)
        .repeat(3)
        .prefetch(tf.data.AUTOTUNE)
    )
    expected = _elements(dataset, _unchanged)()
    assert _elements(dataset, dataset_options.without_threads)() == expected
    assert sorted(expected) == sorted([3 * i for i in range(50)] * 3)


def test_leaves_tensors_alone():
    types = [tff.TensorType(np.float32, [2])]
    (left,) = dataset_options.without_threads([tf.constant([1.0, 2.0])], types)
    assert left.numpy().tolist() == [1.0, 2.0]
