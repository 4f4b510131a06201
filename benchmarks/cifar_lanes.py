"""Runs on CIFAR in lockstep, in memory, of which scores and some checkpoints stay.

The runs of one seed have the same batches and the same noise, which are known: they
have no guarantee (see `cifar.lockstep`). Trainer, sampler and aggregations
are the library's.
"""

import collections
import dataclasses
import functools
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from cifar.lockstep import Lane, Lockstep
from cifar.task import Cifar, CifarConfig
from tff_agg import files
from tff_agg.experiment.build import Compiled, build
from tff_agg.experiment.build.dp_sgd import SampledBuild
from tff_agg.experiment.run import recording
from tff_agg.recycling import inference
from tff_agg.server.state import iterate

Settings = Mapping[str, Any]
Weights = dict[str, Any]
# By split, method and parameter: the accuracy. JSON knows texts only.
Scores = dict[str, dict[str, float]]

TRAINED = "trained"
EVERYTHING = 1 << 30


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What is kept of a run.

    Attributes:
      grid: The inference aggregations that are scored after the last step.
      splits: On which data: 'heldout', 'test'.
      curve: At which steps the last iterate and the mean of `curve_k` are scored, on
        heldout data.
      curve_k: See `curve`.
      checkpoints: The steps whose iterates are kept, for estimates of uncertainty.
    """

    grid: inference.Grid
    splits: tuple[str, ...] = ("heldout",)
    curve: tuple[int, ...] = ()
    curve_k: int = 50
    checkpoints: tuple[int, ...] = ()


def name_of(settings: Settings) -> str:
    """Returns a run's settings as the name of a file.

    Example:
      >>> name_of({'learning_rate': 4.0, 'averager': 'uta', 'k': 5})
      'averager=uta,k=5,learning_rate=4.0'
    """
    return ",".join(f"{key}={settings[key]}" for key in sorted(settings))


def key_of(method: str, parameter: float | None) -> str:
    """Returns a method with its parameter as a text.

    Example:
      >>> key_of('UTA_inf', 50), key_of('last', None)
      ('UTA_inf 50', 'last')
    """
    return method if parameter is None else f"{method} {parameter:g}"


class Bundle:
    """Runs of one seed that differ in learning rate and averager.

    Each has a file of scores; `run` computes those whose file is not there.
    """

    def __init__(
        self, base: CifarConfig, settings: Sequence[Settings], folder: pathlib.Path
    ):
        """Takes what the runs share, in what they differ, and where scores go."""
        self._base, self._settings, self._folder = base, list(settings), folder

    def path(self, settings: Settings) -> pathlib.Path:
        """Returns the file of a run's scores."""
        name = f"{name_of(settings)}-seed{self._base.insecure_noise_seed}.json"
        return self._folder / name

    def scores(self, settings: Settings) -> dict[str, Any]:
        """Returns what `run` has written."""
        return json.loads(self.path(settings).read_text())

    def checkpoints(self, settings: Settings) -> dict[int, Weights]:
        """Returns the kept iterates by step."""
        found: dict[int, Weights] = {}
        with np.load(self.path(settings).with_suffix(".npz")) as stored:
            for key in stored.files:
                step, name = key.split("/")
                found.setdefault(int(step), {})[name] = stored[key]
        return found

    def run(self, wanted: Wanted, say: Callable[[str], None] = print) -> None:
        """Trains and scores the runs that are missing, all side by side."""
        missing = [s for s in self._settings if not self.path(s).exists()]
        if not missing:
            return
        began = time.process_time()
        # No seed is part of a compiled step: bundles that differ in it share theirs.
        seedless: dict[str, Any] = {"seed": 0, "insecure_noise_seed": 0}
        together = _lockstep(
            tuple(dataclasses.replace(self._base, **s, **seedless) for s in missing)
        )
        first = Cifar(dataclasses.replace(self._base, **missing[0]))
        read = build(first, Compiled()).cohort
        secret = (self._base.insecure_noise_seed or 0, 0)
        states = together.initialize(first.initial_weights(), secret)
        judge = _Judge(first, wanted)
        records = [_Record(judge, iterate(states[0])) for _ in missing]
        computed = 0
        for step in range(1, self._base.rounds + 1):
            leaders = together.leaders(step - 1)
            computed += len(set(leaders))
            states = together.next(states, read(step - 1, secret).data)
            for lane, leader in enumerate(leaders):
                if leader == lane:
                    records[lane].add(step, iterate(states[lane]))
                else:
                    records[lane].follow(records[leader])
        trained = time.process_time() - began
        self._folder.mkdir(parents=True, exist_ok=True)
        for settings, record, state in zip(missing, records, states, strict=True):
            content = {
                "settings": dict(settings),
                "config": self._base.to_json(),
                "scores": record.scores(state["aggregate"]),
                "curve": record.curve,
            }
            if record.kept:
                np.savez(self.path(settings).with_suffix(".npz"), **record.kept)
            files.write_text(self.path(settings), json.dumps(content) + "\n")
        spent = time.process_time() - began
        say(
            f"{time.strftime('%H:%M:%S')} {self._folder.name}, seed {secret[0]}: "
            f"{len(missing)} runs, {computed} steps computed, {trained:.0f} s of "
            f"processor time in training, {spent - trained:.0f} s in judging"
        )


