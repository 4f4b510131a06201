"""Trains a task with differential privacy, from a configuration to a run folder.

The folder of a run:
```
config.json environment.json      what was run, and on what
ledger.jsonl                      what the run is, and every round it has released
privacy_report.md .json           the guarantee, in words and in numbers
metrics.csv validation.csv test.csv   no test.csv if test_examples is 0; ε so far in
                                  metrics.csv is for a stopping round fixed in advance
timing.csv                        seconds per round, apart: all else is reproducible
tensorboard/                      the same numbers as event files
checkpoints/                      θ_t, θ^AGG_t and the state (a CheckpointStore)
```
"""

import contextlib
import functools
import logging
import os
import pathlib
from typing import Any

from absl import flags

from tff_agg import checkpoints, fields, privacy
from tff_agg.aliases import JsonObject
from tff_agg.experiment import needs, process_cache
from tff_agg.experiment.commands import flags as flag_fields
from tff_agg.experiment.commands import interruption
from tff_agg.experiment.config import TrainConfig
from tff_agg.experiment.run import identity, ledger, loop, recording, resume, run_folder
from tff_agg.experiment.run.recording import WEIGHTS, Observer, Outcome
from tff_agg.experiment.task import Task
from tff_agg.runtime import lane_times

_log = logging.getLogger(__name__)


def run(
    task: Task,
    out: str | os.PathLike,
    observer: Observer | None = None,
    *,
    cache: process_cache.ProcessCache | None = None,
) -> Outcome:
    """Trains to the end, from wherever the folder stands; does nothing if it is done.

    Nothing is written before everything has been checked.

    Args:
      task: What to train, bound to its configuration.
      out: The run's folder; made where it does not exist.
      observer: Receives how it goes.
      cache: Where runs of one process share what was compiled.

    Returns:
      The scores on the test sample (none if `test_examples` is 0, which leaves the test
      data alone) and where everything is.

    Raises:
      ConfigChangedError: The folder belongs to another configuration, or shows rounds
        of a run that cannot go on.
      loop.ResumeError: The run is not what it was begun as, or cannot go on.
      checkpoints.RunLockedError: Another process is at work in the folder.

    Example:
      config = StackOverflowConfig(store='data/so', rounds=10, noise_multiplier=1.0)
      run(StackOverflow(config), 'runs/1').test['aggregate']['all']['accuracy']
    """
    config = task.config
    observer = observer or Observer()
    folder = pathlib.Path(out)
    members = task.build_sampler()
    plan = task.build_plan()
    plan.check_sampler(members)
    _warn_about_delta(task)
    recorder = recording.Recorder(task, folder, plan, observer)
    history = run_folder.check(folder, task)
    observer.on_plan(plan, members)
    store = checkpoints.CheckpointStore(
        folder / "checkpoints", **_retention(config.keep_last, config.keep_every)
    )
    # Reported to its end, and no earlier state left that holds the secret seed.
    finished = (
        history is not None
        and config.rounds in history.reported
        and loop.has_ended(store, config.rounds)
    )
    if finished and recorder.is_tested() and config.rounds in store.rounds("aggregate"):
        # Nothing is left to do: spare the reader the compilation.
        observer.on_start(config.rounds, config.rounds)
        outcome = Outcome(folder, recorder.tested(), plan)
        observer.on_end(outcome)
        return outcome
    with contextlib.ExitStack() as stack:
        if cache is None:
            cache = stack.enter_context(
                contextlib.closing(process_cache.ProcessCache())
            )
        stack.enter_context(cache.running(config))
        # Refuses what is wrong with optimisers and averager.
        process = cache.process(task, plan)
        observer.on_disk(needs.disk(task, process, folder))
        stack.enter_context(checkpoints.RunLock(folder))
        who = run_identity(task, members)
        book = ledger.Ledger(folder)
        if (history := book.read()) is not None:
            resume.check_identity(history, who.facts(process), book)
        run_folder.claim(folder, task, plan, members)
        report = functools.partial(run_folder.write_report, folder, task, plan, members)
        try:
            outcome = _train(task, store, members, process, who, recorder)
        except BaseException:
            # What ended the run is what is reported, not that the disk is full.
            with contextlib.suppress(Exception):
                report(rounds_done=_rounds_done(book))
            raise
        report(rounds_done=_rounds_done(book))
        return outcome


def _warn_about_delta(task: Task) -> None:
    if text := privacy.delta_warning(task.config.delta, len(task.users())):
        _log.warning("%s", text)


