"""A run's privacy report, for people (Markdown) and machines (JSON).

It answers the reporting checklist of "How to DP-fy ML" (Ponomareva et al., 2023): the
setting, what is protected and from whom, what is released, the unit and the adjacency,
how the figures were computed, what they assume, and what they do not cover. A search
that looks at the run later on adds what that means for the guarantee.
"""

import contextlib
import fcntl
import json
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tff_agg import files
from tff_agg.privacy.plan import Plan
from tff_agg.privacy.searches import SearchCost

ENFORCED = (
    "Each user's update is clipped to the clip norm before it is added to the sum.",
    "The sum is divided by the planned cohort size, not by the number of users that "
    "really took part.",
    "The noise's scale is computed from the mechanism's own matrix, the participation "
    "schema and the noise multiplier; no other number enters it.",
    "The mechanism refuses to serve more rounds than its sensitivity was computed for.",
    "Noise is a function of the secret seed and the round: a resumed run repeats the "
    "same noise and reveals nothing twice.",
)
ASSUMED = (
    "The server is trusted: it sees clipped updates and keeps the noise seed secret "
    "(central model of differential privacy).",
    "All data of one user is under one user id.",
    "The participation schema holds for the users' real identities.",
)
NOT_COVERED = (
    "Hyperparameter tuning: runs on the same users that were made to choose this run's "
    "settings are further releases, with a cost of their own. The figures above are "
    "of this run alone; what is known of such searches is under Tuning.",
    "Floating-point noise: normals are drawn in floating point by a counter-based "
    "generator that is not made for cryptography; attacks on low-order bits or on the "
    "generator itself are outside the proof.",
    "Secret sampling: the figures hold even if everybody knows who took part in which "
    "round; nothing is gained from amplification by sampling.",
    "Data used for choosing the vocabulary, for evaluation and for counts of users or "
    "examples, unless noise was added to them.",
    "Metrics that the server computes from users' data without noise.",
)


