"""Times rounds of the DP-FTRL process on the local runtime; prints one line of JSON.

`python -m benchmarks.round_time` runs this in a process of its own.
"""

import json
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


def main(argv: list[str]) -> None:
    del argv
    from tff_agg import runtime

    runtime.set_up_tensorflow(intra_op=_INTRA.value, inter_op=_INTER.value)
    import numpy as np
    import tensorflow as tf

    from stackoverflow.model import local_training, next_word
    from tff_agg import averaging, noise, privacy
    from tff_agg.learning import process

    task = workload.LARGE_LSTM
    runtime.use("local", lanes=_LANES.value)
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
    data = [tf.data.Dataset.from_tensors(rows.astype(np.int32)) for rows in cohort]
    idle = [
        tf.data.Dataset.from_tensors(rows[:0].astype(np.int32)) for rows in cohort[:1]
    ]
    state = training.initialize()

    def rounds(clients):
        nonlocal state
        seconds, of_cpu = [], []
        for _ in range(_ROUNDS.value):
            start, cpu_start = time.perf_counter(), time.process_time()
            state = training.next(state, clients).state
            # The first weights may be there before the last ones.
            tf.nest.map_structure(np.asarray, state.global_model_weights.trainable)
            seconds.append(time.perf_counter() - start)
            of_cpu.append(time.process_time() - cpu_start)
        return seconds, of_cpu

    with_clients, cpu_with_clients = rounds(data)
    # One client without rows: what is left is the server's part.
    server, cpu_server = rounds(idle)
    print(
        json.dumps(
            {
                "rounds": with_clients,
                "server": server,
                "cpu_rounds": cpu_with_clients,
                "cpu_server": cpu_server,
                "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                / 2**20,
            }
        )
    )


if __name__ == "__main__":
    app.run(main)
