"""Times rounds of the DP-FTRL process; prints one line of JSON.

`python -m benchmarks.round_time` and `python -m benchmarks.scale` run this in a process
of its own.
"""

import json
import pathlib
import resource
import time

from absl import app, flags

from benchmarks.peers import workload

_USERS = flags.DEFINE_integer("users", 16, "Clients in a round.")
_SENTENCES = flags.DEFINE_integer("sentences", 64, "Sentences of each client.")
_ROUNDS = flags.DEFINE_integer("rounds", 4, "Rounds; the first one compiles.")
_WINDOW = flags.DEFINE_integer("window", 3, "UTA's k.")
_LANES = flags.DEFINE_integer("lanes", None, "Lanes; as many as cores by default.")
_INTRA = flags.DEFINE_integer("intra_op", 1, "Threads inside one operation.")
_INTER = flags.DEFINE_integer("inter_op", None, "Operations at once; None: cores.")
_RUNTIME = flags.DEFINE_enum("runtime", "local", ["local", "ray"], "Where lanes are.")
_ADDRESS = flags.DEFINE_string("address", None, "A Ray cluster; None: started here.")
_UNEVEN = flags.DEFINE_bool("uneven", False, "Clients of 1 to --sentences rows.")


def loopback_bytes() -> int:
    """Returns how many bytes the loopback interface has carried."""
    lines = pathlib.Path("/proc/net/dev").read_text().splitlines()
    (line,) = [line for line in lines if line.strip().startswith("lo:")]
    return int(line.partition(":")[2].split()[0])


def main(argv: list[str]) -> None:
    del argv
    from tff_agg import runtime

    runtime.set_up_tensorflow(intra_op=_INTRA.value, inter_op=_INTER.value)
    import numpy as np
    import tensorflow as tf

    from stackoverflow.model import local_training, next_word
    from tff_agg import averaging, noise, privacy
    from tff_agg.federated import process
    from tff_agg.runtime.lanes.times import LaneTimes

    task = workload.LARGE_LSTM
    times = LaneTimes()
    options = {"address": _ADDRESS.value} if _RUNTIME.value == "ray" else {}
    context = runtime.use(
        _RUNTIME.value, lanes=_LANES.value, on_client=times, **options
    )
    config = next_word.ModelConfig(
        vocab_size=task.ids - 4,
        embedding_size=task.width,
        lstm_size=task.units,
        max_tokens=task.steps,
    )
    plan = privacy.Plan(
        clip_norm=workload.CLIP_NORM,
        cohort_size=_USERS.value,
        rounds=1024,
        mechanism=noise.tree(),
        noise_multiplier=workload.NOISE_MULTIPLIER,
    )
    training = process.build_dp_ftrl_process(
        local_training.packed_trainer(
            config, workload.CLIENT_RATE, batch_size=task.batch
        ),
        plan=plan,
        averager=averaging.uta(_WINDOW.value),
        server_momentum=0.9,
    )
    cohort = workload.sentences(task, _USERS.value, _SENTENCES.value)
    if _UNEVEN.value:
        drawn = np.random.default_rng(0).integers(1, _SENTENCES.value, len(cohort))
        cohort = [rows[:n] for rows, n in zip(cohort, drawn, strict=True)]
    costs = [len(rows) for rows in cohort]
    data = [tf.data.Dataset.from_tensors(rows.astype(np.int32)) for rows in cohort]
    idle = [
        tf.data.Dataset.from_tensors(rows[:0].astype(np.int32)) for rows in cohort[:1]
    ]
    state = training.initialize()

    def rounds(clients):
        nonlocal state
        seconds, of_cpu, carried = [], [], []
        for number in range(_ROUNDS.value):
            if number == 1:
                times.restart()
            before = loopback_bytes()
            start, cpu_start = time.perf_counter(), time.process_time()
            with runtime.balancing_lanes(costs if len(clients) > 1 else None):
                state = training.next(state, clients).state
            # The first weights may be there before the last ones.
            tf.nest.map_structure(np.asarray, state.global_model_weights.trainable)
            seconds.append(time.perf_counter() - start)
            of_cpu.append(time.process_time() - cpu_start)
            carried.append(loopback_bytes() - before)
        return seconds, of_cpu, carried

    with_clients, cpu_with_clients, carried = rounds(data)
    lanes, traffic = times.table(), getattr(context, "traffic", None)
    imbalance = times.imbalance()
    # One client without rows: what is left is the server's part.
    server, cpu_server, _ = rounds(idle)
    print(
        json.dumps(
            {
                "rounds": with_clients,
                "server": server,
                "cpu_rounds": cpu_with_clients,
                "cpu_server": cpu_server,
                "lanes": [row._asdict() for row in lanes],
                "imbalance": imbalance,
                "traffic": traffic and traffic._asdict(),
                "loopback_bytes": carried,
                "model_bytes": sum(
                    np.asarray(w).nbytes for w in state.global_model_weights.trainable
                ),
                "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                / 2**20,
            }
        )
    )


if __name__ == "__main__":
    app.run(main)
