"""A small audited run of canaries alone, for the tests of the audit."""

from tff_agg import noise, privacy
from tff_agg.audit import canaries, exposure, findings, simulation, threats

SIZES = (2500, 2500)
ROUNDS = 12
CANARIES = 1000
PROBES = 100


def plan_of(mechanism=None, **changes):
    values = {
        "clip_norm": 0.3,
        "cohort_size": 50,
        "rounds": ROUNDS,
        "mechanism": noise.identity() if mechanism is None else mechanism,
        "noise_multiplier": 1.0,
    }
    return privacy.Plan(**{**values, **changes})


def server_of(plan, **changes):
    return threats.ServerStep(**{"scale": 0.5 / plan.cohort_size, **changes})


def canaries_of(plan, seed, *, count=CANARIES, rounds=None, sizes=SIZES, probes=PROBES):
    rounds = exposure.strongest_rounds(plan, count) if rounds is None else rounds
    return canaries.make_canaries(sizes, rounds, probes=probes, seed=seed, coins=seed)


def audit(plan, seed, *, taking=None, server=None, threat=None, **planted):
    """Runs canaries through the plan, or what is planted in its place, and audits."""
    taking = canaries_of(plan, seed) if taking is None else taking
    server = server_of(plan, momentum=0.9) if server is None else server
    evidence = simulation.simulate(
        plan, server, taking, SIZES, seed=(seed, 17), **planted
    )
    threat = threats.all_iterates() if threat is None else threat
    return findings.audit(plan, server, taking, evidence, threat)
