"""TFF's own algorithms and aggregators, small, to be run on several runtimes."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime import runtime_examples as examples

CLIENTS = 5
ROUNDS = 2
#: So many coordinates that mean and spread of noise can be compared, and enough for
#: what compresses large tensors only.
WIDE = 30_000
WEIGHTS = [np.float32(1 + client) for client in range(CLIENTS)]
SGD = tff.learning.optimizers.build_sgdm(0.1)
MIME_SGD = tff.learning.optimizers.build_sgdm(0.1, 0.9)
SERVER_SGD = tff.learning.optimizers.build_sgdm(1.0, 0.9)
SHAPES = {"wide": [WIDE], "small": [3]}
SPECS = examples.named(**{n: tf.TensorSpec(s) for n, s in SHAPES.items()})
VALUE = tff.types.to_type(
    examples.named(**{n: tff.TensorType(np.float32, s) for n, s in SHAPES.items()})
)
algorithms, aggregators = tff.learning.algorithms, tff.aggregators
DP = aggregators.DifferentiallyPrivateFactory


class Program(NamedTuple):
    """A computation and what it is called with.

    Attributes:
      step: The computation; with `initialize`, its first argument is the state.
      rounds: The arguments of each call, without the state.
      initialize: What makes the first state.
      noisy: Results are random, and compared by mean and standard deviation.
      unordered: Results are lists of samples, whose order means nothing.
    """

    step: tff.Computation
    rounds: list[tuple]
    initialize: tff.Computation | None = None
    noisy: bool = False
    unordered: bool = False


def of_process(process, rounds, **kind) -> Program:
    return Program(process.next, rounds, process.initialize, **kind)


def learning(process) -> Program:
    """A learning process over small regression data."""
    return of_process(
        process, [(examples.datasets(CLIENTS, seed=seed),) for seed in range(ROUNDS)]
    )


def trained(build, *arguments, **options) -> Program:
    return learning(build(examples.keras_model_fn, *arguments, **options))


def summed(factory, noisy=False) -> Program:
    """An aggregator of values with a wide part and a small one."""
    pattern = np.array([-0.01, -0.003, 0.004, 0.01], np.float32)
    values = [
        [
            examples.named(
                wide=np.tile(pattern * (client + seed + 1), WIDE // 4),
                small=np.array([client, -1, seed], np.float32),
            )
            for client in range(CLIENTS)
        ]
        for seed in range(ROUNDS)
    ]
    if isinstance(factory, aggregators.WeightedAggregationFactory):
        process = factory.create(VALUE, tff.TensorType(np.float32))
        return of_process(process, [(v, WEIGHTS) for v in values], noisy=noisy)
    process = factory.create(VALUE)
    return of_process(process, [(v,) for v in values], noisy=noisy)


def integers_summed(factory) -> Program:
    values = [np.array([client, 7, 3], np.int32) for client in range(CLIENTS)]
    return of_process(factory.create(tff.TensorType(np.int32, [3])), [(values,)])


def quantile(**options):
    """An estimate of norms, which moves from round to round."""
    return aggregators.PrivateQuantileEstimationProcess.no_noise(
        initial_estimate=0.5, target_quantile=0.6, learning_rate=1.0, **options
    )


def reconstruction_model():
    inputs = tf.keras.layers.Input((examples.FEATURES,))
    local = tf.keras.layers.Dense(3, kernel_initializer=examples.seeded(1))
    shared = tf.keras.layers.Dense(1, kernel_initializer=examples.seeded(2))
    return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
        keras_model=tf.keras.Model(inputs, shared(local(inputs))),
        global_layers=[shared],
        local_layers=[local],
        input_spec=examples.datasets(1)[0].element_spec,
    )


def k_means() -> Program:
    process = algorithms.build_fed_kmeans(3, (2,), random_seed=(1, 2))
    points = np.random.RandomState(0).randn(CLIENTS, 8, 2).astype(np.float32)
    data = [tf.data.Dataset.from_tensor_slices(some) for some in points]
    return of_process(process, [(data,)] * ROUNDS)


def personalization() -> Program:
    @tf.function
    def loss(model, dataset):
        total = tf.constant(0.0)
        for batch in dataset.batch(4):
            total += model.forward_pass(batch, training=False).loss
        return examples.named(loss=total)

    def build_sgd():
        optimizer = tf.keras.optimizers.SGD(0.1)

        @tf.function
        def personalize(model, train, test):
            for batch in train.batch(4):
                with tf.GradientTape() as tape:
                    output = model.forward_pass(batch, training=True)
                variables = model.trainable_variables
                gradients = tape.gradient(output.loss, variables)
                optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss(model, test)

        return personalize

    step = algorithms.build_personalization_eval_computation(
        examples.linear_model_fn, examples.named(sgd=build_sgd), loss, CLIENTS
    )
    weights = [np.ones((examples.FEATURES, 1), np.float32)]
    model = tff.learning.models.ModelWeights(trainable=weights, non_trainable=[])
    data = [
        examples.named(train_data=d.unbatch(), test_data=d.unbatch())
        for d in examples.datasets(CLIENTS)
    ]
    return Program(step, [(model, data)], unordered=True)


def heavy_hitters() -> Program:
    factory = tff.analytics.IbltFactory(
        capacity=20, string_max_bytes=10, repetitions=3, seed=1
    )
    element = examples.named(key=np.str_, value=tff.TensorType(np.int64, [1]))
    data = [
        [examples.named(key=word, value=[client]) for word in ("loop", f"word{client}")]
        for client in range(CLIENTS)
    ]
    process = factory.create(tff.SequenceType(element))
    return of_process(process, [(data,)], unordered=True)


def histogram() -> Program:
    process = tff.analytics.build_hierarchical_histogram_process(
        0.0, 8.0, 8, clip_mechanism="distinct", enable_secure_sum=False
    )

    @tff.federated_computation(process.next.type_signature.parameter[1])
    def without_state(x):  # which holds the time
        return process.next(process.initialize(), x)[1]

    data = [
        tf.data.Dataset.range(client + 1, output_type=tf.float32)
        for client in range(CLIENTS)
    ]
    return Program(without_state, [(data,)])


def distinct_words(secure: bool) -> Program:
    count = tff.analytics.count_distinct
    step = count.create_federated_hyperloglog_computation(use_secagg=secure)
    data = [["a", "b", f"word{client}"] for client in range(CLIENTS)]
    return Program(step, [(data,)])


def sample() -> Program:
    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def sampled(x):
        return aggregators.federated_sample(x, 10)

    return Program(sampled, [(WEIGHTS,)], unordered=True)


def select() -> Program:
    """Every client is given the rows it asks for."""
    key = tff.TensorType(np.int32, [2])

    @tff.tensorflow.computation(np.float32, np.int32)
    def row(value, number):
        return value * tf.cast(number, tf.float32)

    @tff.federated_computation(
        tff.FederatedType(key, tff.CLIENTS),
        tff.FederatedType(np.int32, tff.SERVER),
        tff.FederatedType(np.float32, tff.SERVER),
    )
    def selected(keys, most, value):
        return tff.federated_select(keys, most, value, row)

    keys = [np.array([client, 0], np.int32) for client in range(CLIENTS)]
    return Program(selected, [(keys, np.int32(CLIENTS), np.float32(2))])


def template(name: str) -> Program:
    """A part of a learning process, called by itself."""
    build = tff.learning.templates
    weights = tff.learning.models.weights_type_from_model(examples.keras_model_fn)
    model = examples.keras_model_fn()
    values = tff.learning.models.ModelWeights.from_model(model)
    values = tf.nest.map_structure(lambda x: x.numpy(), values)
    if name == "broadcast":
        return of_process(build.build_broadcast_process(weights), [(values,)])
    if name == "finalizer":
        process = build.build_apply_optimizer_finalizer(SERVER_SGD, weights)
        return of_process(process, [(values, values.trainable)])
    process = build.build_model_delta_client_work(
        examples.keras_model_fn, SGD, tff.learning.ClientWeighting.NUM_EXAMPLES
    )
    return of_process(process, [([values] * CLIENTS, examples.datasets(CLIENTS))])


@tff.tensorflow.computation(VALUE)
def largest(value):
    return tf.reduce_max(value["wide"])


def quantized_sum() -> Program:
    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def total(x):
        return aggregators.secure_quantized_sum(x, np.float32(0), np.float32(10))

    return Program(total, [(WEIGHTS,)])


def fed_avg(aggregator) -> Program:
    return trained(
        algorithms.build_weighted_fed_avg, SGD, SERVER_SGD, model_aggregator=aggregator
    )


PROGRAMS: dict[str, Callable[[], Program]] = {
    "build_weighted_fed_avg": lambda: fed_avg(None),
    "build_unweighted_fed_avg": lambda: trained(
        algorithms.build_unweighted_fed_avg, SGD, SERVER_SGD
    ),
    "build_weighted_fed_avg_with_optimizer_schedule": lambda: trained(
        algorithms.build_weighted_fed_avg_with_optimizer_schedule,
        lambda number: 0.1 / (1.0 + tf.cast(number, tf.float32)),
        tff.learning.optimizers.build_sgdm,
        SERVER_SGD,
    ),
    "build_weighted_fed_prox": lambda: trained(
        algorithms.build_weighted_fed_prox, 0.5, SGD, SERVER_SGD
    ),
    "build_unweighted_fed_prox": lambda: trained(
        algorithms.build_unweighted_fed_prox, 0.5, SGD, SERVER_SGD
    ),
    "build_fed_sgd": lambda: trained(algorithms.build_fed_sgd, SERVER_SGD),
    "build_weighted_mime_lite": lambda: trained(
        algorithms.build_weighted_mime_lite, MIME_SGD
    ),
    "build_unweighted_mime_lite": lambda: trained(
        algorithms.build_unweighted_mime_lite, MIME_SGD
    ),
    "build_mime_lite_with_optimizer_schedule": lambda: trained(
        algorithms.build_mime_lite_with_optimizer_schedule,
        lambda number: 0.1 / (1.0 + tf.cast(number, tf.float32)),
        MIME_SGD,
    ),
    "build_fed_kmeans": k_means,
    "build_fed_recon": lambda: learning(
        algorithms.build_fed_recon(
            reconstruction_model, loss_fn=tf.keras.losses.MeanSquaredError
        )
    ),
    "build_fed_recon_eval": lambda: learning(
        algorithms.build_fed_recon_eval(
            reconstruction_model, loss_fn=tf.keras.losses.MeanSquaredError
        )
    ),
    "build_fed_eval": lambda: trained(algorithms.build_fed_eval),
    "build_personalization_eval_computation": personalization,
    "FedAvg with add_debug_measurements": lambda: fed_avg(
        tff.learning.add_debug_measurements(aggregators.MeanFactory())
    ),
    "robust_aggregator": lambda: summed(tff.learning.robust_aggregator()),
    "dp_aggregator": lambda: summed(tff.learning.dp_aggregator(0.1, CLIENTS), True),
    "compression_aggregator": lambda: summed(
        tff.learning.compression_aggregator(), True
    ),
    "secure_aggregator": lambda: summed(tff.learning.secure_aggregator()),
    "ddp_secure_aggregator": lambda: summed(
        tff.learning.ddp_secure_aggregator(0.1, CLIENTS), True
    ),
    "SumFactory": lambda: summed(aggregators.SumFactory()),
    "MeanFactory": lambda: summed(aggregators.MeanFactory()),
    "UnweightedMeanFactory": lambda: summed(aggregators.UnweightedMeanFactory()),
    "gaussian_fixed": lambda: summed(DP.gaussian_fixed(0.5, CLIENTS, 0.5), True),
    "gaussian_adaptive": lambda: summed(DP.gaussian_adaptive(0.1, CLIENTS), True),
    "tree_aggregation": lambda: summed(
        DP.tree_aggregation(0.5, CLIENTS, 0.5, SPECS, noise_seed=7)
    ),
    "tree_adaptive": lambda: summed(
        DP.tree_adaptive(0.1, CLIENTS, SPECS, noise_seed=7)
    ),
    "clipping_factory": lambda: summed(
        aggregators.clipping_factory(0.5, aggregators.SumFactory())
    ),
    "clipping_factory at a quantile": lambda: summed(
        aggregators.clipping_factory(quantile(), aggregators.MeanFactory())
    ),
    "zeroing_factory at a secure quantile": lambda: summed(
        aggregators.zeroing_factory(
            quantile(secure_estimation=True), aggregators.SumFactory()
        )
    ),
    "EncodedSumFactory": lambda: summed(
        aggregators.EncodedSumFactory.quantize_above_threshold(8, 100), True
    ),
    "HadamardTransformFactory": lambda: summed(aggregators.HadamardTransformFactory()),
    "DiscreteFourierTransformFactory": lambda: summed(
        aggregators.DiscreteFourierTransformFactory()
    ),
    "concat_factory": lambda: summed(
        aggregators.concat_factory(aggregators.MeanFactory())
    ),
    "add_measurements": lambda: summed(
        aggregators.add_measurements(
            aggregators.SumFactory(),
            client_measurement_fn=lambda value: examples.named(
                largest=tff.federated_max(tff.federated_map(largest, value))
            ),
        )
    ),
    "SecureSumFactory": lambda: summed(aggregators.SecureSumFactory(10.0, -10.0)),
    "SecureSumFactory at a quantile": lambda: summed(
        aggregators.SecureSumFactory(quantile(secure_estimation=True))
    ),
    "SecureModularSumFactory": lambda: integers_summed(
        aggregators.SecureModularSumFactory(20)
    ),
    "secure_quantized_sum": quantized_sum,
    "UnweightedReservoirSamplingFactory": lambda: of_process(
        aggregators.UnweightedReservoirSamplingFactory(10).create(
            tff.TensorType(np.float32)
        ),
        [(WEIGHTS,)],
        unordered=True,
    ),
    "federated_sample": sample,
    "IbltFactory": heavy_hitters,
    "build_hierarchical_histogram_process": histogram,
    "create_federated_hyperloglog_computation": lambda: distinct_words(False),
    "hyperloglog with use_secagg": lambda: distinct_words(True),
    "build_apply_optimizer_finalizer": lambda: template("finalizer"),
    "build_broadcast_process": lambda: template("broadcast"),
    "build_model_delta_client_work": lambda: template("work"),
    "federated_select": select,
}
#: Programs that the suite leaves out, and those whose parts they are made of.
OF_THE_SAME_PARTS: dict[str, tuple[str, ...]] = {
    "build_unweighted_fed_avg": ("build_unweighted_fed_prox", "UnweightedMeanFactory"),
    "build_weighted_fed_prox": ("build_unweighted_fed_prox", "build_weighted_fed_avg"),
    "build_weighted_mime_lite": (
        "build_unweighted_mime_lite",
        "build_weighted_fed_avg",
    ),
    "build_mime_lite_with_optimizer_schedule": (
        "build_unweighted_mime_lite",
        "build_weighted_fed_avg_with_optimizer_schedule",
    ),
    "build_fed_recon_eval": ("build_fed_recon", "build_fed_eval"),
    "FedAvg with add_debug_measurements": (
        "build_weighted_fed_avg",
        "add_measurements",
    ),
    "secure_aggregator": (
        "clipping_factory at a quantile",
        "SecureSumFactory at a quantile",
    ),
    "robust_aggregator": (
        "clipping_factory at a quantile",
        "zeroing_factory at a secure quantile",
    ),
    "dp_aggregator": ("gaussian_adaptive",),
    "SumFactory": ("clipping_factory",),
    "MeanFactory": ("clipping_factory at a quantile",),
    "gaussian_fixed": ("gaussian_adaptive",),
    "tree_aggregation": ("tree_adaptive",),
    "DiscreteFourierTransformFactory": ("HadamardTransformFactory",),
    "EncodedSumFactory": ("compression_aggregator",),
    "concat_factory": ("compression_aggregator",),
    "SecureSumFactory": ("SecureSumFactory at a quantile",),
    "UnweightedReservoirSamplingFactory": ("federated_sample",),
}
