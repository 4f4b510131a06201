"""What the demo runs: settings, methods, sizes, and how one run is judged."""

import dataclasses
import json
import os
import pathlib
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from stackoverflow.task import StackOverflow, StackOverflowConfig
from tff_agg import files
from tff_agg.privacy import Plan

if TYPE_CHECKING:
    from tff_agg.experiment.build import Compiled
    from tff_agg.experiment.run.recording import Observer

PERIOD = 100
# UTA_inf averages over one period of the shift: each phase counts the same.
INFERENCE_K = PERIOD
SETTINGS: Mapping[str, dict[str, Any]] = {
    "original": {},
    "periodic shift": {"pds": True, "pds_period": PERIOD},
}
_LAST = {"averager": "last"}
_SCHEDULE_FREE = {
    "averager": "schedule_free",
    "step_from": "iterate",
    "server_momentum": 0.0,
}
# By setting and name. Each is the best of six candidates on the validation sample, with
# seeds that the demo has not: `python -m benchmarks.demo_search`, docs/demo_search.csv.
# 'for UTA_inf' is the baseline again, chosen by what UTA_inf makes of its checkpoints.
TRAININGS: Mapping[str, dict[str, dict[str, Any]]] = {
    "original": {
        "baseline": _LAST | {"server_momentum": 0.95, "server_learning_rate": 0.125},
        "for UTA_inf": _LAST | {"server_momentum": 0.95, "server_learning_rate": 0.25},
        "schedule-free": _SCHEDULE_FREE | {"server_learning_rate": 4.0, "gamma": 6.0},
    },
    "periodic shift": {
        "baseline": _LAST | {"server_momentum": 0.9, "server_learning_rate": 0.25},
        "for UTA_inf": _LAST | {"server_momentum": 0.9, "server_learning_rate": 0.5},
        "schedule-free": _SCHEDULE_FREE | {"server_learning_rate": 4.0, "gamma": 2.0},
    },
}


class Method(NamedTuple):
    """One line of the table.

    Attributes:
      training: Which training it uses.
      recycled: Whether the mean of the last checkpoints is judged, not what training
        broadcasts.
    """

    training: str
    recycled: bool


BASELINE = "DP-FTRL, last iterate"
METHODS: Mapping[str, Method] = {
    BASELINE: Method("baseline", recycled=False),
    "UTA_inf, same checkpoints": Method("baseline", recycled=True),
    "UTA_inf, rate chosen for it": Method("for UTA_inf", recycled=True),
    "schedule-free training": Method("schedule-free", recycled=False),
}


class Curve(NamedTuple):
    """The result of one model of a run.

    Attributes:
      rounds: Where the validation accuracy was measured.
      validation: The accuracies there, shares between 0 and 1.
      test: The mean accuracy over the rounds it is judged by, on the test sample.
    """

    rounds: list[int]
    validation: list[float]
    test: float


class Job(NamedTuple):
    """One run of the demo."""

    setting: str
    training: str
    seed: int

    @property
    def folder(self) -> str:
        """The name of its folder."""
        name = f"{self.setting} {self.training} {self.seed}"
        return "".join(c if c.isalnum() else "_" for c in name)


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    """The sizes of the demo.

    Attributes:
      out: Where data, runs, table and picture go.
      settings: The settings to run, with commas between them.
      seeds: How many seeds each combination is trained with.
      rounds: Training rounds of each run.
      users: Users in the embedded data.
      words: Different words in the embedded data.
      epsilon: The ε that the noise of every run is made for. The seeds are known, so
        that no run has a guarantee.
    """

    out: str
    settings: str = ",".join(SETTINGS)
    seeds: int = 3
    rounds: int = 600
    users: int = 30_000
    words: int = 48
    epsilon: float = 8.0

    def __post_init__(self):
        if self.seeds < 1 or self.rounds < 1:
            raise ValueError(
                f"seeds and rounds must be at least 1; got {self.seeds}, {self.rounds}"
            )
        if unknown := set(self.setting_names) - set(SETTINGS):
            raise ValueError(
                f"settings={self.settings!r}: {sorted(unknown)} are not among "
                f"{', '.join(SETTINGS)}"
            )

    @property
    def setting_names(self) -> list[str]:
        """The settings to run."""
        return self.settings.split(",")

    def jobs(self) -> list[Job]:
        """Returns the runs, those of one training one after the other."""
        return [
            Job(setting, training, seed)
            for setting in self.setting_names
            for training in TRAININGS[setting]
            if training == trained_as(setting, training)
            for seed in range(self.seeds)
        ]

    def sizes(self, store: str, setting: str, seed: int) -> StackOverflowConfig:
        """Returns what all runs of a setting and seed have in common."""
        return StackOverflowConfig(
            store=store,
            seed=seed,
            # Known noise seeds make the demo's table the same wherever it runs. The
            # data are made up: there is nobody to protect.
            insecure_noise_seed=1000 + seed,
            rounds=self.rounds,
            clients_per_round=25,
            max_sentences=8,
            batch_size=8,
            embedding_size=16,
            lstm_size=32,
            client_learning_rate=2.0,
            clip_norm=0.5,
            epsilon=self.epsilon,
            evaluate_every=20,
            validation_examples=1000,
            test_examples=3000,
            # `judge` folds over the checkpoints of all rounds.
            keep_last=0,
            # One lane: the same sums, to the last bit, on any number of cores.
            lanes=1,
            **SETTINGS[setting],
        )

    def run_config(self, store: str, job: Job) -> StackOverflowConfig:
        """Returns the configuration of one run."""
        return dataclasses.replace(
            self.sizes(store, job.setting, job.seed),
            **TRAININGS[job.setting][job.training],
        )