def _rounds_done(book: ledger.Ledger) -> int:
    found = book.read()
    return 0 if found is None else max(found.last, 0)


def _train(
    task: Task,
    store: checkpoints.CheckpointStore,
    members: privacy.Sampler,
    process: loop.Process,
    who: identity.Identity,
    recorder: recording.Recorder,
) -> Outcome:
    """Runs the rounds that are left, then the test if one is wanted."""
    config = task.config
    packages = ("tff_agg", "pds", task.package)
    loop.train(
        process,
        identity=who,
        folder=store.folder.parent,
        rounds=config.rounds,
        cohort=task.reader(members),
        store=store,
        weight_names=task.weight_names,
        initialize=lambda: task.first_state(process),
        surroundings=identity.surroundings(packages) | _own_surroundings(process),
        on_start=recorder.start,
        on_round=recorder.record,
    )
    iterate, aggregate = (store.load(config.rounds, name) for name in WEIGHTS)
    return recorder.end(iterate, aggregate)


def _own_surroundings(process: loop.Process) -> JsonObject:
    """Returns what the last bits depend on where not TFF computes them."""
    return process.surroundings() if hasattr(process, "surroundings") else {}


def run_identity(task: Task, members: privacy.Sampler) -> identity.Identity:
    """Returns what a run is, besides what its process says of itself."""
    return identity.Identity(
        sampler=members.fingerprint,
        data=task.fingerprint,
        model={
            "task": task.package,
            # Who trains side by side decides the last bits.
            "group_size": task.group_size,
            "shapes": {name: list(shape) for name, shape in task.shapes.items()},
            "settings": fields.values(task.config, "process", "cohort", "seed"),
        },
    )


def _retention(last: int, every: int) -> dict[str, Any]:
    """Returns what the store is to keep of the weights; nothing said means all."""
    if not last:
        return {}
    both = {"keep_last": last, "keep_every": every}
    return {k: dict.fromkeys(WEIGHTS, number) for k, number in both.items() if number}


def _dry_run(task: Task, out: str) -> int:
    """Shows what a run would be."""
    from tff_agg.experiment import dry_run, terminal

    _warn_about_delta(task)
    found = dry_run.estimate(
        task, out, on_plan=lambda plan: print(terminal.plan_table(plan), flush=True)
    )
    print(terminal.wrapped_table(["dry run", ""], found.lines()))
    if found.disk.total > found.disk.free:
        print(f"The disk of {out} has too little room.")
        return 1
    return 0


def define_flags(task_class: type[Task], values: flags.FlagValues) -> None:
    """Defines the flags of this driver: one for each field of the configuration."""
    flag_fields.define_one(values, "string", "out", None, "the run's folder")
    text = "show plan, users, disk and time, and write nothing to --out"
    flag_fields.define_one(values, "bool", "dry_run", False, text)
    flag_fields.define(task_class.Config, values)
    task_class.define_data_flags(values)


def main(task_class: type[Task], values: flags.FlagValues) -> int:
    """Runs the training that the flags describe."""
    from tff_agg.experiment import terminal

    if not values.out:
        raise ValueError("--out must name the run's folder; it is empty")
    # Before the data: bad flags must not cost minutes of preparation.
    config = flag_fields.read(task_class.Config, values)
    ready = False

    def how_to_go_on() -> str:
        again = "run the same command again to go on."
        if not ready:
            return f"The data are not prepared yet; {again}"
        done = _rounds_done(ledger.Ledger(values.out))
        return (
            f"{done} of {config.rounds} rounds are done and saved in {values.out}; "
            f"{again}"
        )

    with interruption.plain_ending(how_to_go_on):
        config = task_class.with_data(config, values)
        task = task_class(config)
        # A task may have found its number of rounds.
        config = task.config
        if values.dry_run:
            return _dry_run(task, values.out)
        ready = True
        # Closed before an error is reported, which would stand above it otherwise.
        times = lane_times.LaneTimes()
        with (
            contextlib.closing(terminal.TrainingBar(task_class.metrics)) as bar,
            contextlib.closing(process_cache.ProcessCache(times)) as cache,
        ):
            run(task, values.out, bar, cache=cache)
    on_ray = isinstance(config, TrainConfig) and config.runtime == "ray"
    if on_ray and len(rows := times.table()) > 1:
        print(terminal.lane_table(rows))
    return 0
