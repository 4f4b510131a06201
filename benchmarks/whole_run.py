"""Where the time of a whole run goes: clients' work, and everything around it.

    python -m benchmarks.whole_run --pfl_python=…/bin/python

Trains runs of the driver `train` on made-up users, with a small, a middle and a big
next-word model, and shows the share of the wall clock that each part takes where the
training loop waits for it. The first round, which compiles, does not count. With a
Python that has pfl-research, its loop trains the same model on the same users for as
many rounds, with its own checkpoint after each.

| part | what the loop waits for |
|---|---|
| clients' work | the lanes, from a round's first client to its last |
| server | the rest of a round's computation: noise, the step |
| cohort | the round's clients, as far as they were not read ahead |
| release | the round before, as far as it was not yet saved and reported |
| rest | all else |

The release of a round has a thread of its own. What it does there is shown apart:
saving (digests, checkpoint, ledger) and reporting (tables, event files, validation).
"""

import collections
import contextlib
import dataclasses
import functools
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

from benchmarks import programs, turns
from tff_agg.fields import described


class Sizes(NamedTuple):
    """The width of the embedding and the units of the LSTM."""

    embedding: int
    lstm: int


MODELS = {"small": Sizes(24, 48), "middle": Sizes(64, 256), "big": Sizes(96, 670)}
PARTS = ("clients' work", "server", "cohort", "release", "rest")
BESIDE = ("saving", "ε", "reporting")
_WORDS = 500


@dataclasses.dataclass(frozen=True)
class Options:
    """What is trained."""

    models: tuple[str, ...] = described(tuple(MODELS), "what to run", MODELS)
    rounds: int = described(200, "rounds of a run", at_least=2)
    clients_per_round: int = described(100, "users per round", at_least=1)
    users: int = described(2000, "users there are", at_least=1)
    pfl_python: str = described("", "Python with pfl-research; none: skip")
    out: str = described("results/whole_run", "folder for JSON")
    one: str = described("", "one model alone, in this process; for itself")


class Clock:
    """Gives a thread's wall clock to the innermost part that is under way."""

    def __init__(self) -> None:
        """Begins in no part."""
        self.seconds: dict[str, float] = collections.defaultdict(float)
        self._parts = ["rest"]
        self._since = time.perf_counter()

    def _turn(self) -> None:
        now = time.perf_counter()
        self.seconds[self._parts[-1]] += now - self._since
        self._since = now

    def restart(self) -> None:
        """Forgets what was."""
        self._turn()
        self.seconds.clear()

    def read(self) -> dict[str, float]:
        """Returns the seconds of each part until now."""
        self._turn()
        return dict(self.seconds)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts what is inside as a part."""
        self._turn()
        self._parts.append(name)
        try:
            yield
        finally:
            self._turn()
            self._parts.pop()

    def move(self, seconds: float, source: str, target: str) -> None:
        """Gives seconds of one part to another."""
        self.seconds[source] -= seconds
        self.seconds[target] += seconds

    def timed(self, name: str, function: Callable) -> Callable:
        """Returns a function whose calls count as a part."""

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            with self.part(name):
                return function(*arguments, **named)

        return call


class AtWork:
    """From when to when lanes were at work on clients; a runtime's `on_client`."""

    def __init__(self) -> None:
        """Has seen no client."""
        self._spans: list[tuple[float, float]] = []

    def __call__(self, run: Any) -> None:
        """Notes a client, in any lane's thread."""
        now = time.perf_counter()
        self._spans.append((now - run.seconds, now))

    def take(self) -> float:
        """Returns the seconds from the first client's start to the last one's end."""
        spans, self._spans = self._spans, []
        if not spans:
            return 0.0
        return max(end for _, end in spans) - min(start for start, _ in spans)


class _TimedProcess:
    """A process whose rounds are timed from the second on."""

    def __init__(self, process: Any, clock: Clock, at_work: AtWork):
        self._process, self._clock, self._at_work = process, clock, at_work
        self._compiled = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    def next(self, *arguments: Any) -> Any:
        with self._clock.part("server"):
            output = self._process.next(*arguments)
        self._clock.move(self._at_work.take(), "server", "clients' work")
        if not self._compiled:
            self._clock.restart()
            self._compiled = True
        return output


def shares(task: Any, folder: pathlib.Path) -> dict[str, dict[str, float]]:
    """Trains a run; returns the seconds of each part, the first round left out."""
    from tff_agg.checkpoints import CheckpointStore
    from tff_agg.experiment.build import Compiled
    from tff_agg.experiment.run import background, ledger, loop, read_ahead, recording
    from tff_agg.experiment.run import run as training

    clock, beside, at_work = Clock(), Clock(), AtWork()

    class Cache(Compiled):
        def process(self, *arguments: Any) -> Any:
            return _TimedProcess(super().process(*arguments), clock, at_work)

    class SecondRoundOn(recording.Observer):
        def on_round(self, done: int, facts: dict[str, float]) -> None:
            if done == 1:
                beside.restart()

    train, waited = loop.train, {}

    def until_its_end(*arguments: Any, **named: Any) -> Any:
        state = train(*arguments, **named)
        waited.update(clock.read())
        return state

    with contextlib.ExitStack() as stack:
        for counted, owner, name, part in (
            (clock, read_ahead.ReadAhead, "__call__", "cohort"),
            (clock, background.Background, "wait", "release"),
            (beside, CheckpointStore, "prepare", "saving"),
            (beside, CheckpointStore, "commit", "saving"),
            (beside, CheckpointStore, "discard", "saving"),
            (beside, ledger.Ledger, "_append", "saving"),
            (beside, recording.Recorder, "record", "reporting"),
            (beside, recording.Recorder, "_spent", "ε"),
        ):
            timed = counted.timed(part, getattr(owner, name))
            stack.enter_context(mock.patch.object(owner, name, timed))
        stack.enter_context(mock.patch.object(loop, "train", until_its_end))
        cache = stack.enter_context(contextlib.closing(Cache(at_work)))
        training.run(task, folder, SecondRoundOn(), compiled=cache)
    done = beside.read()
    return {
        "seconds": {part: waited.get(part, 0.0) for part in PARTS},
        "beside": {part: done.get(part, 0.0) for part in BESIDE},
    }


