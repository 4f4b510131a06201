"""Small processes that the tests of runtimes share."""

import collections
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

FEATURES = 4
LEARNING_RATE = 0.1


def client_arrays(clients: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.RandomState(seed)
    return [
        (
            rng.randn(6 + i, FEATURES).astype(np.float32),
            rng.randn(6 + i, 1).astype(np.float32),
        )
        for i in range(clients)
    ]


def datasets(clients: int, seed: int = 0, batch: int = 4) -> list[tf.data.Dataset]:
    return [
        tf.data.Dataset.from_tensor_slices(xy).batch(batch)
        for xy in client_arrays(clients, seed)
    ]


def seeded(seed: int) -> tf.keras.initializers.Initializer:
    return tf.keras.initializers.GlorotUniform(seed=seed)


def keras_model_fn():
    """A Keras model: its graph has variables, for weights and for metrics."""
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((FEATURES,)),
            tf.keras.layers.Dense(3, kernel_initializer=seeded(1)),
            tf.keras.layers.Dense(1, kernel_initializer=seeded(2)),
        ]
    )
    return tff.learning.models.from_keras_model(
        model,
        tf.keras.losses.MeanSquaredError(),
        input_spec=datasets(1)[0].element_spec,
    )


def linear_model_fn():
    """One weight vector, from zero: a round is easy to write down in numpy."""
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((FEATURES,)),
            tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    return tff.learning.models.from_keras_model(
        model,
        tf.keras.losses.MeanSquaredError(),
        input_spec=datasets(1)[0].element_spec,
    )


# Built once, so that a runtime compiles it once.
@functools.cache
def weighted_fed_avg(model_fn=keras_model_fn):
    return tff.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(LEARNING_RATE),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    )


def secure_sums():
    """(int32@CLIENTS) -> the three ways in which TFF can be asked to add integers."""

    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def sums(x):
        return tff.federated_zip(
            (
                tff.federated_secure_sum_bitwidth(x, 8),
                tff.federated_secure_sum(x, 100),
                tff.federated_sum(x),
            )
        )

    return sums


def modular_sum(modulus: int):
    """(int32@CLIENTS) -> their sum modulo a number, which TFF's worker cannot do."""

    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def total(x):
        return tff.backends.mapreduce.federated_secure_modular_sum(x, modulus)

    return total


def integer_sums():
    """(count@SERVER, {int64*}@CLIENTS) -> sums of integers, exact in any order."""

    @tff.tensorflow.computation
    def zero():
        return np.int64(0)

    @tff.federated_computation
    def initialize():
        return tff.federated_value(zero(), tff.SERVER)

    @tff.tensorflow.computation(np.int64, tff.SequenceType(np.int64))
    def work(count, numbers):
        del count
        return numbers.reduce(np.int64(0), lambda a, b: a + b)

    @tff.tensorflow.computation(np.int64, np.int64)
    def add(a, b):
        return a + b

    @tff.federated_computation(
        tff.FederatedType(np.int64, tff.SERVER),
        tff.FederatedType(tff.SequenceType(np.int64), tff.CLIENTS),
    )
    def next_fn(count, numbers):
        sums = tff.federated_map(work, (tff.federated_broadcast(count), numbers))
        total = tff.federated_sum(sums)
        return tff.federated_map(add, (count, total)), total

    return tff.templates.IterativeProcess(initialize, next_fn)


def weights(state) -> list[np.ndarray]:
    return [np.asarray(w) for w in state.global_model_weights.trainable]


def numpy_round(
    weight: np.ndarray, clients: list[tuple[np.ndarray, np.ndarray]], batch: int
) -> np.ndarray:
    """Weighted FedAvg on the linear model, one epoch, written out."""
    total, examples = np.zeros_like(weight), 0
    for x, y in clients:
        local = weight.copy()
        for i in range(0, len(x), batch):
            xb, yb = x[i : i + batch], y[i : i + batch]
            local -= LEARNING_RATE * 2 * xb.T @ (xb @ local - yb) / len(xb)
        total += len(x) * (local - weight)
        examples += len(x)
    return weight + total / examples


def named(**leaves):
    return collections.OrderedDict(leaves)
