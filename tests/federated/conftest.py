"""What the tests of the process share: tiny trainers, plans and the local runtime."""

import collections
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_agg import averaging, noise, privacy, runtime
from tff_agg.federated import process, trainers

SIZES = (("a", 3), ("b", 2))
WIDTH = 5
PULL = 0.5


@pytest.fixture(autouse=True, scope="session")
def _local_runtime():
    with runtime.running_on("local", lanes=1):
        yield


def _split(row):
    return collections.OrderedDict(a=row[:3], b=row[3:])


def _vector(structure):
    """All leaves of a structure, one after another, as one numpy vector."""
    flat = [np.ravel(np.asarray(leaf)) for leaf in tf.nest.flatten(structure)]
    return np.concatenate(flat) if flat else np.zeros(0)


def _trainer(kind="send"):
    """A client that sends the sum of its rows, or steps towards it.

    With 'send' a test decides what each client's update is; with 'pull' the update is
    half the way from the client's rows to the weights it was sent.
    """

    def update(weights, dataset):
        total, count = dataset.reduce(
            (tf.zeros([WIDTH]), 0.0), lambda sums, row: (sums[0] + row, sums[1] + 1.0)
        )
        delta = _split(total)
        if kind == "pull":
            delta = tf.nest.map_structure(
                lambda w, x: PULL * (w - x), weights.trainable, delta
            )
        metrics = collections.OrderedDict(rows=count, total=tf.reduce_sum(total))
        return delta, count, metrics

    def finalize(sums):
        return collections.OrderedDict(
            rows=sums["rows"], mean=tf.math.divide_no_nan(sums["total"], sums["rows"])
        )

    return trainers.Trainer(
        element_spec=tf.TensorSpec([WIDTH], tf.float32),
        initial_weights=lambda: tff.learning.models.ModelWeights(
            _split(tf.range(1.0, 1.0 + WIDTH)), [tf.constant(7, tf.int32)]
        ),
        update=trainers.one_user(update),
        finalize_metrics=finalize,
    )


def _client(*rows):
    return tf.data.Dataset.from_tensor_slices(np.array(rows, np.float32))


def _plan(**changes):
    values = {
        "clip_norm": 1e6,
        "cohort_size": 2,
        "rounds": 16,
        "mechanism": noise.identity(),
        "noise_multiplier": 0.0,
    }
    return privacy.Plan(**{**values, **changes})


def _build(model="send", *, plan=None, averager=None, **arguments):
    return process.build_dp_ftrl_process(
        _trainer(model) if isinstance(model, str) else model,
        plan=_plan() if plan is None else plan,
        averager=averaging.last() if averager is None else averager,
        **arguments,
    )


INPUT_SPEC = (
    tf.TensorSpec([None, 4], tf.float32),
    tf.TensorSpec([None], tf.int32),
)


def _keras_model(seeded=True):
    return tf.keras.Sequential(
        [
            tf.keras.layers.Dense(
                2,
                input_shape=(4,),
                kernel_initializer=tf.keras.initializers.GlorotUniform(
                    seed=3 if seeded else None
                ),
            )
        ]
    )


def _loss():
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _functional_model():
    return tff.learning.models.functional_model_from_keras(
        _keras_model(),
        _loss(),
        INPUT_SPEC,
        lambda: collections.OrderedDict(
            accuracy=tf.keras.metrics.SparseCategoricalAccuracy()
        ),
    )


def _variable_model(seeded=True):
    return tff.learning.models.from_keras_model(
        _keras_model(seeded),
        loss=_loss(),
        input_spec=INPUT_SPEC,
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )


def _examples(seed, count=7, batch=3):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 4)).astype(np.float32)
    labels = (features.sum(axis=1) > 0).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(batch)


@pytest.fixture(scope="session")
def tiny():
    """The helpers above, under one name."""
    return types.SimpleNamespace(
        WIDTH=WIDTH,
        PULL=PULL,
        INITIAL=np.arange(1.0, 1.0 + WIDTH),
        build=_build,
        client=_client,
        examples=_examples,
        functional_model=_functional_model,
        plan=_plan,
        trainer=_trainer,
        variable_model=_variable_model,
        vector=_vector,
    )
