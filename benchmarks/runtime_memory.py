"""Does resident memory grow when every round has another cohort size?

    python -m benchmarks.runtime_memory --rounds=200 --runtime=local

trains a model of about 400,000 parameters on cohorts of random size and reports the
resident memory of this process and its children after round 20 and later.
"""

import dataclasses
import time
from collections.abc import Callable

import numpy as np
import psutil

from benchmarks import programs
from tff_agg.fields import described
from tff_agg.runtime.quiet import quiet_tensorflow


@dataclasses.dataclass(frozen=True)
class Options:
    """What is trained."""

    rounds: int = described(200, "how many rounds", at_least=1)
    warm_up: int = described(20, "the round to compare with", at_least=1)
    largest_cohort: int = described(40, "cohorts have 1 to this many", at_least=1)
    width: int = described(600, "hidden units; parameters are its square", at_least=1)
    runtime: str = described("local", "which runtime")
    out: str = described("results/runtime_memory", "where the results go")


def resident_megabytes() -> float:
    """Adds up the resident memory of this process and its children."""
    me = psutil.Process()
    family = [me, *me.children(recursive=True)]
    return sum(process.memory_info().rss for process in family) / 1e6


def measure(
    rounds: int,
    largest_cohort: int,
    width: int,
    runtime_name: str,
    seed: int = 0,
    observe: Callable[[], float] = resident_megabytes,
) -> list[dict[str, float]]:
    """Trains for `rounds` rounds and returns memory, as observed, and time of each."""
    import tensorflow as tf
    import tensorflow_federated as tff

    from tff_agg import runtime

    features = 20
    rng = np.random.RandomState(seed)

    def dataset(examples: int) -> tf.data.Dataset:
        x = rng.randn(examples, features).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)

    def model_fn():
        layers = tf.keras.layers
        model = tf.keras.Sequential(
            [
                layers.Input((features,)),
                layers.Dense(width, activation="relu"),
                layers.Dense(width, activation="relu"),
                layers.Dense(1),
            ]
        )
        return tff.learning.models.from_keras_model(
            model,
            tf.keras.losses.MeanSquaredError(),
            input_spec=dataset(8).element_spec,
        )

    process = tff.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.01),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0, 0.9),
    )
    found = []
    with runtime.running_on(runtime_name):
        state = process.initialize()
        for number in range(1, rounds + 1):
            clients = int(rng.randint(1, largest_cohort + 1))
            data = [dataset(int(rng.randint(1, 40))) for _ in range(clients)]
            began = time.perf_counter()
            state = process.next(state, data).state
            seconds = time.perf_counter() - began
            del data
            found.append(
                {
                    "round": number,
                    "clients": clients,
                    "seconds": seconds,
                    "memory": observe(),
                }
            )
    return found


def main(options: Options) -> None:
    """Trains, prints and writes."""
    quiet_tensorflow()
    found = measure(
        options.rounds, options.largest_cohort, options.width, options.runtime
    )
    later = found[options.warm_up - 1 :]
    reference = later[0]["memory"]
    programs.tell(
        f"round | clients | MB | vs round {options.warm_up}",
        "{round} | {clients} | {memory:.1f} | {growth:+.2%}",
        [
            {**row, "growth": row["memory"] / reference - 1}
            for row in later[:: max(1, len(found) // 10)]
        ],
    )
    worst = max(row["memory"] for row in later[1:]) / reference - 1
    summary = {
        "runtime": options.runtime,
        "reference_megabytes": reference,
        "largest_growth": worst,
        "rounds": found,
    }
    programs.write(options.out, options.runtime, summary)
    print(f"largest growth after round {options.warm_up}: {worst:+.2%}")


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)