def config_of(options: Options, model: str, store: str) -> Any:
    """Returns the configuration of a run."""
    from benchmarks.peers import workload
    from stackoverflow.task import StackOverflowConfig

    sizes = MODELS[model]
    return StackOverflowConfig(
        store=store,
        rounds=options.rounds,
        clients_per_round=options.clients_per_round,
        mechanism="banded",
        noise_multiplier=workload.NOISE_MULTIPLIER,
        clip_norm=workload.CLIP_NORM,
        client_learning_rate=workload.CLIENT_RATE,
        server_learning_rate=1.0,
        server_momentum=0.9,
        averager="uta",
        batch_size=16,
        max_sentences=8,
        embedding_size=sizes.embedding,
        lstm_size=sizes.lstm,
        validation_examples=1000,
        test_examples=0,
    )


def write_clients(task: Any, path: pathlib.Path) -> None:
    """Writes the users' rows and the model's sizes for another system."""
    import numpy as np

    rows = [task.client(user, "all", 0).arrays[0] for user in task.users()]
    sizes = {
        "ids": task.sizes.num_ids,
        "width": task.sizes.embedding_size,
        "units": task.sizes.lstm_size,
        "steps": task.sizes.max_tokens,
        "batch": task.config.batch_size,
    }
    ends = np.cumsum([len(r) for r in rows])
    np.savez(path, rows=np.concatenate(rows), ends=ends, sizes=json.dumps(sizes))


def _one(options: Options, folder: pathlib.Path) -> None:
    """Runs one model in this process; prints JSON."""
    from tff_agg import runtime

    # As the driver does, before anything imports TensorFlow.
    runtime.set_up_tensorflow()
    from stackoverflow.data import preparation
    from stackoverflow.task import StackOverflow

    model = options.one
    store = preparation.ensure_store(
        "synthetic", None, folder.parent, users=options.users, words=_WORDS, workers=1
    )
    task = StackOverflow(config_of(options, model, store))
    write_clients(task, folder.parent / f"{model}.npz")
    found = {"parameters": task.num_parameters, **shares(task, folder)}
    print(json.dumps(found), flush=True)


def main(options: Options, arguments: list[str]) -> None:
    """Trains each model in a process of its own, prints and writes."""
    if options.one:
        _one(options, pathlib.Path(*arguments))
        return
    pfl = turns.peer(options.pfl_python, "pfl-research")
    sizes = {
        "rounds": options.rounds,
        "clients_per_round": options.clients_per_round,
        "users": options.users,
    }
    words = [f"--{name}={value}" for name, value in sizes.items()]
    found: dict[str, Any] = {}
    for model in options.models:
        with tempfile.TemporaryDirectory() as temporary:
            ours = [sys.executable, "-m", "benchmarks.whole_run", *words]
            folder = pathlib.Path(temporary) / model
            found[model] = turns.run(
                [*ours, f"--one={model}", str(folder)], onednn=True
            )
            if pfl is not None:
                peer = [pfl, "-m", "benchmarks.peers.pfl_run"]
                peer += [f"--clients={folder}.npz", f"--folder={folder}-pfl"]
                peer += [f"--rounds={options.rounds}"]
                peer += [f"--cohort={options.clients_per_round}"]
                found[model]["pfl"] = turns.run(peer)["seconds"]
        _show(model, found[model], options.rounds - 1)
    result = {**turns.circumstances(), **sizes, "models": found}
    programs.write(options.out, "whole_run", result)


def _show(model: str, found: dict[str, Any], rounds: int) -> None:
    """Prints the parts of a run, and how it compares."""
    seconds = found["seconds"]
    total = sum(seconds.values())
    print(f"\n{model}: {found['parameters']:,} parameters, {rounds} rounds")
    for part in PARTS:
        share = seconds[part] / total
        print(f"  {part:14}{seconds[part] / rounds * 1e3:10.2f} ms a round{share:8.1%}")
    print(f"  {'all':14}{total / rounds * 1e3:10.2f} ms a round, {total:.1f} s")
    print("  while the next round is computed, in another thread")
    for part, spent in found["beside"].items():
        print(f"  {part:14}{spent / rounds * 1e3:10.2f} ms a round")
    if "pfl" in found:
        peer = found["pfl"]
        print(f"  pfl-research  {peer / rounds * 1e3:10.2f} ms a round, {peer:.1f} s")
        print(f"  {model}: pfl-research takes {peer / total:.2f} times as long")


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options, arguments="[FOLDER]")
