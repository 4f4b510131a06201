"""Kills training runs at random until enough kills have struck; compares their ends.

Each run has a secret noise seed of the operating system's. It is begun, its folder is
copied before the first round, and then the copy is trained in one go while the other is
killed (SIGKILL) and started again until it is done. Both must hold the same bits:
all files of checkpoints, tables, event files and ledger (but for the rounds' seconds).

    python -m benchmarks.kills --kills=100

Runs are those of the driver `train` with a tiny model. A process that has loaded
TensorFlow, but run nothing on it, forks them, so that a start takes seconds.
"""

import collections
import dataclasses
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

from benchmarks import programs
from tff_agg.fields import described


@dataclasses.dataclass(frozen=True)
class Options:
    """What is killed, and how often."""

    kills: int = described(100, "kills that have to strike", at_least=1)
    seed: int = described(0, "seed of the moments of the kills")
    rounds: int = described(30, "rounds of a run", at_least=1)
    jobs: int | None = described(None, "runs at a time; one per core by default")
    folder: str | None = described(None, "where to keep the runs; nowhere by default")


_FORK = multiprocessing.get_context("fork")
_SETTINGS: tuple[dict[str, Any], ...] = (
    {"mechanism": "tree", "averager": "uta", "k": 3},
    {"mechanism": "blt", "averager": "ema", "ema_decay": 0.9},
    {"mechanism": "honaker", "averager": "last", "server_momentum": 0.0},
    {"mechanism": "banded", "averager": "pda", "gamma": 2.0, "keep_last": 3},
    {"mechanism": "identity", "averager": "uta", "k": 8, "step_from": "iterate"},
    {"mechanism": "tree", "averager": "ema", "ema_weight": 0.3, "restart_every": 7},
)
# Two lanes: sums must not depend on which of them is faster.
_COMMON: dict[str, Any] = {
    "clients_per_round": 4,
    "max_sentences": 20,
    "embedding_size": 8,
    "lstm_size": 16,
    "noise_multiplier": 0.5,
    "evaluate_every": 4,
    "validation_examples": 60,
    "test_examples": 60,
    "lanes": 2,
    "batch_size": 16,
}
_TABLES = ("metrics.csv", "validation.csv", "test.csv", "config.json")


class _Begun(BaseException):
    """Ends a process when its run has been begun and no round was computed."""


def _train(config: Any, folder: pathlib.Path, ready: int, begin_only: bool) -> None:
    """Runs in a child process; writes a byte to `ready` after its first round.

    The first round compiles, which takes longer than all others.
    """
    from stackoverflow.task import StackOverflow
    from tff_agg import runtime
    from tff_agg.experiment.run import recording
    from tff_agg.experiment.run import run as training

    runtime.configure_threads()

    class Tell(recording.Observer):
        def on_start(self, done: int, rounds: int) -> None:
            if begin_only:
                raise _Begun

        def on_round(self, done: int, facts: dict[str, float]) -> None:
            os.write(ready, b".")

    training.run(StackOverflow(config), folder, Tell())


