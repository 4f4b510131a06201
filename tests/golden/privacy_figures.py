"""The figures of the privacy half as they were before it was rewritten.

`privacy.json` was written by this script at commit fa96d09, and holds what `figures`
returned there, with two additions that need no code of ours: ε and δ of Gaussian
mechanisms to 60 digits.

Example:
  python -m tests.golden.privacy_figures tests/golden/privacy.json
"""

import dataclasses
import hashlib
import json
import math
import pathlib
import sys
import tempfile
from typing import Any

import numpy as np

from pds import Group, Sampler, linear
from pds.poisson_sampler import PoissonSampler
from tff_agg import account
from tff_agg.experiment.commands import flags
from tff_agg.privacy import (
    AtMostOnce,
    FixedEpochOrder,
    KeySelection,
    MinSeparation,
    report,
)

SIGMAS = (0.05, 0.1, 0.341, 0.5, 0.682, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
DELTAS = (1e-4, 1e-6, 1e-9, 1e-12, 1e-15)
# By name, the flags of a plan.
PLANS: dict[str, dict[str, Any]] = {
    "identity": {"mechanism": "identity"},
    "tree": {},
    "tree, six times": {"min_separation": 342, "max_participations": 6},
    "tree, per node": {"per_node_multiplier": 0.341},
    "tree, restarted, completed": {
        "restart_every": 500,
        "completion": True,
        "epoch_length": 500,
    },
    "honaker": {"mechanism": "honaker", "completion": True},
    "square root": {"mechanism": "square_root", "bands": 64, "min_separation": 100},
    "banded": {"mechanism": "banded", "bands": 4, "rounds": 100, "epoch_length": 20},
    "blt": {"mechanism": "blt", "min_separation": 342, "max_participations": 6},
    "blt, restarted": {
        "mechanism": "blt",
        "rounds": 200,
        "restart_every": 100,
        "min_separation": 20,
        "max_participations": 4,
    },
    "dense": {"mechanism": "dense", "rounds": 64},
    "for epsilon": {"epsilon": 8.0},
    "no noise": {"noise_multiplier": 0.0},
    "dp_sgd": {
        "mechanism": "dp_sgd",
        "rounds": 3068,
        "noise_multiplier": 3.0,
        "batch_size": 4096,
        "population": 50_000,
        "delta": 1e-5,
    },
    "dp_sgd, for epsilon": {
        "mechanism": "dp_sgd",
        "rounds": 100,
        "epsilon": 1.0,
        "batch_size": 50,
        "population": 1000,
        "delta": 1e-5,
    },
    "dp_sgd, steps": {
        "mechanism": "dp_sgd",
        "noise_multiplier": 8.0,
        "epsilon": 1.0,
        "batch_size": 50,
        "population": 1000,
        "delta": 1e-5,
    },
}
# The defaults of that time.
_FLAGS = {
    "mechanism": "tree",
    "rounds": 2000,
    "server_momentum": 0.95,
    "clip_norm": 1.0,
}
_NOISES = ("noise_multiplier", "per_node_multiplier", "epsilon")
AFTER = (1, 10, 64)
SCHEMAS = {
    "AtMostOnce()": AtMostOnce(),
    "MinSeparation(separation=7, max_participations=4)": MinSeparation(7, 4),
    "FixedEpochOrder(epoch_length=8, epochs=3)": FixedEpochOrder(8, 3),
}


def plan_of(given: dict[str, Any]):
    """Returns the plan that the account command makes of these flags."""
    if not any(name in given for name in _NOISES):
        given = given | {"noise_multiplier": 0.341}
    of_sampling = given.get("mechanism") == "dp_sgd"
    given = ({"clip_norm": 1.0} if of_sampling else _FLAGS) | given
    with tempfile.TemporaryDirectory() as cache:
        arguments = [f"--{name}={value}" for name, value in given.items()]
        arguments.append(f"--noise_cache={cache}")
        (options,) = flags.parse(arguments, account.AccountOptions)
        return options.plan()


def conversions(sigma: float) -> dict[str, float]:
    """Returns the ε of a Gaussian mechanism by each conversion."""
    plan = plan_of({"mechanism": "identity", "rounds": 1, "noise_multiplier": sigma})
    return plan.to_json()["epsilon_by_conversion"]


def _spent(plan: Any) -> dict[str, list[float | None]]:
    """Returns ρ and ε after some rounds."""

    def finite(x: float) -> float | None:
        return x if math.isfinite(x) else None

    return {
        "rho": [finite(plan.rho_after(t)) for t in AFTER],
        "epsilon": [finite(plan.epsilon_after(t)) for t in AFTER],
    }


def reports() -> dict[str, dict[str, Any]]:
    """Returns the report of five plans, as values and as a page."""
    votes = KeySelection(cap=100, noise_multiplier=5.0, delta=1e-7)
    vocabulary = votes.release("vocabulary")
    tree = plan_of({})
    details: dict[str, tuple[Any, dict[str, Any]]] = {
        "tree": (tree, {}),
        "with a release, at its end": (
            dataclasses.replace(
                plan_of(PLANS["tree, six times"]), releases=(vocabulary,)
            ),
            {
                "rounds_done": 2000,
                "sampler_checked": True,
                "shared_users": {"heldout": 0, "test": 12},
                "run": {"clients": "some", "data": "0123"},
                "also_not_covered": ("What was counted.",),
            },
        ),
        "known seed": (dataclasses.replace(tree, noise_seed_is_known=True), {}),
        "no noise": (plan_of(PLANS["no noise"]), {"rounds_done": 3}),
        "dp_sgd": (
            plan_of(PLANS["dp_sgd, for epsilon"]),
            {"rounds_done": 50, "sampler_checked": True},
        ),
    }
    found = {}
    for name, (plan, more) in details.items():
        content = report.report(plan, **more)
        found[name] = {"json": content, "markdown": report.markdown(content)}
    return found


def cohorts() -> dict[str, str]:
    """Returns the fingerprints of samplers."""
    ids = np.arange(3000)
    two = (Group("a", ids[:1800]), Group("b", ids[1500:]))
    found = {}
    for name, schema in SCHEMAS.items():
        found[f"one group, {name}"] = Sampler(
            (Group("all", ids),), 20, 24, schema, 5
        ).fingerprint
        for split in ("binomial", "fixed"):
            for mode in ("error", "fill_from_other", "smaller_cohort"):
                sampler = Sampler(
                    two, 30, 32, schema, 11, linear(8), split=split, when_exhausted=mode
                )
                found[f"{name}, {split}, {mode}"] = sampler.fingerprint
    # Few users: the ways out of a shortage are taken.
    few = (Group("a", ids[:150]), Group("b", ids[140:300]))
    for mode in ("fill_from_other", "smaller_cohort"):
        sampler = Sampler(
            few, 20, 16, MinSeparation(7, 4), 3, linear(8), when_exhausted=mode
        )
        found[f"few users, {mode}"] = sampler.fingerprint
    halves = (Group("a", ids[:1500]), Group("b", ids[1500:]))
    plain = PoissonSampler((Group("all", ids),), 50, 40, (1, 2**64 - 1))
    moving = PoissonSampler(halves, 50, 40, (1, -3), linear(8))
    for name, drawn in (("poisson", plain), ("poisson, schedule", moving)):
        digest = hashlib.sha256()
        for t in range(40):
            digest.update(drawn.users(t).astype(np.int64).tobytes())
        found[name] = digest.hexdigest()
        found[f"{name}, fingerprint"] = drawn.fingerprint
    return found


def figures() -> dict[str, Any]:
    """Returns all figures, as JSON values."""
    plans = {name: plan_of(given) for name, given in PLANS.items()}
    return {
        "conversions": {f"{sigma:g}": conversions(sigma) for sigma in SIGMAS},
        "plans": {
            name: {"facts": plan.to_json(), "spent": _spent(plan)}
            for name, plan in plans.items()
        },
        "reports": reports(),
        "cohorts": cohorts(),
    }


def _exact() -> dict[str, dict[str, str]]:
    """Returns ε of Gaussian mechanisms to 25 digits, and σ for some ε."""
    import mpmath

    mpmath.mp.dps = 60

    def delta_of(mu: Any, epsilon: Any) -> Any:
        below = mpmath.ncdf(-mu / 2 - epsilon / mu)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * below

    def solve(function: Any, low: Any, high: Any) -> str:
        """Halves an interval on which the function goes from above 0 to below."""
        low, high = mpmath.mpf(low), mpmath.mpf(high)
        for _ in range(180):
            middle = (low + high) / 2
            low, high = (middle, high) if function(middle) > 0 else (low, middle)
        return mpmath.nstr(low, 25)

    found: dict[str, dict[str, str]] = {"epsilon": {}, "sigma": {}}
    for sigma in SIGMAS:
        for delta in DELTAS:
            mu, target = 1 / mpmath.mpf(sigma), mpmath.mpf(delta)
            if delta_of(mu, mpmath.mpf(0)) > target:
                found["epsilon"][f"{sigma!r} {delta!r}"] = solve(
                    lambda e, mu=mu, target=target: delta_of(mu, e) - target, 0, 10**4
                )
    for epsilon in (0.01, 0.1, 1.0, 8.0, 8.2, 60.0):
        for delta in DELTAS:
            e, target = mpmath.mpf(epsilon), mpmath.mpf(delta)
            found["sigma"][f"{epsilon!r} {delta!r}"] = solve(
                lambda s, e=e, target=target: delta_of(1 / s, e) - target,
                "1e-3",
                10**4,
            )
    return found


if __name__ == "__main__":
    text = json.dumps(
        figures() | {"exact": _exact()}, indent=1, allow_nan=False, ensure_ascii=False
    )
    pathlib.Path(sys.argv[1]).write_text(text + "\n")
