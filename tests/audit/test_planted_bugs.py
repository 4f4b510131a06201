"""Each planted bug is caught; the same run without it is not accused."""

import dataclasses

import numpy as np
import pytest

from tests.audit import small_runs as small
from tff_agg import noise, privacy
from tff_agg.audit import findings, noise_check, simulation, threats

SEEDS = (0, 1)
MECHANISMS = {
    "identity": noise.identity,
    "tree": noise.tree,
    "blt": lambda: noise.blt(rounds=small.ROUNDS, buffers=2),
}


def assert_caught(finding):
    assert finding.refutes_claim, finding.summary()
    assert finding.estimate > finding.claimed


def assert_not_accused(finding):
    assert not finding.refutes_claim, finding.summary()


def with_mechanism(plan, mechanism):
    """A plan with other noise of the same deviation."""
    plain = dataclasses.replace(plan, mechanism=mechanism)
    return small.scaled(plain, plan.noise_stddev / plain.noise_stddev)


def forgetful(plan):
    return with_mechanism(plan, noise.identity())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", MECHANISMS)
def test_noise_at_half_the_claimed_scale(name, seed):
    plan = small.plan_of(MECHANISMS[name]())
    assert_caught(small.audit(plan, seed, done=small.scaled(plan, 1 / 2)))
    assert_not_accused(small.audit(plan, seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_correlation_forgotten_by_a_mechanism_of_sensitivity_one(seed):
    """Fresh noise in every round, scaled as if it were the correlated one.

    The matrix is scaled to sensitivity 1 under four participations, so that the planned
    noise is σ·C⁻¹z. Without C⁻¹, σ·z is left, which four participations see through.
    """
    schema = privacy.MinSeparation(3, 4)
    plain = noise.blt(rounds=small.ROUNDS, buffers=2, separation=3, participations=4)
    scale = privacy.sensitivity(plain, schema, small.ROUNDS).value
    normed = noise.dense_from(plain.matrix(small.ROUNDS) / scale)
    plan = small.plan_of(normed, participation=schema)
    assert plan.sensitivity.value == pytest.approx(1)
    assert_caught(small.audit(plan, seed, done=forgetful(plan)))
    assert_not_accused(small.audit(plan, seed))


def test_correlation_forgotten_at_the_scale_of_the_matrix_is_wrong_noise_not_a_leak():
    """More private than claimed: nothing for the bound, but for the noise check."""
    plan = small.plan_of(MECHANISMS["blt"]())
    server = small.server_of(momentum=0.9)
    taking = small.canaries_of(plan, 1)

    def check(**planted):
        evidence = simulation.simulate(
            plan, server, taking, small.SIZES, seed=(1, 17), **planted
        )
        return noise_check.check_noise(plan, server, evidence)

    forgotten = check(done=forgetful(plan))
    assert forgotten.p_value < 1e-9 and forgotten.correlation > 0.1
    halved = check(done=small.scaled(plan, 1 / 2))
    assert halved.p_value < 1e-9 and halved.variance == pytest.approx(0.25, rel=0.1)
    assert check().p_value > 1e-3
    assert_not_accused(small.audit(plan, 1, done=forgetful(plan)))


@pytest.mark.parametrize("known", [False, True])
def test_a_known_seed_hides_no_missing_noise(known):
    """Such a run has no guarantee; what its noise would be worth is audited."""
    plan = privacy.Plan(
        clip_norm=1.0,
        cohort_size=100,
        rounds=8,
        mechanism=noise.tree(),
        noise_multiplier=1.0,
        noise_seed_is_known=known,
    )
    taking = small.canaries_of(plan, 1, count=200)
    weak = small.audit(plan, 1, taking=taking, done=small.scaled(plan, 1 / 20))
    assert_caught(weak)
    assert weak.claimed == pytest.approx(privacy.Loss(mu=1.0).epsilon(1e-6))
    assert_not_accused(small.audit(plan, 1, taking=taking))


def clip_each(tensors, clip_norm):
    """The bug: every tensor may be as long as the whole update."""
    return [simulation.clip_all([part], clip_norm)[0] for part in tensors]


@pytest.mark.parametrize("seed", SEEDS)
def test_clipping_by_layer_with_the_global_norm_claimed(seed):
    plan = small.plan_of(MECHANISMS["blt"]())
    assert_caught(small.audit(plan, seed, clip=clip_each))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_user_who_takes_part_twice_under_at_most_once(seed):
    plan = small.plan_of()
    half = small.ROUNDS // 2
    rounds = [(i % half, i % half + half) for i in range(small.CANARIES)]
    twice = small.canaries_of(plan, seed, rounds=rounds)
    assert_caught(small.audit(plan, seed, taking=twice))
    once = dataclasses.replace(twice, rounds=tuple(own[:1] for own in rounds))
    assert_not_accused(small.audit(plan, seed, taking=once))


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_drawn_from_a_repeated_seed(seed):
    """Every round draws the normals of round 0; each round for itself looks right."""
    plan = small.plan_of()
    stuck = dataclasses.replace(
        plan.mechanism,
        stream=noise.Stream(
            start=lambda backend, like: (),
            step=lambda backend, buffers, round, draw, like: ((), draw(0)),
        ),
    )
    found = small.audit(plan, seed, done=with_mechanism(plan, stuck))
    assert_caught(found)
    assert found.statistic == "measured noise"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_released_round_replayed_with_other_data(seed):
    """A crash after a release; the round comes again, with its noise, for others."""
    plan = small.plan_of(MECHANISMS["blt"]())
    server = small.server_of(momentum=0.9)
    taking = small.canaries_of(plan, seed)
    sums = simulation.sums_of_rounds(taking, small.SIZES, plan)
    means = simulation.means_of_rounds(plan, sums, (seed, 17))
    evidence = simulation.evidence_of(taking, server, means)
    assert_not_accused(
        findings.audit(plan, server, taking, evidence, threats.all_iterates())
    )

    at = 2
    sums[at] = 0
    means = simulation.means_of_rounds(plan, sums, (seed, 17))
    thetas = server.run(np.zeros(sum(small.SIZES)), means)
    step = thetas[at + 1] - thetas[at]
    replay = findings.Replay(
        round=at,
        canaries=taking.directions.project(step),
        probes=taking.probes.project(step),
        took_part=np.zeros(len(taking), bool),
    )
    found = findings.audit(
        plan,
        server,
        taking,
        dataclasses.replace(evidence, replays=(replay,)),
        threats.all_iterates(),
    )
    assert_caught(found)
    assert found.statistic == "replayed rounds"
    assert found.correct == found.canaries
