"""Does resident memory grow when every round has another cohort size?

    python -m benchmarks.runtime_memory --rounds=200 --runtime=local

trains a model of about 400,000 parameters on cohorts of random size and reports the
resident memory of this process and its children after round 20 and later.
"""

import json
import pathlib
import time
from collections.abc import Callable

import numpy as np
import psutil

from benchmarks import own_flags
from tff_agg.runtime.quiet import quiet_tensorflow

# Flags of its own: tests import this module beside others that have some.
_FLAGS = own_flags.OwnFlags()
_ROUNDS = _FLAGS.integer("rounds", 200, "How many rounds.")
_WARM_UP = _FLAGS.integer("warm_up", 20, "The round to compare with.")
_LARGEST = _FLAGS.integer("largest_cohort", 40, "Cohorts have 1 to this many.")
_WIDTH = _FLAGS.integer("width", 600, "Hidden units; parameters are its square.")
_RUNTIME = _FLAGS.string("runtime", "local", "Which runtime.")
_OUT = _FLAGS.string("out", "results/runtime_memory", "Where the results go.")


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


def main(argv: list[str]) -> None:
    del argv
    quiet_tensorflow()
    found = measure(_ROUNDS.value, _LARGEST.value, _WIDTH.value, _RUNTIME.value)
    reference = found[_WARM_UP.value - 1]["memory"]
    print(f"{'round':>6} {'clients':>8} {'MB':>9} {'vs round ' + str(_WARM_UP.value)}")
    step = max(1, len(found) // 10)
    for row in found[_WARM_UP.value - 1 :: step]:
        share = row["memory"] / reference - 1
        print(
            f"{row['round']:>6} {row['clients']:>8} {row['memory']:>9.1f} {share:+.2%}"
        )
    worst = max(row["memory"] for row in found[_WARM_UP.value :]) / reference - 1
    out = pathlib.Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    summary = {
        "runtime": _RUNTIME.value,
        "reference_megabytes": reference,
        "largest_growth": worst,
        "rounds": found,
    }
    (out / f"{_RUNTIME.value}.json").write_text(json.dumps(summary, indent=1))
    print(f"largest growth after round {_WARM_UP.value}: {worst:+.2%}")


if __name__ == "__main__":
    _FLAGS.run(main)