class Child:
    """A forked process that trains a run."""

    def __init__(self, config: Any, folder: pathlib.Path, begin_only: bool = False):
        """Starts it; its output goes to a file beside the run."""
        read, write = os.pipe()
        self._ready = read
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(read)
                log = os.open(f"{folder}.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
                for output in (1, 2):
                    os.dup2(log, output)
                _train(config, folder, write, begin_only)
                code = 0
            except _Begun:
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(write)

    def wait_until_ready(self) -> None:
        """Waits until its first round is done, or for the end."""
        os.read(self._ready, 1)

    def ended(self) -> bool:
        """Returns whether it has ended by itself; raises if it has failed."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self._check(status)
        return bool(pid)

    def finish(self) -> None:
        """Waits until it ends by itself."""
        self._check(os.waitpid(self.pid, 0)[1])

    def kill(self, folder: pathlib.Path) -> str | None:
        """Stops it, looks where it is, and kills it; None if it had ended before."""
        os.kill(self.pid, signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self._check(status)
            return None
        where = _where(folder)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._ready)
        return where

    def _check(self, status: int) -> None:
        os.close(self._ready)
        if os.waitstatus_to_exitcode(status) != 0:
            raise RuntimeError(f"process {self.pid} has failed: see its log")


def _where(folder: pathlib.Path) -> str:
    """Says what a stopped run was doing, from what lies in its folder."""
    from tff_agg.experiment.run import ledger

    store = folder / "checkpoints"
    for part in ("blobs", "manifests"):
        if (store / part).is_dir() and any(
            name.endswith(".new") for name in os.listdir(store / part)
        ):
            return f"while writing {part}"
    history = ledger.Ledger(folder).read()
    if history is None or history.last < 0:
        return "before the first state"
    newest = max(int(p.stem) for p in (store / "manifests").glob("*.json"))
    if newest > history.last:
        return "between save and ledger"
    return (
        "in a round" if newest in history.reported or newest == 0 else "while reporting"
    )


def contents(folder: pathlib.Path) -> dict[Any, Any]:
    """Returns all that must not depend on where a run was killed."""
    import tensorflow as tf
    import tree

    from tff_agg import checkpoints
    from tff_agg.experiment.run import ledger

    found: dict[Any, Any] = {n: (folder / n).read_bytes() for n in _TABLES}
    for path in (folder / "checkpoints").rglob("*"):
        if path.is_file():
            found[path.name] = path.read_bytes()
    store = checkpoints.CheckpointStore(folder / "checkpoints")
    for name in ("iterate", "aggregate", "state"):
        for number, value in store.iterate(name):
            leaves = [(x.dtype.str, x.shape, x.tobytes()) for x in tree.flatten(value)]
            found[name, number] = leaves
    history = ledger.Ledger(folder).read()
    assert history is not None
    for number, record in history.rounds.items():
        found["ledger", number] = {k: v for k, v in record.items() if k != "seconds"}
        found["reported", number] = json.dumps(history.reported.get(number))
    events: collections.Counter[Any] = collections.Counter()
    for path in (folder / "tensorboard").glob("events.*"):
        try:
            for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
                event = tf.compat.v1.Event.FromString(record)
                for value in event.summary.value:
                    events[event.step, value.tag, value.tensor.tensor_content] += 1
        except tf.errors.DataLossError:
            continue  # a record that a kill left half-written
    found["events"] = events
    return found


class Tally:
    """What several processes count together."""

    def __init__(self, wanted: int):
        """Takes how many kills are wanted."""
        self._wanted = wanted
        self._kills = _FORK.Value("i", 0)
        self._begun = _FORK.Value("i", 0)

    def next_run(self) -> int | None:
        """Returns the number of the next run; None if the kills have all struck."""
        with self._begun.get_lock():
            if self._kills.value >= self._wanted:
                return None
            self._begun.value += 1
            return self._begun.value - 1

    def strike(self, child: Child, folder: pathlib.Path) -> str | None:
        """Kills and says where it struck; None if the run has ended."""
        with self._kills.get_lock():
            if self._kills.value < self._wanted:
                if (where := child.kill(folder)) is not None:
                    self._kills.value += 1
                return where
        child.finish()
        return None


def _one_run(
    options: Options, number: int, store: str, folder: pathlib.Path, tally: Tally
) -> tuple[str, list[str], bool]:
    """Trains one run twice, in one go and through kills, and compares.

    Returns:
      What kind of run it was, where kills struck, and whether the ends are the same.
    """
    from stackoverflow.task import StackOverflowConfig

    setting = _SETTINGS[number % len(_SETTINGS)]
    values = _COMMON | setting | {"store": store, "seed": number}
    config = StackOverflowConfig(**values, rounds=options.rounds)
    clock = random.Random(f"{options.seed} {number}")
    killed, whole = folder / f"{number}-killed", folder / f"{number}-whole"
    Child(config, killed, begin_only=True).finish()
    shutil.copytree(killed, whole)
    begin = time.monotonic()
    child = Child(config, whole)
    child.wait_until_ready()
    ready = time.monotonic()
    child.finish()
    # How long rounds take tells when kills are likely to strike inside them.
    start, work = ready - begin, time.monotonic() - ready
    places = []
    while True:
        child = Child(config, killed)
        if clock.random() < 0.1:
            time.sleep(clock.uniform(0, start))
        else:
            child.wait_until_ready()
            time.sleep(clock.uniform(0, 0.15 * work))
        if child.ended() or (where := tally.strike(child, killed)) is None:
            break
        places.append(where)
    same = _in_a_child(lambda: contents(killed) == contents(whole))
    return " ".join(f"{k}={v}" for k, v in setting.items()), places, same


def _in_a_child(question: Callable[[], bool]) -> bool:
    """Answers a question in a forked process: this one must not start TensorFlow."""
    process = os.fork()
    if process == 0:
        try:
            os._exit(0 if question() else 1)
        except BaseException:
            traceback.print_exc()
        os._exit(2)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code not in (0, 1):
        raise RuntimeError(f"a process ended with code {code}")
    return code == 0


def _work(
    options: Options, store: str, folder: pathlib.Path, tally: Tally, results: Any
) -> None:
    """Makes runs until all kills have struck."""
    while (number := tally.next_run()) is not None:
        results.put((number, *_one_run(options, number, store, folder, tally)))


def main(options: Options) -> int:
    """Kills until enough kills have struck; says where they did."""
    from stackoverflow.data import preparation

    tally, results = Tally(options.kills), _FORK.SimpleQueue()
    places: collections.Counter[str] = collections.Counter()
    same: list[bool] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(options.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        store = os.path.join(temporary, "synthetic-400users-40words")
        _in_a_child(
            lambda: (
                store
                == preparation.ensure_store(
                    "synthetic", None, temporary, users=400, words=40, workers=1
                )
            )
        )
        jobs = options.jobs or len(os.sched_getaffinity(0))
        workers = [
            _FORK.Process(target=_work, args=(options, store, folder, tally, results))
            for _ in range(jobs)
        ]
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers) or not results.empty():
            if results.empty():
                time.sleep(0.1)
                continue
            number, words, struck, equal = results.get()
            places.update(struck)
            same.append(equal)
            result = "bit-identical" if equal else "DIFFERENT"
            print(f"run {number}: {words}: {len(struck)} kills, {result}", flush=True)
        failed = [worker for worker in workers if worker.exitcode]
    for place, count in places.most_common():
        print(f"{count:4} {place}")
    kills = places.total()
    print(f"bit-identical: {sum(same)} of {len(same)} runs, {kills} kills")
    return 0 if all(same) and kills >= options.kills and not failed else 1


if __name__ == "__main__":
    from tff_agg.runtime import quiet

    quiet.quiet_tensorflow()
    programs.start(__spec__, __doc__, main, Options)
