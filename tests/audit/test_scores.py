"""Canaries, what they show, and how the scores find it."""

import numpy as np
import pytest

from tests.audit import small_runs as small
from tff_agg import averaging, noise, privacy
from tff_agg.audit import canaries, exposure, findings, scores, simulation, threats
from tff_agg.privacy.cohorts import violation

ROUNDS = 8


def test_directions_are_orthonormal_random_and_spread_over_large_tensors():
    directions = canaries.make_directions(20, sizes=[100, 5, 60], seed=3)
    dense = np.stack([directions.dense(i) for i in range(20)])
    np.testing.assert_allclose(dense @ dense.T, np.eye(20), atol=1e-12)
    lengths = np.stack(
        [np.square(part).sum(1) for part in np.split(dense, [100, 105], 1)]
    )
    np.testing.assert_allclose(lengths, np.array([[0.5], [0], [0.5]]).repeat(20, 1))
    vector = np.random.default_rng(0).normal(size=165).astype(np.float32)
    np.testing.assert_allclose(directions.project(vector), dense @ vector, rtol=1e-6)
    again = canaries.make_directions(20, sizes=[100, 5, 60], seed=3)
    other = canaries.make_directions(20, sizes=[100, 5, 60], seed=4)
    np.testing.assert_array_equal(again.positions, directions.positions)
    assert (other.positions != directions.positions).any()


def test_a_model_too_small_for_its_canaries_is_refused():
    with pytest.raises(ValueError, match=r"count=50 .* has 40: take fewer canaries"):
        canaries.make_directions(50, sizes=[40, 10], seed=0)
    with pytest.raises(ValueError, match="at least 2 canaries, got 1"):
        canaries.make_canaries([40], [(0,)], probes=2, seed=0)


def test_coins_are_fair_and_not_known_unless_asked_for():
    rounds = [(0,)] * 300
    made = [canaries.make_canaries([400], rounds, probes=1, seed=0) for _ in range(2)]
    assert (made[0].included != made[1].included).any()
    assert all(90 < one.included.sum() < 210 for one in made)
    kept = [
        canaries.make_canaries([400], rounds, probes=1, seed=0, coins=7).included
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*kept)


def strength(plan, rounds):
    return exposure.strengths(plan, plan.mechanism.matrix(plan.rounds), [rounds])[0]


@pytest.mark.parametrize(
    "schema",
    [privacy.AtMostOnce(), privacy.MinSeparation(3, 2), privacy.FixedEpochOrder(4)],
)
@pytest.mark.parametrize("make", [noise.tree, lambda: noise.blt(ROUNDS, 2)])
def test_canaries_take_part_as_much_as_the_schema_allows(schema, make):
    plan = small.plan_of(make(), rounds=ROUNDS, participation=schema)
    rounds = exposure.strongest_rounds(plan, 4, room=2)
    assert strength(plan, rounds[0]) == pytest.approx(1.0)
    assert all(violation(schema, sorted(own)) is None for own in rounds)
    counts = np.bincount(np.concatenate(rounds), minlength=ROUNDS)
    assert counts.max() <= 2
    with pytest.raises(ValueError, match="of count=100 canaries fit into 8 rounds"):
        exposure.strongest_rounds(plan, 100, room=1)


def test_rounds_that_are_not_allowed_count_for_no_more_than_the_claim():
    plan = small.plan_of(rounds=ROUNDS)
    assert strength(plan, (0, 1, 2)) == 1.0


