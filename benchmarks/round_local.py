"""Times rounds of the DP-FTRL process; prints one line of JSON.

`python -m benchmarks.round_time` and `python -m benchmarks.scale` run this in a process
of its own.
"""

import dataclasses
import json
import pathlib
import resource
import time

from benchmarks import programs
from benchmarks.peers import workload
from tff_agg.fields import described


@dataclasses.dataclass(frozen=True)
class Options:
    """The sizes of a round, and where it is computed."""

    users: int = described(16, "clients in a round", at_least=1)
    sentences: int = described(64, "sentences of each client", at_least=1)
    rounds: int = described(4, "rounds; the first one compiles", at_least=1)
    window: int = described(3, "UTA's k", at_least=1)
    lanes: int | None = described(None, "lanes; as many as cores by default")
    intra_op: int = described(1, "threads inside one operation", at_least=1)
    inter_op: int | None = described(None, "operations at once; cores by default")
    runtime: str = described("local", "where lanes are", ("local", "ray"))
    address: str | None = described(None, "a Ray cluster; started here by default")
    uneven: bool = described(False, "clients of 1 to --sentences rows")


def loopback_bytes() -> int:
    """Returns how many bytes the loopback interface has carried."""
    lines = pathlib.Path("/proc/net/dev").read_text().splitlines()
    (line,) = [line for line in lines if line.strip().startswith("lo:")]
    return int(line.partition(":")[2].split()[0])


def main(options: Options) -> None:
    """Times rounds, and prints JSON."""
    from tff_agg import runtime

    runtime.set_up_tensorflow(intra_op=options.intra_op, inter_op=options.inter_op)
    import numpy as np
    import tensorflow as tf

    from stackoverflow.model import local_training, next_word
    from tff_agg import averaging, noise, privacy
    from tff_agg.federated import process
    from tff_agg.runtime.lanes.times import LaneTimes

    task = workload.LARGE_LSTM
    times = LaneTimes()
    of_ray = {"address": options.address} if options.runtime == "ray" else {}
    context = runtime.use(
        options.runtime, lanes=options.lanes, on_client=times, **of_ray
    )
    config = next_word.ModelConfig(
        vocab_size=task.ids - 4,
        embedding_size=task.width,
        lstm_size=task.units,
        max_tokens=task.steps,
    )
    plan = privacy.Plan(
        clip_norm=workload.CLIP_NORM,
        cohort_size=options.users,
        rounds=1024,
        mechanism=noise.tree(),
        noise_multiplier=workload.NOISE_MULTIPLIER,
    )
    training = process.build_dp_ftrl_process(
        local_training.packed_trainer(
            config, workload.CLIENT_RATE, batch_size=task.batch
        ),
        plan=plan,
        averager=averaging.uta(options.window),
        server_momentum=0.9,
    )
    cohort = workload.sentences(task, options.users, options.sentences)
    if options.uneven:
        drawn = np.random.default_rng(0).integers(1, options.sentences, len(cohort))
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
        for number in range(options.rounds):
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
    programs.start(__spec__, __doc__, main, Options)
