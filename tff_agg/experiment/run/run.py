"""Trains a task with differential privacy, from a configuration to a run folder."""

import contextlib
import logging
import os
import pathlib
from typing import Any

from tff_agg import privacy
from tff_agg.aliases import JsonObject
from tff_agg.experiment.build import Build, Compiled, Process, build, needs
from tff_agg.experiment.run import identity, loop, recording, releasing
from tff_agg.experiment.run.recording import Observer, Outcome
from tff_agg.experiment.run.run_folder import RunFolder
from tff_agg.experiment.task import Task
from tff_agg.privacy import signal
from tff_agg.recycling import series

_log = logging.getLogger(__name__)


def run(
    task: Task,
    out: str | os.PathLike,
    observer: Observer | None = None,
    *,
    compiled: Compiled | None = None,
    until: int | None = None,
) -> Outcome:
    """Trains to the end, from wherever the folder stands; does nothing if it is done.

    Nothing is written before everything has been checked.

    Args:
      task: What to train, bound to its configuration.
      out: The run's folder; made where it does not exist.
      observer: Receives how it goes.
      compiled: Where runs of one process share what was compiled.
      until: Stops after so many rounds of the plan, untested; another call goes on.

    Returns:
      The scores on the test sample (none if `test_examples` is 0, which leaves the test
      data alone) and where everything is.

    Raises:
      loop.IdentityError: The folder belongs to another run.
      loop.ResumeError: It shows rounds of a run that cannot go on.
      checkpoints.RunLockedError: Another process is at work in the folder.

    Example:
      config = StackOverflowConfig(store='data/so', rounds=10, noise_multiplier=1.0)
      run(StackOverflow(config), 'runs/1').test['aggregate']['all']['accuracy']
    """
    observer = observer or Observer()
    with contextlib.ExitStack() as stack:
        if compiled is None:
            compiled = stack.enter_context(Compiled())
        rounds = min(until or task.config.rounds, task.config.rounds)
        return _run(build(task, compiled), pathlib.Path(out), observer, rounds)


def _run(
    built: Build[Any], out: pathlib.Path, observer: Observer, rounds: int
) -> Outcome:
    """Checks everything, and then trains what is left."""
    task, config = built.task, built.task.config
    members, plan = built.sampler, built.plan
    warn_about_delta(task)
    folder = RunFolder(out, config.keep_last, config.keep_every)
    recorder = recording.Recorder(task, folder, plan, observer)
    folder.refuse_other(task)
    observer.on_plan(plan, members)
    observer.on_signal(told(task, plan))
    if releasing.is_reported_to_its_end(folder, config.rounds) and recorder.is_tested:
        # Nothing is left to do: spare the reader the compilation.
        recorder.start(config.rounds)
        return recorder.ended()
    with built.running():
        # Refuses what is wrong with optimisers and averager.
        process = built.process
        observer.on_disk(needs.disk(built, folder.path))
        whole = _identity(built)
        with folder.claim(built, whole.facts(process)):
            return _train(built, folder, whole, recorder, rounds)


def told(task: Task, plan: privacy.Plan) -> list[str]:
    """Returns what the noise leaves of the signal; warns of runs that cannot learn."""
    recipe = task.config if isinstance(task.config, privacy.PrivacyRecipe) else None
    return signal.told(plan, task.num_parameters, recipe, task.population_size)


def warn_about_delta(task: Task) -> None:
    """Says so where δ is too large for the population."""
    if text := privacy.delta_warning(task.config.delta, task.population_size):
        _log.warning("%s", text)


def _train(
    built: Build[Any],
    folder: RunFolder,
    whole: identity.Identity,
    recorder: recording.Recorder,
    rounds: int,
) -> Outcome:
    """Runs the rounds that are left, then the test if one is wanted."""
    task, process = built.task, built.process
    packages = ("tff_agg", "pds", task.package)
    loop.train(
        process,
        identity=whole,
        folder=folder,
        rounds=rounds,
        cohort=built.cohort,
        is_drawn=built.is_drawn,
        weight_names=task.weight_names,
        initialize=built.initialize,
        surroundings=identity.surroundings(packages) | _own_surroundings(process),
        on_start=recorder.start,
        on_round=recorder.record,
    )
    if rounds < task.config.rounds:
        return recorder.ended()
    iterate, aggregate = (folder.store.load(rounds, name) for name in series.NAMES)
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
