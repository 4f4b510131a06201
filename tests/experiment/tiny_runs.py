"""Runs of the training loop with a process so small that rounds take milliseconds."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_agg import averaging, checkpoints, digests, noise, privacy
from tff_agg.experiment.run import identity as identities
from tff_agg.experiment.run import loop, run_folder
from tff_agg.federated import process, trainers

WIDTH = 300
ROUNDS = 16
COHORT = 3


def trainer():
    """A client that sends the sum of its rows."""

    def update(weights, dataset):
        total = dataset.reduce(tf.zeros([WIDTH]), lambda total, row: total + row)
        metrics = collections.OrderedDict(total=tf.reduce_sum(total))
        return [total], tf.constant(1.0), metrics

    return trainers.Trainer(
        element_spec=tf.TensorSpec([WIDTH], tf.float32),
        initial_weights=lambda: tff.learning.models.ModelWeights(
            [tf.zeros([WIDTH])], []
        ),
        update=trainers.one_user(update),
        finalize_metrics=lambda sums: collections.OrderedDict(total=sums["total"]),
    )


def build(rounds=ROUNDS, noise_multiplier=1.0, averager=None, mechanism=None):
    plan = privacy.Plan(
        clip_norm=1e3,
        cohort_size=COHORT,
        rounds=rounds,
        mechanism=mechanism or noise.tree(),
        noise_multiplier=noise_multiplier,
    )
    return process.build_dp_ftrl_process(
        trainer(), plan=plan, averager=averager or averaging.last()
    )


def users(t):
    """Every user takes part once."""
    return [f"user {COHORT * t + i}" for i in range(COHORT)]


def rows(user, zeroed=()):
    number = int(user.split()[1])
    values = np.random.default_rng(number).standard_normal((2, WIDTH))
    return np.zeros_like(values) if user in zeroed else values


def cohort_reader(zeroed=(), shift=0, digest=None):
    def cohort(t):
        names = users(t + shift)
        data = [rows(name, zeroed).astype(np.float32) for name in names]
        return loop.Cohort(
            client_ids=names,
            data=[tf.data.Dataset.from_tensor_slices(d) for d in data],
            digest=digest or digests.of_arrays(data),
        )

    return cohort


def data_digest(zeroed=()):
    names = [name for t in range(64) for name in users(t)]
    return digests.of_arrays(rows(name, zeroed) for name in names)


def identity_of(zeroed=(), shift=0, **changes):
    values = {
        "sampler": identities.ids_digest(
            [name for t in range(64) for name in users(t + shift)]
        ),
        "data": data_digest(zeroed),
        "model": "sums of rows",
    }
    return identities.Identity(**(values | changes))


def store_of(folder):
    return checkpoints.CheckpointStore(folder / "checkpoints")


def train(made, folder, rounds=ROUNDS, zeroed=(), shift=0, **options):
    identity = options.pop("identity", None) or identity_of(zeroed, shift)
    cohort = options.pop("cohort", None) or cohort_reader(zeroed, shift)
    return loop.train(
        made,
        identity=identity,
        folder=run_folder.RunFolder(folder),
        rounds=rounds,
        cohort=cohort,
        **options,
    )


class Killed(BaseException):
    """Stands for the end of the process."""


def train_until(made, folder, last, **options):
    """Trains until round `last` was saved and told, then dies."""

    def on_round(report):
        if report.round == last:
            raise Killed

    try:
        train(made, folder, on_round=on_round, **options)
    except Killed:
        return
    raise AssertionError("the run ended before it could be killed")


def released(folder):
    """Returns the weights of all stored rounds."""
    store = store_of(folder)
    return {
        (name, t): [x.tobytes() for x in tree.flatten(value)]
        for name in ("iterate", "aggregate")
        for t, value in store.iterate(name)
    }
