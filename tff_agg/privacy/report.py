"""A run's privacy report, for people (Markdown) and machines (JSON).

It answers the reporting checklist of "How to DP-fy ML" (Ponomareva et al., 2023): the
setting, what is protected and from whom, what is released, the unit and the adjacency,
how the figures were computed, what they assume, and what they do not cover. A search
that looks at the run later on adds what that means for the guarantee.
"""

import contextlib
import json
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import filelock

from tff_agg import files
from tff_agg.aliases import Json, JsonObject
from tff_agg.privacy import prose
from tff_agg.privacy.accounting import RHO_NOTE
from tff_agg.privacy.plan import Plan
from tff_agg.privacy.searches import SearchCost

# Figures that plans of one kind have, and their titles.
_OF_SOME_PLANS = {
    "rho_if_read_as_per_node_multiplier": "ρ if the multiplier were read per tree node",
    "population_size": "population size",
    "sampling_probability": "sampling probability",
}


def report(
    plan: Plan,
    *,
    rounds_done: int | None = None,
    sampler_checked: bool = False,
    released: str = "the model after every round, and everything computed from these",
    initial_weights: str | None = None,
    cipher: str | None = None,
    extra_assumptions: Sequence[str] = (),
    also_not_covered: Sequence[str] = (),
    shared_users: Mapping[str, int] | None = None,
    run: Mapping[str, Json] | None = None,
    searches: Mapping[str, Json] | None = None,
) -> JsonObject:
    """Returns the report of a run as JSON values.

    Args:
      plan: What was planned.
      rounds_done: How many rounds were run; None while that is not known, because the
        run is still under way.
      sampler_checked: Whether `plan.check_sampler` accepted the run's sampler.
      released: What leaves the server.
      initial_weights: Where the weights of round 0 came from, in words; None where
        nothing is known of it.
      cipher: Which cipher makes the noise; None where none does.
      extra_assumptions: Further sentences on what is assumed.
      also_not_covered: Further sentences on what is not covered.
      shared_users: For each set of data that models are scored on ('heldout', 'test'),
        how many of its users are users of the training data; None if not counted.
      run: Anything that identifies the run (name, commit, time).
      searches: The searches that have looked at the run, see `searches_of`.

    Example:
      >>> round(report(plan)['guarantee']['epsilon'], 4)
      17.6476
    """
    whole = plan.to_json()
    delta_of_releases = math.fsum(r.delta for r in plan.releases)
    words: dict[str, Any] = prose.blocks(
        plan.accounting.words,
        no_guarantee=plan.no_guarantee,
        rounds=plan.rounds,
        rho=plan.rho,
        training_rho=plan.training_rho,
        epsilon=plan.epsilon,
        delta=plan.delta,
        releases=plan.releases,
        delta_of_releases=delta_of_releases,
        rho_note=RHO_NOTE[:-1],
        cipher=cipher,
    )
    enforced = words["enforced"]
    first_weights = prose.paragraph("first_weights", initial_weights=initial_weights)
    assumed = [*words["assumed"], first_weights, *extra_assumptions]
    if plan.noise_seed_is_known:
        assumed.insert(
            0,
            "VOID: the noise was drawn from a known seed, so that anybody can subtract "
            "it. What follows is assumed of runs with a secret seed.",
        )
    schema = f"Participation: {plan.participation.describe()}."
    if sampler_checked:
        enforced.append(schema + " The sampler's cohorts were checked against it.")
    else:
        assumed.append(schema + " No sampler was checked against it.")
    return {
        "run": dict(run or {}),
        "setting": words["setting"],
        "guarantee": {
            "statement": words["statement"],
            "rho": whole["rho"],
            "epsilon": whole["epsilon"],
            "delta": plan.delta,
            "delta_of_releases": delta_of_releases,
            "rounds_planned": plan.rounds,
            "rounds_done": rounds_done,
            **_so_far(plan, rounds_done),
            "so_far": prose.paragraph("so_far"),
        },
        "releases": [release.to_json() for release in plan.releases],
        "evaluation": {
            "users_shared_with_training": None
            if shared_users is None
            else dict(shared_users),
            "statement": prose.paragraph("scored_on", shared=shared_users),
        },
        "unit": words["unit"],
        "adjacency": plan.adjacency,
        "released": released,
        "accounting": {
            "method": words["accounting"],
            "epsilon_by_conversion": whole["epsilon_by_conversion"],
            "headline": "tight",
        },
        "plan": whole,
        "enforced": enforced,
        "assumed": assumed,
        "not_covered": [*words["not_covered"], *also_not_covered],
        "tuning": dict(searches or {}),
    }