@functools.lru_cache(1)
def _lockstep(configs: tuple[CifarConfig, ...]) -> Lockstep:
    """Builds the processes of several runs."""
    return Lockstep(
        [
            Lane(SampledBuild(Cifar(c), Compiled()).build_process(), _start(c))
            for c in configs
        ]
    )


def _start(config: CifarConfig) -> int | None:
    """Returns from which step on averages are used; None: never."""
    return None if config.averager == "last" else config.start_round


class _Judge:
    """Scores models on the whole of every split."""

    def __init__(self, task: Cifar, wanted: Wanted):
        self.task, self.wanted = task, wanted
        self.evaluate = {
            split: recording.SampleScorer(task, split, EVERYTHING)
            for split in {"heldout", *wanted.splits}
        }
        self._predict = task.predictor()
        self.folded = wanted.grid.folded()
        self.moved = jax.jit(
            lambda states, theta: {
                key: averager.next(states[key], theta)[0]
                for key, averager in self.folded.items()
            }
        )

    def accuracy(self, weights: Weights, split: str = "heldout") -> float:
        """Returns the share of right labels."""
        named = {name: np.asarray(value) for name, value in weights.items()}
        return self.evaluate[split](named)["all"]["accuracy"]

    def tail(self, tail: Mapping[int, Weights], split: str) -> Mapping[str, float]:
        """Scores the last iterate and what is made of the last k."""
        grid = dataclasses.replace(self.wanted.grid, ema=(), pda=(), baseline=False)
        task, last = self.task, max(tail)
        rows = task.flat_sample(task.fixed_sample(split, EVERYTHING))
        found = inference.score_grid(
            lambda step: {n: np.asarray(w) for n, w in tail[step].items()},
            sorted(tail),
            [last],
            grid,
            score=lambda weights: {"accuracy": self.accuracy(weights, split)},
            judge=task.judge(),
            predict=self._predict,
            examples=rows,
            classes=task.classes,
        )
        return {key_of(s.method, s.parameter): s.values["accuracy"] for s in found}


class _Record:
    """What is kept of one run while it goes on."""

    def __init__(self, judge: _Judge, initial: Weights):
        self._judge, self._wanted = judge, judge.wanted
        longest = max(
            [1, *judge.wanted.grid.uta, *judge.wanted.grid.outputs]
            + [judge.wanted.curve_k] * bool(judge.wanted.curve)
        )
        self._tail: collections.deque[tuple[int, Weights]] = collections.deque(
            [(0, initial)], maxlen=longest
        )
        self._moving = {k: a.init(initial) for k, a in judge.folded.items()}
        self.curve: list[tuple[int, float, float]] = []
        self.kept: dict[str, np.ndarray] = {}

    def add(self, step: int, iterate: Weights) -> None:
        """Takes the iterate of a step."""
        self._tail.append((step, iterate))
        if self._moving:
            self._moving = self._judge.moved(self._moving, iterate)
        if step in self._wanted.checkpoints:
            kept = {f"{step}/{n}": np.asarray(w) for n, w in iterate.items()}
            self.kept.update(kept)
        if step in self._wanted.curve:
            tail = dict(self._tail)
            means = inference.tail_means(
                lambda number: jax.device_get(tail[number]),
                sorted(tail),
                step,
                [self._wanted.curve_k],
            )
            ((_, mean),) = means
            accuracy = self._judge.accuracy
            self.curve.append((step, accuracy(iterate), accuracy(mean)))

    def follow(self, leader: "_Record") -> None:
        """Takes over what a run has whose steps were this one's so far, all of them."""
        self._tail, self._moving = leader._tail.copy(), leader._moving
        self.curve, self.kept = list(leader.curve), dict(leader.kept)

    def scores(self, aggregate: Weights) -> Scores:
        """Scores what training went on from, and all inference aggregations."""
        found: Scores = {}
        for split in self._wanted.splits:
            accuracy = self._judge.accuracy
            found[split] = {TRAINED: accuracy(aggregate, split)}
            found[split] |= self._judge.tail(dict(self._tail), split)
            for key, state in self._moving.items():
                found[split][key_of(*key)] = accuracy(state["average"], split)
        return found
