"""Sound runs are not accused more often than the confidence allows."""

import itertools

import pytest
from scipy.stats import binom

from tests.audit import small_runs as small
from tff_agg import averaging, noise, privacy
from tff_agg.audit import findings, simulation, threats

AUDITS = 200
ROUNDS = 6
SIZES = (300, 300)
MECHANISMS = (noise.identity, noise.tree, lambda: noise.blt(ROUNDS, 2))
SCHEMAS = (privacy.AtMostOnce(), privacy.MinSeparation(2, 3))
WEAKER = (
    threats.final_model(),
    threats.recycled_model(averaging.uta(3)),
    threats.last_models(3),
)
# More than this many happen once in a thousand tests if the rate is really 5 %.
ALLOWED = int(binom.isf(1e-3, AUDITS, 0.05))


@pytest.fixture(scope="module")
def sound_runs():
    """200 runs as planned: their plans, servers, canaries and evidence."""
    settings = []
    for make, schema in itertools.product(MECHANISMS, SCHEMAS):
        plan = small.plan_of(make(), rounds=ROUNDS, participation=schema)
        plan.epsilon  # noqa: B018  computed once for all runs
        settings.append((plan, small.server_of(momentum=0.5)))
    runs = []
    for seed in range(AUDITS):
        plan, server = settings[seed % len(settings)]
        taking = small.canaries_of(plan, seed, count=200, probes=50, sizes=SIZES)
        evidence = simulation.simulate(plan, server, taking, SIZES, seed=(seed, 3))
        runs.append((plan, server, taking, evidence))
    return runs


def accused(runs, threat, confidence):
    return sum(
        findings.audit(*run, threat, confidence=confidence).refutes_claim
        for run in runs
    )


def test_at_most_one_in_twenty_sound_runs_is_accused(sound_runs):
    assert accused(sound_runs, threats.all_iterates(), 0.95) <= ALLOWED


@pytest.mark.slow
@pytest.mark.parametrize("threat", WEAKER, ids=lambda threat: threat.name)
def test_nor_by_an_attacker_who_sees_less(sound_runs, threat):
    assert accused(sound_runs, threat, 0.95) <= ALLOWED


def test_the_bound_is_close_to_what_sound_runs_would_bear(sound_runs):
    """The rate follows the confidence asked for: it is not low because it is blind."""
    some = sound_runs[:100]
    assert 0.15 < accused(some, threats.all_iterates(), 0.5) / len(some) < 0.5