def _so_far(plan: Plan, done: int | None) -> dict[str, float | None]:
    """Returns the figures after so many rounds; None where that is not known."""
    if not done:
        spent = None if done is None else 0.0
        return {"rho_so_far": spent, "epsilon_so_far": spent}
    return {
        "rho_so_far": _or_none(plan.rho_after(done)),
        "epsilon_so_far": _or_none(plan.epsilon_after(done)),
    }


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def markdown(content: Mapping[str, Any]) -> str:
    """Returns a report as a Markdown page."""
    guarantee, plan = content["guarantee"], content["plan"]
    lines = ["# Privacy report", ""]
    lines += [f"- {key}: {value}" for key, value in content["run"].items()]
    lines += ["", "## Guarantee", "", guarantee["statement"], ""]
    figures = [
        ("ρ (zCDP)", _figure(guarantee["rho"]), _figure(guarantee["rho_so_far"])),
        (
            f"ε at δ = {guarantee['delta']:g}",
            _figure(guarantee["epsilon"]),
            _figure(guarantee["epsilon_so_far"]),
        ),
    ]
    planned, done = guarantee["rounds_planned"], guarantee["rounds_done"]
    head = ("figure", f"whole plan of {planned} rounds", f"after {done} rounds")
    known = 2 if done is None else 3
    lines += _table(head[:known], [row[:known] for row in figures])
    if done is None:
        lines += [
            "",
            "This page was written while the run was under way: how many of the "
            f"{planned} planned rounds are done is in the run's `ledger.jsonl`.",
        ]
    lines += ["", guarantee.get("so_far") or prose.paragraph("so_far")]
    lines += ["", "ε of the whole plan by conversion:", ""]
    conversions = content["accounting"]["epsilon_by_conversion"].items()
    lines += _table(("conversion", "ε"), [(k, _figure(v)) for k, v in conversions])
    lines += ["", "## What is protected", ""]
    for key in ("setting", "unit", "adjacency", "released"):
        lines.append(f"- {key.capitalize()}: {content[key]}.")
    lines += ["", "## Mechanism and parameters", ""]
    names = ("mechanism", "rounds", "clip_norm", "cohort_size", "noise_multiplier")
    rows = [(name.replace("_", " "), _figure(plan[name])) for name in names]
    kind = "exact" if plan["sensitivity_is_exact"] else "upper bound"
    rows += [
        (f"sensitivity ({kind})", _figure(plan["sensitivity"])),
        ("noise stddev on the sum", _figure(plan["noise_stddev"])),
    ]
    for name, title in _OF_SOME_PLANS.items():
        if name in plan:
            rows.append((title, _figure(plan[name])))
    lines += _table(("parameter", "value"), rows)
    lines += ["", f"Accounting: {content['accounting']['method']}."]
    lines += ["", "## Releases before training", "", *_releases(content)]
    for key, title in (
        ("enforced", "Enforced by the software"),
        ("assumed", "Assumed"),
        ("not_covered", "Not covered"),
    ):
        lines += ["", f"## {title}", "", *(f"- {item}" for item in content[key])]
    scored_on = content.get("evaluation") or {
        "statement": prose.paragraph("scored_on", shared=None)
    }
    lines += ["", "## Evaluation data", "", scored_on["statement"]]
    lines += ["", "## Tuning", "", *_tuning(content.get("tuning", {}))]
    if found := content.get("audit"):
        lines += ["", "## Audit", "", *_audit(found)]
    return "\n".join(lines) + "\n"


