"""Times what the server does in a round: noise, momentum step, averaging.

A round without clients leaves the server's part of the process alone: the broadcast's
preparation, the noise, the step and the averager, with the runtime around it. Every
row runs in a process of its own, so that its peak memory is its own too.

    python -m benchmarks.server_step
    python -m benchmarks.server_step --rows=tree:uta3,tree:uta200 --rounds=20
"""

import dataclasses
import json
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable

from benchmarks import programs, turns
from tff_agg.fields import described

# The shapes of the next-word LSTM: 4,050,748 parameters.
SHAPES = (
    (10_004, 96),
    (96, 4 * 670),
    (670, 4 * 670),
    (4 * 670,),
    (670, 96),
    (96,),
    (96, 10_004),
    (10_004,),
)
ROWS = (
    "none:last",
    "none:uta3",
    "none:uta10",
    "none:uta200",
    "none:ema",
    "identity:uta3",
    "tree:uta3",
    "tree:uta10",
    "tree:uta200",
    "honaker:uta3",
    "blt:uta3",
)


@dataclasses.dataclass(frozen=True)
class Options:
    """What is timed."""

    rows: tuple[str, ...] = described(ROWS, "what to time, as mechanism:averager")
    rounds: int = described(64, "rounds to time, once the window is full", at_least=1)
    warm_up: int = described(260, "rounds before those; more than the longest window")
    round_seconds: float = described(
        2.6, "a whole round's seconds, to which shares are given"
    )
    out: str = described("results/server_step", "folder for the JSON")
    one: str = described("", "time this row here and print JSON")
    pair: tuple[str, ...] = described((), "alternate these two rows and print JSON")


def _mechanism(name: str, rounds: int):
    from tff_agg import noise

    return {
        "none": noise.identity,
        "identity": noise.identity,
        "tree": noise.tree,
        "honaker": lambda: noise.tree(estimator="honaker", rounds=rounds),
        "blt": lambda: noise.blt(rounds=rounds),
    }[name]()


def _averager(name: str):
    from tff_agg import averaging

    if name.startswith("uta"):
        return averaging.uta(int(name[3:]))
    return {"last": averaging.last, "ema": lambda: averaging.ema(decay=0.99)}[name]()


def start(row: str, warm_up: int) -> Callable[[], float]:
    """Starts a process, fills its window, and returns a function that times a round."""
    import collections

    import tensorflow as tf
    import tensorflow_federated as tff

    from tff_agg import privacy
    from tff_agg.federated import process, trainers

    noise_name, averager_name = row.split(":")
    planned = 2_048
    plan = privacy.Plan(
        clip_norm=0.3,
        cohort_size=16,
        rounds=planned,
        mechanism=_mechanism(noise_name, planned),
        noise_multiplier=0.0 if noise_name == "none" else 0.5,
        noise_seed_is_known=True,
    )
    trainer = trainers.Trainer(
        element_spec=tf.TensorSpec([None], tf.float32),
        initial_weights=lambda: tff.learning.models.ModelWeights(
            [tf.fill(shape, 0.01) for shape in SHAPES], []
        ),
        update=trainers.one_user(
            lambda weights, dataset: (
                weights.trainable,
                dataset.reduce(0.0, lambda n, x: n + tf.reduce_sum(x)),
                collections.OrderedDict(),
            )
        ),
        finalize_metrics=lambda sums: sums,
    )
    built = process.build_dp_ftrl_process(
        trainer,
        plan=plan,
        averager=_averager(averager_name),
        server_momentum=0.9,
        noise_seed=(1, 2),
    )
    state = built.initialize()

    def timed_round() -> float:
        nonlocal state
        began = time.perf_counter()
        state, _ = built.next(state, [])
        return time.perf_counter() - began

    # The first rounds compile, and give each place of the window its memory. All rows
    # start at the same round: the cost of tree noise depends on its number.
    for _ in range(warm_up):
        timed_round()
    return timed_round


def _set_up() -> None:
    from tff_agg import runtime

    runtime.set_up_tensorflow()
    runtime.use("local")


def time_row(row: str, rounds: int, warm_up: int) -> dict:
    """Runs rounds without clients and returns seconds and memory."""
    _set_up()
    began = time.perf_counter()
    timed_round = start(row, warm_up)
    began = time.perf_counter() - began
    seconds, of_cpu = [], []
    for _ in range(rounds):
        cpu_start = time.process_time()
        seconds.append(timed_round())
        of_cpu.append(time.process_time() - cpu_start)
    return {
        "row": row,
        "mean_seconds": statistics.mean(seconds),
        "median_seconds": statistics.median(seconds),
        "cpu_seconds": statistics.mean(of_cpu),
        "best_cpu_seconds": min(of_cpu),
        "seconds": seconds,
        "warm_up_seconds": began,
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def time_pair(rows: tuple[str, ...], rounds: int, warm_up: int) -> dict:
    """Alternates rounds of two rows in one process; returns how the second compares."""
    _set_up()
    steps = [start(row, warm_up) for row in rows]
    seconds = [[step() for step in steps] for _ in range(rounds)]
    first, second = zip(*seconds, strict=True)
    means = [statistics.mean(first), statistics.mean(second)]
    return {
        "pair": rows,
        "seconds": seconds,
        "mean_seconds": means,
        "ratio_of_means": means[1] / means[0],
        "ratio_of_medians": statistics.median(second) / statistics.median(first),
    }


def main(options: Options) -> None:
    """Times every row in a process of its own, prints and writes."""
    given = options.rounds, options.warm_up
    if options.one:
        print(json.dumps(time_row(options.one, *given)))
        return
    if options.pair:
        if len(options.pair) != 2:
            raise ValueError(f"pair={','.join(options.pair)}: must be two rows")
        print(json.dumps(time_pair(options.pair, *given)))
        return
    results = []
    for row in options.rows:
        command = [sys.executable, "-m", "benchmarks.server_step", f"--one={row}"]
        command += [f"--rounds={options.rounds}", f"--warm_up={options.warm_up}"]
        result = turns.run(command)
        share = result["mean_seconds"] / options.round_seconds
        results.append({**result, "share_of_round": share})
        print(f"{row}: {1e3 * result['median_seconds']:.1f} ms", flush=True)
    programs.tell(
        "noise:averager | median s | mean s | CPU s | of a round | peak GB | warm-up s",
        "{row} | {median_seconds:.4f} | {mean_seconds:.4f} | {cpu_seconds:.4f} | "
        "{share_of_round:.1%} | {peak_gigabytes:.2f} | {warm_up_seconds:.1f}",
        results,
    )
    report = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "round_seconds": options.round_seconds,
        "results": results,
    }
    programs.write(options.out, "server_step", report)


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)