def trained_as(setting: str, training: str) -> str:
    """Returns the first training with the same settings: equal ones run once."""
    own = TRAININGS[setting]
    return next(name for name in own if own[name] == own[training])


def methods(setting: str) -> list[str]:
    """Returns the methods of a setting, without one that is another under a new name.

    Where the same rate was chosen for UTA_inf as for the last iterate, the rows would
    be the same.
    """
    found: dict[Method, str] = {}
    for name, (training, recycled) in METHODS.items():
        found.setdefault(Method(trained_as(setting, training), recycled), name)
    return list(found.values())


def judged_rounds(config: StackOverflowConfig) -> list[int]:
    """Returns the rounds that a run is judged by: the validations of the last period.

    Under the shift the last round alone would show one phase of it.
    """
    points = validated_rounds(config)
    return [number for number in points if number > config.rounds - PERIOD]


def validated_rounds(config: StackOverflowConfig) -> list[int]:
    """Returns the rounds at which a run is validated."""
    every = config.evaluate_every
    return [*range(every, config.rounds, every), config.rounds]


def run_one(
    config: StackOverflowConfig,
    folder: str | os.PathLike,
    observer: "Observer",
    cache: "Compiled",
) -> tuple[dict[bool, Curve], Plan]:
    """Trains a run, or resumes it, and judges it.

    Returns:
      By whether it is recycled, the result of the run; and its privacy plan.
    """
    from tff_agg.experiment.run import run as training

    task = StackOverflow(config)
    outcome = training.run(task, folder, observer, compiled=cache)
    plan = outcome.plan
    assert isinstance(plan, Plan)
    path = pathlib.Path(folder) / "judged.json"
    # Of the same run, or `run` would have refused.
    if path.exists():
        saved = json.loads(path.read_text())
        return {r: Curve(*saved[str(r)]) for r in (False, True)}, plan
    curves = judge(task, folder)
    files.write_text(path, json.dumps({str(r): curve for r, curve in curves.items()}))
    return curves, plan


def judge(task: StackOverflow, folder: str | os.PathLike) -> dict[bool, Curve]:
    """Scores what a finished run broadcast, and the means of its checkpoints."""
    from tff_agg import averaging, checkpoints
    from tff_agg.experiment.run import recording, tables

    config, folder = task.config, pathlib.Path(folder)
    store = checkpoints.CheckpointStore(folder / "checkpoints")
    validate = recording.SampleScorer(task, "heldout", config.validation_examples)
    test = recording.SampleScorer(task, "test", config.test_examples)
    broadcast = tables.read_columns(
        folder / "validation.csv", {"weights": "aggregate", "group": "all"}
    )
    means: list[float] = []
    tests: dict[bool, list[float]] = {False: [], True: []}
    validated, judged = validated_rounds(config), judged_rounds(config)
    iterates = (theta for _, theta in store.iterate("iterate"))
    for t, mean in enumerate(averaging.fold(averaging.uta(INFERENCE_K), iterates)):
        if t in validated:
            means.append(validate(mean)["all"]["accuracy"])
        if t in judged:
            tests[True].append(test(mean)["all"]["accuracy"])
            own = store.load(t, "aggregate")
            tests[False].append(test(own)["all"]["accuracy"])
    values = {False: broadcast["accuracy"], True: means}
    return {
        recycled: Curve(validated, values[recycled], statistics.mean(tests[recycled]))
        for recycled in (False, True)
    }
