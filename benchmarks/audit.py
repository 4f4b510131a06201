"""How tight the audit is: mechanism by participation by threat model.

Canaries run alone, in numpy, through clipping, the real mechanism's noise and the
server step with momentum. The estimate should come close to the claimed ε where the
attacker sees what the analysis assumes, all iterates. Where it sees less, the table
shows how much of the guarantee is not used.

    python -m benchmarks.audit
    python -m benchmarks.audit --false_alarms=200
"""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

from scipy.stats import binomtest

from benchmarks import own_flags
from tff_agg import averaging, noise, privacy
from tff_agg.audit import canaries, exposure, findings, simulation, threats
from tff_agg.server import ServerStep, server_step
from tff_agg.server import momentum as momentum_of

# Flags of its own: tests import this module beside others that have some.
_FLAGS = own_flags.OwnFlags()
_ROUNDS = _FLAGS.integer("rounds", 64, "Rounds of a run.")
_CANARIES = _FLAGS.integer("canaries", 4000, "Canaries of a run.")
_MULTIPLIER = _FLAGS.float("noise_multiplier", 1.0, "Noise over sensitivity.")
_MOMENTUM = _FLAGS.float("momentum", 0.9, "The server's momentum.")
_WINDOW = _FLAGS.integer("window", 16, "Checkpoints of UTA and OPA.")
_SEED = _FLAGS.integer("seed", 0, "For directions, coins and noise.")
_FALSE_ALARMS = _FLAGS.integer(
    "false_alarms", 0, "Audit so many sound runs of 400 canaries instead."
)
_OUT = _FLAGS.string("out", "results/audit", "Folder for the JSON.")


def mechanisms(n: int) -> dict[str, noise.Mechanism]:
    return {
        "identity": noise.identity(),
        "tree, plain": noise.tree(),
        "tree, Honaker": noise.tree("honaker", n),
        "square root, 8 bands": noise.banded_square_root(8),
        "blt, 2 buffers": noise.blt(n, 2),
        "dense": noise.dense(n),
    }


def schemas(n: int) -> dict[str, privacy.Participation]:
    apart = max(2, n // 4)
    return {
        "at most once": privacy.AtMostOnce(),
        f"{apart} apart, 4 times": privacy.MinSeparation(apart, 4),
    }


def threat_models(k: int) -> tuple[threats.Threat, ...]:
    return (
        threats.all_iterates(),
        threats.final_model(),
        threats.recycled_model(averaging.uta(k)),
        threats.last_models(k),
    )


def plans(n: int, multiplier: float) -> Iterator[tuple[str, str, privacy.Plan]]:
    for schema_name, schema in schemas(n).items():
        for name, mechanism in mechanisms(n).items():
            yield (
                name,
                schema_name,
                privacy.Plan(
                    clip_norm=1.0,
                    cohort_size=100,
                    rounds=n,
                    mechanism=mechanism,
                    noise_multiplier=multiplier,
                    participation=schema,
                ),
            )


def run(
    plan: privacy.Plan, count: int, momentum: float, seed: int
) -> tuple[ServerStep, canaries.Canaries, findings.Evidence]:
    """Makes a run of canaries alone."""
    probes = 4 * plan.rounds
    sizes = [count + probes] * 2
    taking = canaries.make_canaries(
        sizes,
        exposure.strongest_rounds(plan, count),
        probes=probes,
        seed=seed,
        coins=seed,
    )
    server = server_step(momentum_of(momentum))
    evidence = simulation.simulate(plan, server, taking, sizes, seed=(seed, 1))
    return server, taking, evidence


def tightness() -> list[dict[str, Any]]:
    rows = []
    print(
        f"{'mechanism':<22}{'participation':<20}{'released':<28}{'claimed':>8}"
        f"{'estimate':>10}{'interval':>16}{'bound':>8}{'ratio':>7}"
    )
    for name, schema, plan in plans(_ROUNDS.value, _MULTIPLIER.value):
        made = run(plan, _CANARIES.value, _MOMENTUM.value, _SEED.value)
        for threat in threat_models(_WINDOW.value):
            found = findings.audit(plan, *made, threat)
            rows.append({"mechanism": name, "participation": schema, **found.to_json()})
            low, high = found.interval
            print(
                f"{name:<22}{schema:<20}{threat.name:<28}{found.claimed:>8.2f}"
                f"{found.estimate:>10.2f}{f'{low:.2f} to {high:.2f}':>16}"
                f"{found.lower_bound:>8.2f}{found.estimate / found.claimed:>7.2f}",
                flush=True,
            )
    return rows


def false_alarms(audits: int) -> list[dict[str, Any]]:
    settings = [plan for _, _, plan in plans(min(16, _ROUNDS.value), _MULTIPLIER.value)]
    rows = []
    accused = {threat.name: 0 for threat in threat_models(4)}
    for seed in range(audits):
        plan = settings[seed % len(settings)]
        made = run(plan, 400, _MOMENTUM.value, 1000 + seed)
        for threat in threat_models(4):
            found = findings.audit(plan, *made, threat)
            accused[threat.name] += found.refutes_claim
    for name, count in accused.items():
        rate = binomtest(count, audits).proportion_ci(method="exact")
        rows.append({"threat": name, "audits": audits, "above_claim": count})
        print(
            f"{name:<28}{count:>4} of {audits} above the claim "
            f"({100 * count / audits:.1f} %, 95 % interval {100 * rate.low:.1f} to "
            f"{100 * rate.high:.1f} %)"
        )
    return rows


def main(argv: list[str]) -> None:
    del argv
    alarms = _FALSE_ALARMS.value
    rows = false_alarms(alarms) if alarms else tightness()
    folder = pathlib.Path(_OUT.value)
    folder.mkdir(parents=True, exist_ok=True)
    name = "false_alarms.json" if alarms else "tightness.json"
    (folder / name).write_text(json.dumps(rows, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    _FLAGS.run(main)
