"""A small audited run of canaries alone, for the tests of the audit."""

import dataclasses

from tff_agg import noise, privacy
from tff_agg.audit import canaries, exposure, findings, simulation, threats
from tff_agg.server import momentum, server_step

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


def server_of(**changes):
    optimiser = momentum(changes.pop("momentum", 0.0), changes.pop("nesterov", False))
    return server_step(optimiser, **{"learning_rate": 0.5, **changes})


def scaled(plan, factor):
    """A plan with another amount of noise."""
    multiplier = factor * plan.noise_multiplier
    return dataclasses.replace(plan, noise_multiplier=multiplier)


def canaries_of(plan, seed, *, count=CANARIES, rounds=None, sizes=SIZES, probes=PROBES):
    rounds = exposure.strongest_rounds(plan, count) if rounds is None else rounds
    return canaries.make_canaries(sizes, rounds, probes=probes, seed=seed, coins=seed)


def audit(plan, seed, *, taking=None, server=None, threat=None, **planted):
    """Runs canaries through the plan, or what is planted in its place, and audits."""
    taking = canaries_of(plan, seed) if taking is None else taking
    server = server_of(momentum=0.9) if server is None else server
    evidence = simulation.simulate(
        plan, server, taking, SIZES, seed=(seed, 17), **planted
    )
    threat = threats.all_iterates() if threat is None else threat
    return findings.audit(plan, server, taking, evidence, threat)
