"""Times one round's noise for a model, against TF-Privacy's tree aggregator.

Each row is a compiled TensorFlow function that takes the state and returns the next
one and the noise. Rows take turns in every repetition, so that a busy machine slows
them all alike. Shown are the mean and the median time over rounds, and the mean time
of all processor cores together, which other programs disturb least.

    python -m benchmarks.noise_step --parameters=1000000
"""

import dataclasses
import platform
import statistics
import time

from benchmarks import programs
from tff_agg.fields import described
from tff_agg.runtime.quiet import quiet_tensorflow


@dataclasses.dataclass(frozen=True)
class Options:
    """What is timed."""

    parameters: int = described(1_000_000, "parameters of the model", at_least=1)
    rounds: int = described(32, "rounds to time; a power of two is fair", at_least=1)
    out: str = described("results/noise_step", "folder for the JSON")


def _ours(mechanism, like):
    """Returns a step function over a state and the state before the first round."""
    import tensorflow as tf

    state = mechanism.init(like, (1, 2))
    # Traced here: TensorFlow would warn of the fifth function of the same name that is
    # traced when it is called.
    step = tf.function(lambda state: mechanism.next(state, like))
    return step.get_concrete_function(state), state


def _theirs(parameters: int, efficient: bool):
    """Returns TF-Privacy's residual tree query as such a step function."""
    import tensorflow as tf
    from tensorflow_privacy.privacy.dp_query import tree_aggregation_query

    query = tree_aggregation_query.TreeResidualSumQuery.build_l2_gaussian_query(
        clip_norm=1.0,
        noise_multiplier=1.0,
        record_specs=tf.TensorSpec([parameters]),
        noise_seed=1,
        use_efficient=efficient,
    )
    total = tf.zeros([parameters])

    # Its level buffers grow with the rounds, hence the shapes of its state.
    @tf.function(reduce_retracing=True)
    def step(state):
        noised, state, _ = query.get_noised_result(total, state)
        return state, noised

    return step, query.initial_global_state()


def _rows(parameters: int) -> dict:
    """Returns (step, state, model copies held, draws per round) of each row."""
    import tensorflow as tf

    from tff_agg import noise

    like = tf.zeros([parameters])
    mechanisms = {
        "identity": (noise.identity(), "1"),
        "tree (plain)": (noise.tree(), "2 on average"),
        "tree (Honaker)": (noise.tree("honaker", 2000), "2 on average"),
        "blt, 2 buffers": (noise.blt(2000, 2), "1"),
        "blt, 3 buffers": (noise.blt(2000, 3), "1"),
        "blt, 4 buffers": (noise.blt(2000, 4), "1"),
        "banded, 8 bands": (noise.banded_square_root(8), "1"),
    }
    rows = {
        name: (*_ours(mechanism, like), mechanism.buffers, draws)
        for name, (mechanism, draws) in mechanisms.items()
    }
    for name, efficient in (("plain", False), ("efficient", True)):
        # Level buffers (11 at 2,000 rounds) and the previous round's noise.
        rows[f"TF-Privacy tree ({name})"] = (
            *_theirs(parameters, efficient),
            12,
            "2 on average",
        )
    return rows


def measure(parameters: int, rounds: int) -> list[dict]:
    rows = _rows(parameters)
    states = {}
    for name, (step, state, _, _) in rows.items():
        step(state)
        states[name] = state
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    cores: dict[str, float] = dict.fromkeys(rows, 0.0)
    for _ in range(rounds):
        for name, (step, *_) in rows.items():
            start, used = time.perf_counter(), time.process_time()
            states[name], drawn = step(states[name])
            float(drawn[0])
            seconds[name].append(time.perf_counter() - start)
            cores[name] += time.process_time() - used
    return [
        {
            "mechanism": name,
            "milliseconds_mean": 1e3 * statistics.fmean(times),
            "milliseconds_median": 1e3 * statistics.median(times),
            "milliseconds_all_cores": 1e3 * cores[name] / rounds,
            "model_copies": rows[name][2],
            "draws": rows[name][3],
        }
        for name, times in seconds.items()
    ]


def main(options: Options) -> None:
    """Times, prints and writes."""
    quiet_tensorflow()
    found = measure(options.parameters, options.rounds)
    programs.tell(
        "mechanism | mean ms | median ms | cores ms | copies | draws",
        "{mechanism} | {milliseconds_mean:.1f} | {milliseconds_median:.1f} | "
        "{milliseconds_all_cores:.1f} | {model_copies} | {draws}",
        found,
        f"{options.parameters} parameters, {options.rounds} rounds, "
        + platform.machine(),
    )
    result = {"parameters": options.parameters, "rounds": options.rounds}
    programs.write(options.out, "noise_step", {**result, "rows": found})


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)
