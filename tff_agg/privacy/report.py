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
from typing import Any, Literal

import filelock

from tff_agg import checks, files
from tff_agg.aliases import Json, JsonObject
from tff_agg.privacy import prose
from tff_agg.privacy.accounting import RHO_NOTE
from tff_agg.privacy.plan import Plan
from tff_agg.privacy.searches import SearchCost


def report(
    plan: Plan,
    *,
    rounds_done: int | None = None,
    sampler_checked: bool = False,
    initial_weights: str | None = None,
    cipher: str | None = None,
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
      initial_weights: Where the weights of round 0 came from, in words; None where
        nothing is known of it.
      cipher: Which cipher makes the noise; None where none does.
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
    assumed = [*words["assumed"], first_weights]
    if plan.noise_seed_is_known:
        assumed.insert(0, prose.paragraph("known_seed"))
    schema = plan.participation.describe()
    (enforced if sampler_checked else assumed).append(
        prose.paragraph("participation", schema=schema, checked=sampler_checked)
    )
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
        "released": words["released"],
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
        "rho_so_far": checks.finite(plan.rho_after(done)),
        "epsilon_so_far": checks.finite(plan.epsilon_after(done)),
    }


def markdown(content: Mapping[str, Any]) -> str:
    """Returns a report as a Markdown page."""
    return prose.page("page", **{"audit": None, "membership": None, **content})


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


def add_audit(
    folder: str | os.PathLike,
    found: Mapping[str, Json],
    kind: Literal["audit", "membership"] = "audit",
) -> None:
    """Adds to a run's report what an audit of it has found, in place of an earlier one.

    Args:
      folder: The run's folder, with its report.
      found: Of an audit with canaries `findings`, a list of mappings with `threat`,
        `claimed`, `estimate`, `lower_bound` and `refutes_claim` each; of an attack on
        membership a `table` of texts, with `head` and `rows`. `paragraph`, what they
        mean; and anything else in JSON values.
      kind: Which of the two it is.

    Raises:
      FileNotFoundError: The folder has no report.
    """
    target = pathlib.Path(folder)
    with _alone(target):
        content = json.loads((target / "privacy_report.json").read_text("utf-8"))
        _write(target, content | {kind: dict(found)})


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