def report(
    plan: Plan,
    *,
    rounds_done: int | None = None,
    sampler_checked: bool = False,
    released: str = "the model after every round, and everything computed from these",
    extra_assumptions: Sequence[str] = (),
    run: Mapping[str, Any] | None = None,
    searches: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the report of a run as JSON values.

    Args:
      plan: What was planned.
      rounds_done: How many rounds were run; all planned ones if None.
      sampler_checked: Whether `plan.check_sampler` accepted the run's sampler.
      released: What leaves the server.
      extra_assumptions: Further sentences on what is assumed.
      run: Anything that identifies the run (name, commit, time).
      searches: The searches that have looked at the run, see `searches_of`.

    Example:
      >>> report(plan)['guarantee']['epsilon']
      17.6476
    """
    done = plan.rounds if rounds_done is None else rounds_done
    whole = plan.to_json()
    enforced = list(ENFORCED)
    assumed = [*ASSUMED, *extra_assumptions]
    schema = f"Participation: {plan.participation.describe()}."
    if sampler_checked:
        enforced.append(schema + " The sampler's cohorts were checked against it.")
    else:
        assumed.append(schema + " No sampler was checked against it.")
    private = plan.noise_multiplier > 0
    return {
        "run": dict(run or {}),
        "setting": "central differential privacy, user level, federated training",
        "guarantee": {
            "statement": _statement(plan) if private else "none: no noise is added",
            "rho": whole["rho"],
            "epsilon": whole["epsilon"],
            "delta": plan.delta,
            "rounds_done": done,
            "rho_so_far": _or_none(plan.rho_after(done)) if done else 0.0,
            "epsilon_so_far": _or_none(plan.epsilon_after(done)) if done else 0.0,
        },
        "unit": "one user: all contributions of a user id over the whole run",
        "adjacency": plan.adjacency,
        "released": released,
        "accounting": {
            "method": "one Gaussian mechanism on the encoded rounds; every release is "
            "post-processing of it, also when later updates depend on earlier noise",
            "epsilon_by_conversion": whole["epsilon_by_conversion"],
            "headline": "pld",
        },
        "plan": whole,
        "enforced": enforced,
        "assumed": assumed,
        "not_covered": list(NOT_COVERED),
        "tuning": dict(searches or {}),
    }


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _statement(plan: Plan) -> str:
    """Says the guarantee in one sentence."""
    return (
        f"The {plan.rounds} rounds together satisfy {plan.rho:.4g}-zCDP, and "
        f"({plan.epsilon:.4g}, {plan.delta:g})-differential privacy, for one user."
    )


def markdown(content: Mapping[str, Any]) -> str:
    """Returns a report as a Markdown page."""
    guarantee, plan = content["guarantee"], content["plan"]
    lines = ["# Privacy report", ""]
    lines += [f"- {key}: {value}" for key, value in content["run"].items()]
    lines += ["", "## Guarantee", "", guarantee["statement"], ""]
    lines += _table(
        ("figure", "whole plan", f"after {guarantee['rounds_done']} rounds"),
        [
            ("ρ (zCDP)", _say(guarantee["rho"]), _say(guarantee["rho_so_far"])),
            (
                f"ε at δ = {guarantee['delta']:g}",
                _say(guarantee["epsilon"]),
                _say(guarantee["epsilon_so_far"]),
            ),
        ],
    )
    lines += ["", "ε of the whole plan by conversion:", ""]
    conversions = content["accounting"]["epsilon_by_conversion"].items()
    lines += _table(("conversion", "ε"), [(k, _say(v)) for k, v in conversions])
    lines += ["", "## What is protected", ""]
    for key in ("setting", "unit", "adjacency", "released"):
        lines.append(f"- {key.capitalize()}: {content[key]}.")
    lines += ["", "## Mechanism and parameters", ""]
    names = ("mechanism", "rounds", "clip_norm", "cohort_size", "noise_multiplier")
    rows = [(name.replace("_", " "), _say(plan[name])) for name in names]
    kind = "exact" if plan["sensitivity_is_exact"] else "upper bound"
    rows += [
        (f"sensitivity ({kind})", _say(plan["sensitivity"])),
        ("noise stddev on the sum", _say(plan["noise_stddev"])),
        (
            "ρ if the multiplier were read per tree node",
            _say(plan["rho_if_read_as_per_node_multiplier"]),
        ),
    ]
    lines += _table(("parameter", "value"), rows)
    lines += ["", f"Accounting: {content['accounting']['method']}."]
    for key, title in (
        ("enforced", "Enforced by the software"),
        ("assumed", "Assumed"),
        ("not_covered", "Not covered"),
    ):
        lines += ["", f"## {title}", "", *(f"- {item}" for item in content[key])]
    lines += ["", "## Tuning", "", *_tuning(content.get("tuning", {}))]
    if found := content.get("audit"):
        lines += ["", "## Audit", "", *_audit(found)]
    return "\n".join(lines) + "\n"


def _audit(found: Mapping[str, Any]) -> list[str]:
    """Returns the lines on what an audit of the run has found."""
    names = ("threat", "claimed", "estimate", "lower_bound")
    rows = [tuple(_say(row[name]) for name in names) for row in found["findings"]]
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


def _say(value: Any) -> str:
    """Formats a figure; None stands for infinity."""
    if value is None:
        return "∞"
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
      name: What tells the search from others, such as the path of its record.
      cost: What the search means for the guarantee.

    Raises:
      FileNotFoundError: The folder has no report.
    """
    target = pathlib.Path(folder)
    with _alone(target):
        content = json.loads((target / "privacy_report.json").read_text("utf-8"))
        searches = content.get("tuning", {}) | {name: cost.to_json()}
        _write(target, content | {"tuning": searches})


def searches_of(folder: str | os.PathLike) -> dict[str, Any]:
    """Returns the searches that a folder's report names; none without a report."""
    path = pathlib.Path(folder) / "privacy_report.json"
    if not path.exists():
        return {}
    return json.loads(path.read_text("utf-8")).get("tuning", {})


def add_audit(folder: str | os.PathLike, found: Mapping[str, Any]) -> None:
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
        fcntl.flock(descriptor, fcntl.LOCK_EX)
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
