"""Times rounds of stock TFF: federated averaging with its own tree aggregation.

    python -m benchmarks.peers.tff --task=lstm --users=100 --examples=8 --rounds=5

Both of TFF's loops over a client's data take turns, on TFF's own worker. The last line
printed is JSON: seconds and processor seconds of each round, by loop.
"""

import json
import os
import time

from benchmarks.peers import keras_models, workload


def main() -> None:
    given = workload.arguments()
    import psutil
    import tensorflow as tf
    import tensorflow_federated as tff

    task = workload.TASKS[given.task]
    data = keras_models.datasets(task, given.users, given.examples)

    def model():
        return tff.learning.models.from_keras_model(
            keras_models.build(task),
            loss=keras_models.loss(task),
            input_spec=data[0].element_spec,
        )

    def process(loop):
        specs = [
            tf.TensorSpec(w.shape, w.dtype)
            for w in keras_models.build(task).trainable_variables
        ]
        return tff.learning.algorithms.build_unweighted_fed_avg(
            model,
            client_optimizer_fn=tff.learning.optimizers.build_sgdm(
                workload.CLIENT_RATE
            ),
            server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0, 0.9),
            model_aggregator=(
                tff.aggregators.DifferentiallyPrivateFactory.tree_aggregation(
                    noise_multiplier=workload.NOISE_MULTIPLIER,
                    clients_per_round=given.users,
                    l2_norm_clip=workload.CLIP_NORM,
                    record_specs=specs,
                    use_efficient=True,
                )
            ),
            loop_implementation=loop,
        )

    def processor_seconds() -> float:
        # The worker is another process, which this one has started.
        everyone = [psutil.Process(), *psutil.Process().children(recursive=True)]
        return sum(sum(p.cpu_times()[:2]) for p in everyone)

    found: dict[str, dict[str, list[float]]] = {}
    running = {}
    for loop in tff.learning.LoopImplementation:
        made = process(loop)
        running[loop] = made, made.initialize()
        found[loop.name] = {"rounds": [], "cpu": []}
    for _ in range(given.rounds):
        for loop, (made, state) in running.items():
            start, before = time.perf_counter(), processor_seconds()
            running[loop] = made, made.next(state, data).state
            found[loop.name]["rounds"].append(time.perf_counter() - start)
            found[loop.name]["cpu"].append(processor_seconds() - before)
    print(json.dumps(found), flush=True)
    for child in psutil.Process().children(recursive=True):
        # TFF leaves its worker running.
        child.terminate()
    os._exit(0)


if __name__ == "__main__":
    main()
