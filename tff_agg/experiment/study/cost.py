"""What a search costs the guarantee of the runs it looked at, and where that is said.

A choice among runs, or among ways to use their checkpoints, sees all of them: what is
published is then covered by more than one run's guarantee. The cost goes into the
privacy report of every run.
"""

import json
import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from tff_agg import privacy
from tff_agg.checkpoints import blobs

_REPORT = "privacy_report.json"


def of_training(
    folders: Sequence[pathlib.Path], runs: int
) -> privacy.SearchCost | None:
    """Returns what a choice among training runs costs their guarantee.

    Args:
      folders: The run folders; those without a privacy report add nothing.
      runs: How many runs were begun; it may be more than there are folders.

    Returns:
      The cost, or None where no folder has a privacy report.
    """
    known = [g for g in map(_guarantee, folders) if g is not None]
    if not known:
        return None
    return privacy.training_search(
        max(guarantee.rho for guarantee in known),
        min(guarantee.delta for guarantee in known),
        runs,
        **_besides(known),
    )


def of_inference(
    folders: Sequence[pathlib.Path], points: int
) -> privacy.SearchCost | None:
    """Returns what a choice of inference aggregation costs the runs' guarantee.

    Args:
      folders: The folders of all runs whose checkpoints were read.
      points: How many ways to aggregate were compared.

    Returns:
      The cost, or None unless every folder has a privacy report.
    """
    known = [g for g in map(_guarantee, folders) if g is not None]
    if not known or len(known) < len(folders):
        return None
    return privacy.inference_search(
        [guarantee.rho for guarantee in known],
        min(guarantee.delta for guarantee in known),
        points,
        **_besides(known),
    )


def add_to_reports(
    folders: Sequence[pathlib.Path],
    out: str | os.PathLike,
    cost: privacy.SearchCost | None,
) -> None:
    """Adds a search to the privacy report of every run that it has looked at.

    A search goes by the path of its results as seen from the run's folder, so that the
    same search is reported again when both were moved together.

    Args:
      folders: The run folders; those without a privacy report are left alone.
      out: The folder of the search's results.
      cost: What the search has cost so far; nothing is added if it is not known.

    Raises:
      FileNotFoundError: There is no such folder of results.
    """
    if not pathlib.Path(out).is_dir():
        raise FileNotFoundError(f"out={os.fspath(out)!r} is no folder of results")
    for folder in folders:
        if cost is None or not (folder / _REPORT).exists():
            continue
        name = _name(folder, out)
        with blobs.storing("add the search to the privacy report", folder):
            privacy.add_search(folder, name, cost)


def paragraphs(folders: Sequence[pathlib.Path], out: str | os.PathLike) -> list[str]:
    """Returns what reports of runs say of the search whose results are in a folder."""
    found = [privacy.searches_of(f).get(_name(f, out)) for f in folders]
    texts = [cost["paragraph"] for cost in found if isinstance(cost, dict)]
    return list(dict.fromkeys(map(str, texts)))


def _name(folder: pathlib.Path, out: str | os.PathLike) -> str:
    """Returns the path of a search's results as seen from a run."""
    return os.path.relpath(pathlib.Path(out).resolve(), folder.resolve())


class _Guarantee(NamedTuple):
    """What a run's report says.

    Attributes:
      data: Names the data; runs on the same data share what was released before them.
      rho: ρ, infinity without a guarantee.
      delta: δ.
      delta_of_releases: The part of δ that the releases before training take up.
      is_gaussian: Whether all releases are Gaussian mechanisms, as training is.
      shared_users: How many users of each evaluation set are training users, or None.
    """

    data: str
    rho: float
    delta: float
    delta_of_releases: float
    is_gaussian: bool
    shared_users: dict[str, int] | None


def _guarantee(folder: pathlib.Path) -> _Guarantee | None:
    """Reads a run's report, if it has one."""
    path = folder / _REPORT
    if not path.exists():
        return None
    report = json.loads(path.read_text("utf-8"))
    guarantee = report["guarantee"]
    return _Guarantee(
        data=report["run"].get("data", str(folder)),
        rho=math.inf if guarantee["rho"] is None else guarantee["rho"],
        delta=guarantee["delta"],
        delta_of_releases=guarantee.get("delta_of_releases", 0.0),
        is_gaussian=all(r["is_gaussian"] for r in report.get("releases", [])),
        shared_users=report.get("evaluation", {}).get("users_shared_with_training"),
    )


def _besides(known: Sequence[_Guarantee]) -> dict[str, Any]:
    """Returns what the cost of either search depends on besides ρ, δ and its size."""
    # What was released before training counts once for each data set.
    released = {guarantee.data: guarantee.delta_of_releases for guarantee in known}
    return {
        "delta_of_releases": math.fsum(released.values()),
        "is_gaussian": all(guarantee.is_gaussian for guarantee in known),
        "shared_users": _shared_users(known),
    }


def _shared_users(known: Sequence[_Guarantee]) -> dict[str, int] | None:
    """Returns the largest numbers of shared users; None if one run does not say."""
    largest: dict[str, int] = {}
    for guarantee in known:
        if guarantee.shared_users is None:
            return None
        for name, users in guarantee.shared_users.items():
            largest[name] = max(users, largest.get(name, 0))
    return largest
