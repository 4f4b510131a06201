"""Canaries among ordinary clients of the real process, end to end."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.audit import small_runs as small
from tff_agg import averaging, noise, runtime
from tff_agg.audit import clients, findings, rounds, threats
from tff_agg.federated import clipping, process, trainers
from tff_agg.server import adam, keeping_means, server_step

SHAPES = ((40, 30), (1200,))
ROUNDS = 6
CANARIES = 400
USERS = 3


@pytest.fixture(autouse=True, scope="module")
def _local_runtime():
    with runtime.running_on("local", lanes=1):
        yield


def trainer():
    """A linear model in two tensors: a client's update is the sum of its pulls."""

    def update(weights, dataset):
        def pull(sums, element):
            features, _ = element
            scaled = tf.reduce_mean(features)
            moved = tuple(
                s + 1e-3 * (scaled - w) for s, w in zip(sums[0], start, strict=True)
            )
            return moved, sums[1] + tf.cast(tf.shape(features)[0], tf.float32)

        start = tuple(weights.trainable)
        zeros = tuple(tf.zeros_like(w) for w in start)
        delta, count = dataset.reduce((zeros, 0.0), pull)
        return delta, count, collections.OrderedDict(rows=count)

    return trainers.Trainer(
        element_spec=(
            tf.TensorSpec([None, 4], tf.float32),
            tf.TensorSpec([None], tf.int32),
        ),
        initial_weights=lambda: tff.learning.models.ModelWeights(
            tuple(tf.ones(shape) for shape in SHAPES), ()
        ),
        update=trainers.one_user(tf.function(update, autograph=False)),
        finalize_metrics=lambda sums: sums,
    )


def user(seed):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(5, 4)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((features, np.zeros(5, np.int32))).batch(
        2
    )


def plan_of(**changes):
    mechanism = noise.blt(rounds=ROUNDS, buffers=2)
    return small.plan_of(
        mechanism, **{"rounds": ROUNDS, "cohort_size": CANARIES, **changes}
    )


def audited(claimed, planned, users=USERS, seed=5, **step):
    """Trains by one plan with canaries and audits against another."""
    base = trainer()
    sizes = clients.tensor_sizes(base)
    assert sizes == [1200, 1200]
    seen = []
    taking = small.canaries_of(
        claimed, seed, count=CANARIES, probes=4 * ROUNDS, sizes=sizes
    )
    server = small.server_of(averager=averaging.uta(2), **step)
    built = process.build_dp_ftrl_process(
        clients.with_canaries(base),
        plan=dataclasses.replace(planned, noise_seed_is_known=True),
        averager=server.averager,
        server_learning_rate=0.5,
        server_momentum=step.get("momentum", 0.0),
        step_from=server.step_from,
        noise_seed=(seed, 6),
    )
    evidence = rounds.run_with_canaries(
        built,
        claimed,
        base,
        taking,
        lambda t: [user((t, u)) for u in range(users)],
        after_round=lambda t, metrics: seen.append(metrics),
    )
    assert {int(m["client_work"]["num_examples"]) for m in seen} == {5 * users}
    took_part = [int(m["aggregator"]["clients"]) - users for m in seen]
    assert took_part == [len(taking.of_round(t)) for t in range(ROUNDS)]
    return findings.audit(claimed, server, taking, evidence, threats.all_iterates())


def test_a_sound_run_is_seen_as_sharply_as_the_analysis_says():
    plan = plan_of()
    found = audited(plan, plan, momentum=0.9)
    assert not found.refutes_claim, found.summary()
    assert found.interval[0] < found.claimed < found.interval[1]
    assert found.estimate == pytest.approx(found.claimed, rel=0.3)
    assert found.lower_bound > 0.5 * found.claimed


def test_the_server_step_is_the_process_own():
    """Otherwise the noise could not be found in the iterates of either reading."""
    plan = plan_of()
    found = audited(plan, plan, users=0, momentum=0.5, step_from="iterate")
    assert not found.refutes_claim
    assert found.statistic in ("planned noise", "measured noise")
    assert np.var(found.excluded) == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_of_adam_the_noisy_sums_are_audited(factor):
    plan, base = plan_of(), trainer()
    taking = small.canaries_of(
        plan, 5, count=CANARIES, probes=4 * ROUNDS, sizes=clients.tensor_sizes(base)
    )
    done = dataclasses.replace(plan, noise_multiplier=factor, noise_seed_is_known=True)
    built = process.build_dp_ftrl_process(
        clients.with_canaries(base),
        plan=done,
        server_optimizer=keeping_means(adam()),
        noise_seed=(5, 6),
    )
    evidence = rounds.run_with_canaries(
        built, plan, base, taking, lambda t: [user((t, 0))], of_means=True
    )
    found = findings.audit(plan, server_step(), taking, evidence, threats.noisy_sums())
    if factor == 1:
        assert not found.refutes_claim, found.summary()
        assert found.lower_bound > 0.5 * found.claimed
    else:
        assert found.refutes_claim, found.summary()


def test_half_the_noise_is_caught_in_the_real_process():
    claimed = plan_of()
    found = audited(claimed, plan_of(noise_multiplier=0.5), momentum=0.9)
    assert found.refutes_claim, found.summary()


def test_clipping_by_layer_is_caught_in_the_real_process(monkeypatch):
    right = clipping.clip_users

    def each(updates, clip_norm, on_non_finite):
        parts = [
            right([leaf], clip_norm, on_non_finite) for leaf in tf.nest.flatten(updates)
        ]
        total = tf.nest.pack_sequence_as(updates, [part.total[0] for part in parts])
        return parts[0]._replace(total=total)

    monkeypatch.setattr(clipping, "clip_users", each)
    plan = plan_of()
    found = audited(plan, plan_of(), momentum=0.9)
    assert found.refutes_claim, found.summary()
    assert found.correct > 0.7 * found.canaries
