"""Times what the server does in a round: noise, momentum step, averaging.

A round without clients leaves the server's part of the process alone: the broadcast's
preparation, the noise, the step and the averager, with the runtime around it. Every
row runs in a process of its own, so that its peak memory is its own too.

    python -m benchmarks.server_step
    python -m benchmarks.server_step --rows=tree:uta3,tree:uta200 --rounds=20
"""

import json
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from absl import app, flags

from tff_agg import processes

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

_ROWS = flags.DEFINE_list("rows", list(ROWS), "What to time, as mechanism:averager.")
_ROUNDS = flags.DEFINE_integer("rounds", 64, "Rounds to time, once the window is full.")
_WARM_UP = flags.DEFINE_integer(
    "warm_up", 260, "Rounds before those; more than the longest window."
)
_ROUND_SECONDS = flags.DEFINE_float(
    "round_seconds", 2.6, "A whole round's seconds, to which shares are given."
)
_OUT = flags.DEFINE_string("out", "results/server_step", "Folder for the JSON.")
_ONE = flags.DEFINE_string("one", None, "Time this row here and print JSON.")
_PAIR = flags.DEFINE_list("pair", None, "Alternate these two rows and print JSON.")


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


def start(row: str) -> Callable[[], float]:
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
    for _ in range(_WARM_UP.value):
        timed_round()
    return timed_round


def _set_up() -> None:
    from tff_agg import runtime

    runtime.set_up_tensorflow()
    runtime.use("local")


def time_row(row: str, rounds: int) -> dict:
    """Runs rounds without clients and returns seconds and memory."""
    _set_up()
    began = time.perf_counter()
    timed_round = start(row)
    warm_up = time.perf_counter() - began
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
        "warm_up_seconds": warm_up,
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def time_pair(rows: tuple[str, str], rounds: int) -> dict:
    """Alternates rounds of two rows in one process; returns how the second compares."""
    _set_up()
    steps = [start(row) for row in rows]
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


def main(argv: list[str]) -> None:
    del argv
    if _ONE.value:
        print(json.dumps(time_row(_ONE.value, _ROUNDS.value)))
        return
    if _PAIR.value:
        one, other = _PAIR.value
        print(json.dumps(time_pair((one, other), _ROUNDS.value)))
        return
    print(
        f"{'noise:averager':16} {'median ms':>10} {'mean ms':>9} "
        f"{'CPU ms':>8} {'of a round':>11} {'peak GB':>8} {'warm-up s':>10}"
    )
    results = []
    for row in _ROWS.value:
        command = [sys.executable, "-m", "benchmarks.server_step", f"--one={row}"]
        command += [f"--rounds={_ROUNDS.value}", f"--warm_up={_WARM_UP.value}"]
        done = processes.run(command, stdout=subprocess.PIPE, check=True, text=True)
        result = json.loads(done.stdout.splitlines()[-1])
        share = result["mean_seconds"] / _ROUND_SECONDS.value
        results.append({**result, "share_of_round": share})
        print(
            f"{row:16} {1e3 * result['median_seconds']:10.1f} "
            f"{1e3 * result['mean_seconds']:9.1f} "
            f"{1e3 * result['cpu_seconds']:8.1f} {share:11.1%} "
            f"{result['peak_gigabytes']:8.2f} "
            f"{result['warm_up_seconds']:10.1f}",
            flush=True,
        )
    folder = pathlib.Path(_OUT.value)
    folder.mkdir(parents=True, exist_ok=True)
    report = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "round_seconds": _ROUND_SECONDS.value,
        "results": results,
    }
    (folder / "server_step.json").write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    app.run(main)
