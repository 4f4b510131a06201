"""Records what small processes compute, round by round, as golden values.

    python -m tests.golden.trajectories > tests/golden/trajectories.json

was run on the code as it was before the server's step, the noisy mean and the layout of
states had one place each. `test_trajectories.py` computes the same anew.
"""

import collections
import itertools
import json
import pathlib
import sys

import numpy as np

from tests.sampled_plans import sampled_plan
from tff_agg.server import state as states

WIDTH, ROUNDS, SEED = 5, 8, (123456789012345, -987654321)
AVERAGERS = ("uta", "ema", "schedule_free", "starting_at")
MECHANISMS = ("identity", "tree", "blt", "banded")
STEP_FROM = ("aggregate", "iterate")


def averager_of(name):
    from tff_agg import averaging

    return {
        "uta": lambda: averaging.uta(3),
        "ema": lambda: averaging.ema(decay=0.7),
        "schedule_free": lambda: averaging.schedule_free(0.8, 2.0),
        "starting_at": lambda: averaging.starting_at(3, averaging.uta(2)),
    }[name]()


def mechanism_of(name):
    from tff_agg import noise

    return {
        "identity": noise.identity,
        "tree": noise.tree,
        "blt": lambda: noise.blt_from((0.9,), (0.2,)),
        "banded": lambda: noise.banded_square_root(3),
        "none": noise.identity,
    }[name]()


def process_cases():
    """Every averager with two mechanisms, and so they with it; the others take turns.

    The two meet in no line of code: one makes the mean, the other what comes after.
    """
    for (i, averager), (j, mechanism) in itertools.product(
        enumerate(AVERAGERS), enumerate(MECHANISMS)
    ):
        if i + j and (j - i) % len(MECHANISMS) not in (1, 2):
            continue
        nesterov = bool((i // 2 + j) % 2)
        # Without momentum, where a graph may be simplified the most, the first.
        momentum = 0.9 if i + j else 0.0
        yield averager, mechanism, STEP_FROM[(i + j) % 2], momentum, nesterov
    yield "ema", "none", "iterate", 0.9, True


def sample_cases():
    """Every averager from either; kinds of momentum take turns."""
    momenta = itertools.cycle(((0.0, False), (0.9, False), (0.9, True)))
    for averager, step_from in itertools.product(AVERAGERS, STEP_FROM):
        momentum, nesterov = next(momenta)
        yield averager, step_from, momentum, nesterov


def name_of(case):
    return ", ".join(map(str, case))


def rows_of(round_number):
    """The rows of three clients; the last one's is cut by the clip norm."""
    rng = np.random.default_rng(round_number)
    rows = rng.normal(size=(3, WIDTH)).astype(np.float32)
    rows[2] *= 30
    return rows


def vector(structure):
    import tree

    return [short(x) for leaf in tree.flatten(structure) for x in np.ravel(leaf)]


def short(value):
    """A number with no more digits than it takes to know its bits."""
    return float(str(np.asarray(value)))


def numbers(metrics):
    import tree

    return {
        "/".join(map(str, path)): short(leaf)
        for path, leaf in tree.flatten_with_path(metrics)
    }


def pulled(spec):
    """A client whose update is half the way from its rows to the weights."""
    import tensorflow as tf
    import tensorflow_federated as tff

    from tff_agg.federated import trainers

    def split(row):
        return collections.OrderedDict(a=row[:3], b=row[3:])

    def update(weights, dataset):
        total, count = dataset.reduce(
            (tf.zeros([WIDTH]), 0.0), lambda sums, row: (sums[0] + row, sums[1] + 1.0)
        )
        delta = tf.nest.map_structure(
            lambda w, x: 0.5 * (w - x), weights.trainable, split(total)
        )
        return delta, count, collections.OrderedDict(rows=count)

    return trainers.Trainer(
        element_spec=spec,
        initial_weights=lambda: tff.learning.models.ModelWeights(
            split(tf.range(1.0, 1.0 + WIDTH)), [tf.constant(7, tf.int32)]
        ),
        update=trainers.one_user(update),
        finalize_metrics=lambda sums: sums,
    )


def of_process(case):
    """θ, θ^AGG and metrics of every round of a process of three clients."""
    import tensorflow as tf

    from tff_agg import privacy
    from tff_agg.federated import process

    averager, mechanism, step_from, momentum, nesterov = case
    noisy = mechanism != "none"
    plan = privacy.Plan(
        clip_norm=2.5,
        cohort_size=3,
        rounds=ROUNDS,
        mechanism=mechanism_of(mechanism),
        noise_multiplier=0.3 if noisy else 0.0,
        noise_seed_is_known=noisy,
    )
    built = process.build_dp_ftrl_process(
        pulled(tf.TensorSpec([WIDTH], tf.float32)),
        plan=plan,
        averager=averager_of(averager),
        server_learning_rate=0.8,
        server_momentum=momentum,
        nesterov=nesterov,
        step_from=step_from,
        noise_seed=SEED if noisy else None,
    )
    state, found = built.initialize(), []
    for t in range(ROUNDS):
        data = [tf.data.Dataset.from_tensors(row) for row in rows_of(t)]
        state, metrics = built.next(state, data)
        found.append(
            {
                "iterate": vector(states.iterate(state)),
                "aggregate": vector(states.aggregate(state)),
                "metrics": numbers(metrics),
            }
        )
    return found


def of_groups(_=None):
    """θ and metrics of three rounds whose users train side by side."""
    import tensorflow as tf
    import tensorflow_federated as tff

    from tff_agg import noise, privacy
    from tff_agg.federated import grouping, process

    ones = tf.keras.initializers.Constant(0.1)
    model = tff.learning.models.functional_model_from_keras(
        tf.keras.Sequential(
            [
                tf.keras.layers.Input((4,)),
                tf.keras.layers.Dense(3, kernel_initializer=ones),
            ]
        ),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        (tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None], tf.int32)),
    )
    built = process.build_dp_ftrl_process(
        model,
        plan=privacy.Plan(
            clip_norm=0.05,
            cohort_size=5,
            rounds=3,
            mechanism=noise.tree(),
            noise_multiplier=0.3,
            noise_seed_is_known=True,
        ),
        client_optimizer=0.3,
        server_momentum=0.9,
        noise_seed=SEED,
        grouped=True,
    )
    state, found = built.initialize(), []
    for t in range(3):
        rng = np.random.default_rng(t)
        counts = (5, 0, 3, 8, 1)
        users = [
            [
                (
                    rng.normal(size=(min(3, n - i), 4)).astype(np.float32),
                    rng.integers(0, 3, min(3, n - i)).astype(np.int32),
                )
                for i in range(0, n, 3)
            ]
            for n in counts
        ]
        data = [
            grouping.group_batches([users[i] for i in group], model.input_spec)
            for group in grouping.form_groups(counts, 3)
        ]
        state, metrics = built.next(state, data)
        found.append(
            {"iterate": vector(states.iterate(state)), "metrics": numbers(metrics)}
        )
    return found


