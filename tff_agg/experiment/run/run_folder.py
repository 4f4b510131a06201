"""Who a run folder belongs to: one configuration, one data set, one privacy plan."""

import importlib.metadata
import json
import os
import pathlib
import platform
from typing import Any

from tff_agg import fields, files, privacy
from tff_agg.aliases import JsonObject
from tff_agg.experiment.config import RunConfig
from tff_agg.experiment.run import identity, ledger
from tff_agg.experiment.task import Task


class ConfigChangedError(RuntimeError):
    """A run folder was begun under another configuration."""


#: What may be there of a run that has released rounds.
_TRACES = ("checkpoints", ledger.NAME, "metrics.csv", "validation.csv", "tensorboard")


def check(folder: pathlib.Path, task: Task) -> ledger.History | None:
    """Refuses a folder of another run; writes nothing.

    Returns:
      What the folder's ledger says; None if it has none and shows no round.
    """
    wanted = identifying(task)
    path = folder / "config.json"
    if path.exists():
        found = saved_config(folder)
        # As it would be written today: fields may have been added since.
        saved = fields.values(configuration(folder, task.Config), *fields.SETTINGS)
        saved["data_fingerprint"] = found.get("data_fingerprint")
        if lines := identity.differences(saved, wanted):
            raise ConfigChangedError(
                f"{folder} was begun under another configuration; use another folder, "
                "or the same flags:\n  " + "\n  ".join(lines)
            )
    history = ledger.Ledger(folder).read()
    if history is None or not path.exists():
        missing = ledger.NAME if path.exists() else path.name
        if traces := [name for name in _TRACES if (folder / name).exists()]:
            raise ConfigChangedError(
                f"{folder} has {', '.join(traces)} but no {missing}: a run has "
                "released rounds here, and starting over would spend the privacy "
                "budget again. Put the file back, or use another folder."
            )
    return history


def claim(
    folder: pathlib.Path,
    task: Task,
    plan: privacy.Plan,
    cohorts: privacy.Sampler,
) -> None:
    """Writes what the run is, or checks that it is this run's folder."""
    check(folder, task)
    write_report(folder, task, plan, cohorts, rounds_done=None)
    if (folder / "config.json").exists():
        return
    here = fields.values(task.config, "place")
    for name, content in (
        ("environment.json", environment()),
        # Last: it marks the folder as taken.
        ("config.json", identifying(task) | here),
    ):
        files.write_text(folder / name, json.dumps(content, indent=2) + "\n")


def write_report(
    folder: pathlib.Path,
    task: Task,
    plan: privacy.Plan,
    cohorts: privacy.Sampler,
    *,
    rounds_done: int | None,
) -> None:
    """Writes the privacy report; `rounds_done` is None while the run is under way."""
    facts = task.privacy_facts()
    privacy.write_report(
        folder,
        plan,
        rounds_done=rounds_done,
        sampler_checked=True,
        initial_weights=facts.initial_weights,
        also_not_covered=facts.not_covered,
        shared_users=facts.shared_users,
        run={"clients": cohorts.describe(), "data": task.fingerprint[:16]},
        # What searches have entered stays.
        searches=privacy.searches_of(folder),
    )


def identifying(task: Task) -> JsonObject:
    """Returns the configuration without what may change from machine to machine."""
    settings = fields.values(task.config, *fields.SETTINGS)
    return settings | {"data_fingerprint": task.fingerprint}


def results_folder(out: str) -> pathlib.Path:
    """Makes the folder for results where there is none.

    Raises:
      ValueError: No folder is named; the results would end up wherever one stands.
    """
    if not out:
        raise ValueError("--out must name a folder for the results; it is empty")
    folder = pathlib.Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def saved_config(folder: pathlib.Path) -> dict[str, Any]:
    """Reads a run folder's config.json."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is no run folder: it has no config.json")
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(saved, dict):
        raise ValueError(f"{path} is damaged: it holds no object")
    return saved


def configuration(folder: pathlib.Path, config_class: type[RunConfig]) -> Any:
    """Returns the configuration in a run folder's config.json."""
    saved = saved_config(folder)
    try:
        return config_class.from_json(saved)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from error


def environment() -> dict[str, str]:
    """Returns what the run depends on besides its configuration."""
    packages = ("tensorflow", "tensorflow-federated", "dp-accounting", "numpy")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
    } | {name: importlib.metadata.version(name) for name in packages}
