"""Trains a task with differential privacy, from a configuration to a run folder."""

import contextlib
import functools
import logging
import os
import pathlib
from typing import Any

from tff_agg import checkpoints, privacy
from tff_agg.aliases import JsonObject
from tff_agg.experiment.build import Build, Compiled, Process, build, needs
from tff_agg.experiment.run import identity, ledger, loop, recording, resume, run_folder
from tff_agg.experiment.run.recording import WEIGHTS, Observer, Outcome
from tff_agg.experiment.task import Task
from tff_agg.privacy import signal

_log = logging.getLogger(__name__)


def run(
    task: Task,
    out: str | os.PathLike,
    observer: Observer | None = None,
    *,
    compiled: Compiled | None = None,
) -> Outcome:
    """Trains to the end, from wherever the folder stands; does nothing if it is done.

    Nothing is written before everything has been checked.

    Args:
      task: What to train, bound to its configuration.
      out: The run's folder; made where it does not exist.
      observer: Receives how it goes.
      compiled: Where runs of one process share what was compiled.

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
    observer = observer or Observer()
    with contextlib.ExitStack() as stack:
        if compiled is None:
            compiled = stack.enter_context(Compiled())
        return _run(build(task, compiled), pathlib.Path(out), observer)


def _run(built: Build[Any], folder: pathlib.Path, observer: Observer) -> Outcome:
    """Checks everything, and then trains what is left."""
    task, config = built.task, built.task.config
    members, plan = built.sampler, built.plan
    warn_about_delta(task)
    recorder = recording.Recorder(task, folder, plan, observer)
    history = run_folder.check(folder, task)
    observer.on_plan(plan, members)
    observer.on_signal(told(task, plan))
    store = checkpoints.CheckpointStore(
        folder / "checkpoints", **retention(config.keep_last, config.keep_every)
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
    with built.running(), contextlib.ExitStack() as stack:
        # Refuses what is wrong with optimisers and averager.
        process = built.process
        observer.on_disk(needs.disk(built, folder))
        stack.enter_context(checkpoints.RunLock(folder))
        whole = _identity(built)
        book = ledger.Ledger(folder)
        if (history := book.read()) is not None:
            resume.check_identity(history, whole.facts(process), book)
        run_folder.claim(folder, task, plan, members)
        report = functools.partial(run_folder.write_report, folder, task, plan, members)
        try:
            outcome = _train(built, store, whole, recorder)
        except BaseException:
            # What ended the run is what is reported, not that the disk is full.
            with contextlib.suppress(Exception):
                report(rounds_done=rounds_done(book))
            raise
        report(rounds_done=rounds_done(book))
        return outcome


def told(task: Task, plan: privacy.Plan) -> list[str]:
    """Returns what the noise leaves of the signal; warns of runs that cannot learn."""
    recipe = task.config if isinstance(task.config, privacy.PrivacyRecipe) else None
    return signal.told(plan, task.num_parameters, recipe, task.population_size)


def warn_about_delta(task: Task) -> None:
    """Says so where δ is too large for the population."""
    if text := privacy.delta_warning(task.config.delta, task.population_size):
        _log.warning("%s", text)


def rounds_done(book: ledger.Ledger) -> int:
    """Returns how many rounds a ledger says are done."""
    history = book.read()
    return 0 if history is None else max(history.last, 0)


def _train(
    built: Build[Any],
    store: checkpoints.CheckpointStore,
    whole: identity.Identity,
    recorder: recording.Recorder,
) -> Outcome:
    """Runs the rounds that are left, then the test if one is wanted."""
    task, process = built.task, built.process
    packages = ("tff_agg", "pds", task.package)
    rounds = task.config.rounds
    loop.train(
        process,
        identity=whole,
        folder=store.folder.parent,
        rounds=rounds,
        cohort=built.cohort,
        store=store,
        weight_names=task.weight_names,
        initialize=built.initialize,
        surroundings=identity.surroundings(packages) | _own_surroundings(process),
        on_start=recorder.start,
        on_round=recorder.record,
    )
    iterate, aggregate = (store.load(rounds, name) for name in WEIGHTS)
    return recorder.end(iterate, aggregate)


def _own_surroundings(process: Process) -> JsonObject:
    """Returns what the last bits depend on where not TFF computes them."""
    return process.surroundings() if hasattr(process, "surroundings") else {}


def _identity(built: Build[Any]) -> identity.Identity:
    """Returns what a run is, besides what its process says of itself."""
    return identity.Identity(
        sampler=built.sampler.fingerprint,
        data=built.task.fingerprint,
        model=built.model_facts(),
    )


def retention(last: int, every: int) -> dict[str, Any]:
    """Returns what the store is to keep of the weights; nothing said means all."""
    if not last:
        return {}
    both = {"keep_last": last, "keep_every": every}
    return {k: dict.fromkeys(WEIGHTS, number) for k, number in both.items() if number}
