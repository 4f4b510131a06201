"""How tight the audit is: mechanism by participation by threat model.

Canaries run alone, in numpy, through clipping, the real mechanism's noise and the
server step with momentum. The estimate should come close to the claimed ε where the
attacker sees what the analysis assumes, all iterates. Where it sees less, the table
shows how much of the guarantee is not used.

    python -m benchmarks.audit
    python -m benchmarks.audit --false_alarms=200
"""

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

from scipy.stats import binomtest

from benchmarks import programs
from tff_agg import averaging, noise, privacy
from tff_agg.audit import canaries, exposure, findings, simulation, threats
from tff_agg.fields import described
from tff_agg.server import ServerStep, server_step
from tff_agg.server import momentum as momentum_of


@dataclasses.dataclass(frozen=True)
class Options:
    """What is audited."""

    rounds: int = described(64, "rounds of a run", at_least=1)
    canaries: int = described(4000, "canaries of a run", at_least=1)
    noise_multiplier: float = described(1.0, "noise over sensitivity")
    momentum: float = described(0.9, "the server's momentum")
    window: int = described(16, "checkpoints of UTA and OPA", at_least=1)
    seed: int = described(0, "for directions, coins and noise")
    false_alarms: int = described(0, "audit so many sound runs of 400 canaries instead")
    out: str = described("results/audit", "folder for the JSON")


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


def tightness(options: Options) -> list[dict[str, Any]]:
    """Audits every mechanism under every participation and threat model."""
    rows, shown = [], []
    for name, schema, plan in plans(options.rounds, options.noise_multiplier):
        made = run(plan, options.canaries, options.momentum, options.seed)
        print(f"{name}, {schema}", file=sys.stderr, flush=True)
        for threat in threat_models(options.window):
            found = findings.audit(plan, *made, threat)
            rows.append({"mechanism": name, "participation": schema, **found.to_json()})
            low, high = found.interval
            shown.append(
                {"of": f"{name} | {schema} | {threat.name}", "low": low, "high": high}
                | {"share": found.estimate / found.claimed, **vars(found)}
            )
    programs.tell(
        "mechanism | participation | released | claimed | estimate | interval | bound "
        "| ratio",
        "{of} | {claimed:.2f} | {estimate:.2f} | {low:.2f} to {high:.2f} | "
        "{lower_bound:.2f} | {share:.2f}",
        shown,
    )
    return rows


def false_alarms(options: Options) -> list[dict[str, Any]]:
    """Counts how often sound runs are accused."""
    audits = options.false_alarms
    every = plans(min(16, options.rounds), options.noise_multiplier)
    settings = [plan for _, _, plan in every]
    rows = []
    accused = {threat.name: 0 for threat in threat_models(4)}
    for seed in range(audits):
        plan = settings[seed % len(settings)]
        made = run(plan, 400, options.momentum, 1000 + seed)
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


def main(options: Options) -> None:
    """Audits, prints and writes."""
    if options.false_alarms:
        programs.write(options.out, "false_alarms", false_alarms(options))
    else:
        programs.write(options.out, "tightness", tightness(options))


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)