def of_samples(case):
    """θ, θ^AGG and metrics of every step of DP-SGD."""
    import jax
    import jax.numpy as jnp

    from tff_agg.sample.dp_sgd import DPSGDProcess
    from tff_agg.sample.per_example import SampleModel

    def loss(weights, example):
        features, label = example
        hidden = jnp.tanh(features @ weights["first"])
        return -jax.nn.log_softmax(hidden @ weights["second"])[label]

    averager, step_from, momentum, nesterov = case
    process = DPSGDProcess(
        SampleModel(loss),
        plan=sampled_plan(
            clip_norm=0.5,
            noise_multiplier=0.4,
            batch_size=16,
            population_size=64,
            steps=ROUNDS,
            delta=1e-5,
            noise_seed_is_known=True,
        ),
        averager=averager_of(averager),
        learning_rate=0.8,
        momentum=momentum,
        nesterov=nesterov,
        step_from=step_from,
    )
    rng = np.random.default_rng(0)
    shapes = {"first": (WIDTH, 4), "second": (4, 3)}
    weights = {n: rng.standard_normal(s).astype("f") for n, s in shapes.items()}
    state, found = process.initialize(weights, SEED), []
    for t in range(ROUNDS):
        rng = np.random.default_rng(t)
        features = 2 * rng.standard_normal((10 + t, WIDTH)).astype("f")
        batch = [features, rng.integers(3, size=10 + t, dtype="i4")]
        state, metrics = process.next(state, batch)
        found.append(
            {
                "iterate": vector(states.iterate(state)),
                "aggregate": vector(states.aggregate(state)),
                "metrics": numbers(metrics),
            }
        )
    return found


def of_grouping(_=None):
    """Who is in which group, of a hundred clients."""
    from tff_agg.federated import grouping

    costs = np.random.default_rng(0).integers(1, 40, 100).tolist()
    return {str(size): grouping.form_groups(costs, size) for size in (1, 7, 25, 100)}


def cpu():
    """The type of this machine's processor: the last bits depend on it."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((li.split(":")[1].strip() for li in lines if "model name" in li), "")


def main():
    from tff_agg import runtime

    with runtime.running_on("local", lanes=1):
        found = {
            "cpu": cpu(),
            "process": {name_of(case): of_process(case) for case in process_cases()},
            "groups": of_groups(),
            "samples": {name_of(case): of_samples(case) for case in sample_cases()},
            "grouping": of_grouping(),
        }
    # A line for each case.
    text = json.dumps(found, separators=(",", ":"))
    sys.stdout.write(text.replace("]}]", "]}]\n").replace("}}],", "}}],\n") + "\n")


if __name__ == "__main__":
    main()