STEPS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "averaged": {"momentum": 0.5, "averager": averaging.uta(3)},
    "averaged, from iterate": {
        "momentum": 0.5,
        "averager": averaging.ema(decay=0.7),
        "step_from": "iterate",
    },
}
THREATS = {
    "all": threats.all_iterates(),
    "final": threats.final_model(averaging.uta(3)),
    "recycled": threats.recycled_model(averaging.pda(2)),
    "window": threats.last_models(3),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("threat", THREATS.values(), ids=THREATS)
def test_a_release_is_what_the_response_says_of_the_sums(step, threat):
    server = small.server_of(learning_rate=0.1, **step)
    rng = np.random.default_rng(0)
    start, sums = rng.normal(size=5), rng.normal(size=(ROUNDS, 5))
    released = threat.release(server.run(start, sums))
    shares = threat.release(server.response(ROUNDS))
    np.testing.assert_allclose(released, shares @ sums, atol=1e-12)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_with_all_iterates_the_score_is_the_correlation_with_c_times_increments(step):
    plan = small.plan_of(noise.blt(ROUNDS, 2), rounds=ROUNDS)
    server = small.server_of(**step)
    rounds = [(2,), (5,), (2,), (0,)]
    taking = small.canaries_of(plan, 1, rounds=rounds, sizes=(50,), probes=4)
    rng = np.random.default_rng(1)
    sums = rng.normal(size=(ROUNDS, 50))
    means = sums / plan.cohort_size
    evidence = simulation.evidence_of(taking, server, means)
    shares = THREATS["all"].release(server.response(ROUNDS)) / plan.cohort_size
    matrix = plan.mechanism.matrix(ROUNDS)
    stddev = plan.noise_stddev / plan.clip_norm
    took_part = np.zeros((ROUNDS, 4))
    took_part[[2, 5, 2, 0], range(4)] = 1
    found = scores.matched_filter(
        THREATS["all"].release(evidence.canaries) / plan.clip_norm,
        shares @ took_part,
        scores.planned_covariance(shares, matrix, stddev),
    )
    whitened = matrix @ simulation.project(sums, taking.directions) / plan.clip_norm
    columns = matrix @ took_part
    norms = np.linalg.norm(columns, axis=0)
    by_hand = (columns * whitened).sum(0) / norms / stddev
    np.testing.assert_allclose(found.values, by_hand, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(found.shown, norms / stddev, rtol=1e-5)
    assert found.shown.max() <= 1 / plan.noise_multiplier + 1e-9


def test_guesses_need_no_coins_and_abstain_from_nothing():
    rng = np.random.default_rng(0)
    included = rng.random(2000) < 0.5
    shown = rng.uniform(0.5, 3.0, size=2000)
    # Twice as much shows as expected: the threshold moves along.
    values = rng.normal(size=2000) + 2 * shown * included
    right = (scores.guess(scores.Scores(values, shown)) > 0) == included
    best = ((values > shown) == included).mean()
    assert right.mean() == pytest.approx(best, abs=0.01)


def test_too_few_probes_measure_no_covariance():
    assert scores.measured_covariance(np.ones((4, 7))) is None
    assert scores.measured_covariance(np.ones((4, 8))).shape == (4, 4)


def test_recycling_shows_no_more_than_the_iterates_it_averages():
    """What averages show is in the window that they average, and that in all."""
    plan = small.plan_of(noise.blt(ROUNDS, 2), rounds=ROUNDS)
    server = small.server_of(momentum=0.9)
    took_part = np.eye(ROUNDS)

    def shown(threat):
        shares = threat.release(server.response(ROUNDS)) / plan.cohort_size
        covariance = scores.planned_covariance(
            shares, plan.mechanism.matrix(ROUNDS), plan.noise_stddev / plan.clip_norm
        )
        expected = shares @ took_part
        return scores.matched_filter(expected, expected, covariance).shown

    everything = shown(threats.all_iterates())
    window = shown(threats.last_models(4))
    averaged = shown(threats.recycled_model(averaging.uta(4)))
    assert (averaged <= window + 1e-6).all() and (window <= everything + 1e-6).all()
    assert everything.max() == pytest.approx(1 / plan.noise_multiplier, rel=1e-6)


def test_evidence_that_does_not_fit_and_plans_without_noise_are_refused():
    plan = small.plan_of(rounds=ROUNDS)
    server = small.server_of()
    taking = small.canaries_of(plan, 0, count=10, probes=2, sizes=(50,))
    short = findings.Evidence(np.zeros((ROUNDS, 10)), np.zeros((ROUNDS, 2)))
    with pytest.raises(ValueError, match=r"must be θ_0 … θ_8 on 10 canaries"):
        findings.audit(plan, server, taking, short, threats.all_iterates())
    silent = small.plan_of(rounds=ROUNDS, noise_multiplier=0.0)
    with pytest.raises(ValueError, match="adds no noise"):
        findings.audit(silent, server, taking, short, threats.all_iterates())
    with pytest.raises(ValueError, match=r"k must be a whole number .* 1, got 0"):
        threats.last_models(0)
