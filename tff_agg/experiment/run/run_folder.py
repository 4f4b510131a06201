"""The folder of a run: who it belongs to, what is in it, and who may write there."""

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from tff_agg import checkpoints, fields, files, privacy
from tff_agg.aliases import Json, JsonObject
from tff_agg.experiment.build import Build, start
from tff_agg.experiment.config import RunConfig
from tff_agg.experiment.run import ledger
from tff_agg.experiment.run.identity import IdentityError, differences
from tff_agg.experiment.task import Task

# What a run has written that has come no further; in the order in which it is removed.
_OF_A_START = (
    "timing.csv", "metrics.csv", "validation.csv", "test.csv", "ledger.jsonl",
    "environment.json", "config.json",
)  # fmt: skip
#: What may be there of a run that has released rounds.
_TRACES = ("checkpoints", ledger.NAME, "metrics.csv", "validation.csv", "tensorboard")


class RunFolder:
    """A run's folder. Nothing else claims, opens or checks one.

    `RunFolder(path)` is for whoever trains: the folder need not be there yet.
    `RunFolder.open(path)` is for readers.

    Attributes:
      path: Where it is.
      ledger: What the run is and has released.
      store: Its checkpoints.

    Example:
      RunFolder.open('runs/uta').rounds_done  # 2000
    """

    def __init__(
        self, path: str | os.PathLike, keep_last: int = 0, keep_every: int = 0
    ):
        """Names the folder; nothing is read or written yet.

        Args:
          path: Where it is or will be.
          keep_last: How many of the newest checkpoints stay; 0: all.
          keep_every: Which of the older ones stay, too: every n-th; 0: none.
        """
        self.path = pathlib.Path(path)
        self.ledger = ledger.Ledger(self.path)
        self.store = checkpoints.CheckpointStore(
            self.path / "checkpoints", **retention(keep_last, keep_every)
        )

    @classmethod
    def open(cls, path: str | os.PathLike) -> Self:
        """Returns a run's folder, for readers.

        Raises:
          FileNotFoundError: It is none.
        """
        folder = cls(path)
        if not (folder.path / "config.json").is_file():
            raise FileNotFoundError(
                f"{folder.path} is no run folder: it has no config.json"
            )
        return folder

    # What the run is.

    @property
    def history(self) -> ledger.History | None:
        """What the ledger says; None where there is none."""
        return self.ledger.read()

    @property
    def rounds_done(self) -> int:
        """How many rounds were released."""
        history = self.history
        return 0 if history is None else max(history.last, 0)

    def saved_config(self) -> JsonObject:
        """Returns what config.json holds."""
        return _read_object(self.path / "config.json")

    def config(self, config_class: type[RunConfig]) -> Any:
        """Returns the configuration of the run."""
        try:
            return config_class.from_json(self.saved_config())
        except (ValueError, TypeError, OverflowError) as error:
            path = self.path / "config.json"
            if str(error).startswith(str(path)):
                raise
            raise ValueError(f"{path}: {error}") from error

    def config_at(self, task_class: type[Task], data: str | None) -> Any:
        """Returns the configuration of the run with its data where they are now.

        Args:
          task_class: The task's class.
          data: Where the data are, if they are not where the run found them.
        """
        config = self.config(task_class.Config)
        if not data:
            return config
        field = fields.data_field(task_class.Config)
        if field is None:
            raise ValueError(
                f"data={data}: the task {task_class.package!r} has no data of its "
                "own to move"
            )
        moved: dict[str, Any] = {field: data}
        return dataclasses.replace(config, **moved)

    def report(self) -> dict[str, Any]:
        """Returns the privacy report; empty where there is none."""
        path = self.path / "privacy_report.json"
        return _read_object(path) if path.is_file() else {}

    def environment(self) -> JsonObject:
        """Returns what the run was begun on; empty where that is not known."""
        path = self.path / "environment.json"
        return _read_object(path) if path.is_file() else {}

    @property
    def epsilon(self) -> float | None:
        """ε of the whole plan; None where there is no guarantee."""
        report = self.report()
        try:
            epsilon = report["guarantee"]["epsilon"] if report else None
            return None if epsilon is None else float(epsilon)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            path = self.path / "privacy_report.json"
            raise ValueError(f"{path} is damaged: {error!r}") from error

    def task(
        self,
        task_class: type[Task],
        data: str | None = None,
        bind: Callable[[Any], Task] | None = None,
    ) -> Task:
        """Returns the task that was trained, its data checked against the run's.

        Args:
          task_class: The task's class.
          data: Where the data are, if they are not where the run found them.
          bind: Returns the task under a configuration, where the data are open already;
            by default they are opened.
        """
        config = self.config_at(task_class, data)
        task = (bind or task_class)(config)
        known = self.saved_config().get("data_fingerprint")
        if known is not None and known != task.fingerprint:
            raise ValueError(
                f"{self.path} was trained on other data: their fingerprint was "
                f"{str(known)[:16]}, now it is {task.fingerprint[:16]}"
            )
        return task

    # Whose it is.

    def refuse_other(self, task: Task) -> None:
        """Refuses a folder of another configuration; writes nothing.

        It is the half of the check that needs no process.

        Raises:
          IdentityError: Names each setting that differs.
          ledger.ResumeError: The folder shows rounds of a run that cannot go on.
        """
        path = self.path / "config.json"
        if self.has_released:
            self._refuse(
                self._other_settings(task),
                "under another configuration; use another folder, or the same flags:",
            )
        if self.history is None or not path.exists():
            missing = ledger.NAME if path.exists() else path.name
            if traces := [name for name in _TRACES if (self.path / name).exists()]:
                raise ledger.ResumeError(
                    f"{self.path} has {', '.join(traces)} but no {missing}: a run has "
                    "released rounds here, and starting over would spend the privacy "
                    "budget again. Put the file back, or use another folder."
                )

    def check_identity(self, facts: Mapping[str, Json]) -> None:
        """Refuses to go on with a run as something else than it was begun as.

        It is the half of the check that asks the process.

        Raises:
          IdentityError: Names each field that differs.
        """
        if self.history is not None:
            self._refuse(
                self._other_facts(facts),
                "as another run. Noise that has been added once must not be added to "
                "anything else: go on with what it was begun with, or begin another "
                "run in another folder.",
            )

    def _other_settings(self, task: Task) -> list[str]:
        """Returns in what a task is not the one that the folder was begun with."""
        if not (self.path / "config.json").exists():
            return []
        # As it would be written today: by field.
        saved = fields.values(self.config(task.Config), *fields.SETTINGS)
        saved["data_fingerprint"] = self.saved_config().get("data_fingerprint")
        return differences(saved, identifying(task))

    def _other_facts(self, facts: Mapping[str, Json]) -> list[str]:
        """Returns in what a process is not the one that the run was begun with."""
        history = self.history
        return [] if history is None else differences(history.identity, dict(facts))

    @property
    def has_released(self) -> bool:
        """Whether a round was released here, as far as anything shows."""
        history, table = self.history, self.path / "metrics.csv"
        return (
            (history is not None and history.last > 0)
            or self.store.has_rounds(after=0)
            or (table.is_file() and len(table.read_bytes().splitlines()) > 1)
        )

    def _clear(self) -> None:
        """Removes what is left of a run that has released nothing.

        The privacy report stays, in which a search may have entered what it has cost.
        What marks the folder as taken goes last.
        """
        for name in ("checkpoints", "tensorboard"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in _OF_A_START:
            (self.path / name).unlink(missing_ok=True)

    def _refuse(self, lines: list[str], reason: str) -> None:
        if lines:
            text = "\n  ".join([f"{self.path} was begun {reason}", *lines])
            raise IdentityError(text)

    @contextlib.contextmanager
    def claim(self, built: Build[Any], facts: Mapping[str, Json]) -> Iterator[None]:
        """Takes the folder for this run, and says in its report how the run ends.

        Inside the block no other process is at work in it.

        Args:
          built: The run.
          facts: What its process says of it, see `identity.Identity.facts`.

        Raises:
          checkpoints.RunLockedError: Another process is at work in it.
          IdentityError: It belongs to another run.
        """
        with checkpoints.RunLock(self.path):
            other = self._other_settings(built.task) or self._other_facts(facts)
            if other and not self.has_released:
                # It failed before its first round: there is nothing to go on with.
                self._clear()
            self.refuse_other(built.task)
            self.check_identity(facts)
            self._describe(built)
            try:
                yield
            except BaseException:
                # What ended the run is what is reported, not that the disk is full.
                with contextlib.suppress(Exception):
                    self._report(built, self.rounds_done)
                raise
            self._report(built, self.rounds_done)

    def _describe(self, built: Build[Any]) -> None:
        """Writes what the run is."""
        self._report(built, None)
        if (self.path / "config.json").exists():
            return
        task = built.task
        here = fields.values(task.config, "place")
        for name, content in (
            ("environment.json", _environment()),
            # Last: it marks the folder as taken.
            ("config.json", identifying(task) | here),
        ):
            files.write_text(self.path / name, json.dumps(content, indent=2) + "\n")

    def _report(self, built: Build[Any], rounds_done: int | None) -> None:
        """Writes the privacy report; the rounds are None while the run goes on."""
        task = built.task
        facts = task.privacy_facts()
        privacy.write_report(
            self.path,
            built.plan,
            rounds_done=rounds_done,
            sampler_checked=True,
            initial_weights=start.in_words(task),
            cipher=built.cipher,
            also_not_covered=facts.not_covered,
            shared_users=facts.shared_users,
            run={"clients": built.sampler.describe(), "data": task.fingerprint[:16]},
            # What searches have entered stays.
            searches=privacy.searches_of(self.path),
        )


def identifying(task: Task) -> JsonObject:
    """Returns the configuration without what may change from machine to machine."""
    settings = fields.values(task.config, *fields.SETTINGS)
    return settings | {"data_fingerprint": task.fingerprint}


def retention(last: int, every: int) -> dict[str, Any]:
    """Returns what the store is to keep of the weights; nothing said means all."""
    if not last:
        return {}
    both = {"keep_last": last, "keep_every": every}
    names = ("iterate", "aggregate")
    return {k: dict.fromkeys(names, number) for k, number in both.items() if number}


def _read_object(path: pathlib.Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: it holds no object")
    return found


def _environment() -> dict[str, str]:
    """Returns what the run depends on besides its configuration."""
    packages = ("tensorflow", "tensorflow-federated", "dp-accounting", "numpy")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
    } | {name: importlib.metadata.version(name) for name in packages}