def _releases(content: Mapping[str, Any]) -> list[str]:
    """Returns the lines on what was released before training."""
    found = [
        f"- {release['name']}: ρ = {_figure(release['rho'])}, "
        f"δ = {release['delta']:g}; {release['method']}. Counted in the figures above."
        for release in content.get("releases", [])
    ]
    return found or ["None is counted in the figures above."]


def _audit(found: Mapping[str, Any]) -> list[str]:
    """Returns the lines on what an audit of the run has found."""
    names = ("threat", "claimed", "estimate", "lower_bound")
    rows = [tuple(_figure(row[name]) for name in names) for row in found["findings"]]
    refuted = any(row["refutes_claim"] for row in found["findings"])
    verdict = "The claim is REFUTED." if refuted else "The claim is not refuted."
    head = ("released", "claimed ε", "estimate", "lower bound")
    return [*_table(head, rows), "", f"{verdict} {found['paragraph']}"]


def _tuning(searches: Mapping[str, Any]) -> list[str]:
    """Returns the lines on the searches that have looked at the run."""
    if not searches:
        return ["No search that looked at this run is on record."]
    return [
        f"- {found['algorithm'].capitalize()} aggregation, recorded in `{name}`; runs "
        f"looked at: {found['runs']}; points looked at: {found['points']}. "
        f"{found['paragraph']}"
        for name, found in searches.items()
    ]


def _figure(value: Json) -> str:
    """Formats a figure; None stands for no bound."""
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table."""
    ruler = ["---"] * len(head)
    return ["| " + " | ".join(row) + " |" for row in (head, ruler, *rows)]


def write_report(folder: str | os.PathLike, plan: Plan, **details: Any) -> None:
    """Writes `privacy_report.md` and `privacy_report.json` into a folder.

    Args:
      folder: An existing folder, or one to be made.
      plan: What was planned.
      **details: As for `report`.
    """
    content = report(plan, **details)
    target = pathlib.Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    _write(target, content)


def add_search(folder: str | os.PathLike, name: str, cost: SearchCost) -> None:
    """Adds to a run's report that a search has looked at the run.

    The same search again takes the place of what it said before, and files that say
    all this already are left as they are.

    Args:
      folder: The run's folder, with its report.
      name: What distinguishes the search from others, such as the path of its record.
      cost: What the search means for the guarantee.

    Raises:
      FileNotFoundError: The folder has no report.
    """
    target = pathlib.Path(folder)
    with _alone(target):
        content = json.loads((target / "privacy_report.json").read_text("utf-8"))
        searches = content.get("tuning", {}) | {name: cost.to_json()}
        _write(target, content | {"tuning": searches})


def searches_of(folder: str | os.PathLike) -> JsonObject:
    """Returns the searches that a folder's report names; none without a report."""
    path = pathlib.Path(folder) / "privacy_report.json"
    if not path.exists():
        return {}
    return json.loads(path.read_text("utf-8")).get("tuning", {})


def add_audit(folder: str | os.PathLike, found: Mapping[str, Json]) -> None:
    """Adds to a run's report what an audit of it has found, in place of an earlier one.

    Args:
      folder: The run's folder, with its report.
      found: `findings`, a list of mappings with `threat`, `claimed`, `estimate`,
        `lower_bound` and `refutes_claim` each; `paragraph`, what they mean; and
        anything else in JSON values.

    Raises:
      FileNotFoundError: The folder has no report.
    """
    target = pathlib.Path(folder)
    with _alone(target):
        content = json.loads((target / "privacy_report.json").read_text("utf-8"))
        _write(target, content | {"audit": dict(found)})


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    """Makes searches take turns: two at a time could lose what one of them says."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        filelock.lock_descriptor(descriptor)
        yield
    finally:
        os.close(descriptor)


def _write(folder: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Writes both files, each as a whole; a next call mends what a kill left behind."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    for name, page in (
        ("privacy_report.json", text + "\n"),
        ("privacy_report.md", markdown(content)),
    ):
        path = folder / name
        if not path.exists() or path.read_text("utf-8") != page:
            files.write_text(path, page, mode=0o600, many_writers=True)
