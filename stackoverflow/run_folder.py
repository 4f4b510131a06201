"""Who a run folder belongs to: one configuration, one data set, one privacy plan."""

import importlib.metadata
import json
import os
import pathlib
import platform

from pds import sampler
from stackoverflow import config as configs
from stackoverflow.token_store import TokenStore
from tff_agg import files, privacy

PLAIN_VOCABULARY = (
    "The vocabulary: its words are the most frequent ones of the training data, "
    "counted without noise and without a limit on the occurrences of one user, so that "
    "a word which one user wrote often enough is in it. (stackoverflow.prepare makes "
    "one with both if --vocab_user_cap and --vocab_noise_multiplier are given.)"
)


class ConfigChangedError(RuntimeError):
    """A run folder was begun under another configuration."""


def claim(
    folder: pathlib.Path,
    config: configs.TrainConfig,
    data: TokenStore,
    plan: privacy.Plan,
    cohorts: sampler.Sampler,
) -> None:
    """Writes what identifies the run, or checks that it is this run's folder."""
    wanted = config.to_json() | {"store_fingerprint": data.fingerprint}
    # Where the data lies may change from machine to machine; what it is may not.
    wanted.pop("store")
    path = folder / "config.json"
    if path.exists():
        saved = json.loads(path.read_text())
        saved.pop("store", None)
        if lines := configs.differences(saved, wanted):
            raise ConfigChangedError(
                f"{folder} was begun under another configuration; use another folder, "
                "or the same flags:\n  " + "\n  ".join(lines)
            )
        return
    if (folder / "checkpoints").exists():
        raise ConfigChangedError(
            f"{folder} has checkpoints but no config.json: whose they are is not known"
        )
    privacy.write_report(
        folder,
        plan,
        sampler_checked=True,
        also_not_covered=() if data.releases else (PLAIN_VOCABULARY,),
        shared_users=data.users_shared_with_train,
        run={"clients": cohorts.describe(), "data": data.fingerprint[:16]},
        # A start that was cut short may have left a report that names a search.
        searches=privacy.searches_of(folder),
    )
    for name, content in (
        ("environment.json", environment()),
        # Last: it marks the folder as taken.
        ("config.json", wanted | {"store": data.path}),
    ):
        files.write_text(folder / name, json.dumps(content, indent=2) + "\n")


def environment() -> dict[str, str]:
    """Returns what the run depends on besides its configuration."""
    packages = ("tensorflow", "tensorflow-federated", "dp-accounting", "numpy")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
    } | {name: importlib.metadata.version(name) for name in packages}
