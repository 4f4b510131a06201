"""Trains the next-word model with user-level privacy, from a configuration to a folder.

The folder of a run:
```
config.json environment.json      what was run, and on what
ledger.jsonl                      what the run is, and every round it has released
privacy_report.md .json           the guarantee, in words and in numbers
metrics.csv validation.csv test.csv   no test.csv if test_sentences is 0
timing.csv                        seconds a round, apart: all else is the same each time
tensorboard/                      the same numbers as event files
checkpoints/                      θ_t, θ^AGG_t and the state (a CheckpointStore)
```
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
from collections.abc import Callable
from typing import Any

from pds import groups, sampler, schedule
from stackoverflow import config as configs
from stackoverflow import model, recording, run_folder
from stackoverflow import workshop as workshops
from stackoverflow.recording import GROUPS, WEIGHTS, Observer, Outcome
from stackoverflow.token_store import TokenStore
from tff_agg import checkpoints, identity, ledger, loop, resume

_SCHEDULES = {
    "linear": schedule.linear,
    "cosine": schedule.cosine,
    "step": schedule.step,
    "constant": lambda period: schedule.constant(0.5),
}


def run(
    config: configs.TrainConfig,
    out: str | os.PathLike,
    observer: Observer | None = None,
    *,
    workshop: workshops.Workshop | None = None,
) -> Outcome:
    """Trains to the end, from wherever the folder stands; does nothing if it is done.

    Args:
      config: What to train.
      out: The run's folder; made where it does not exist.
      observer: Hears how it goes.
      workshop: Where runs of one process share what was compiled.

    Returns:
      The scores on the test sample (none if `test_sentences` is 0, which leaves the
      test data alone) and where everything is.

    Nothing is written before everything has been checked.

    Raises:
      ConfigChangedError: The folder belongs to another configuration, or shows rounds
        of a run that cannot go on.
      loop.ResumeError: The run is not what it was begun as, or cannot go on.
      checkpoints.RunLockedError: Another process is at work in the folder.

    Example:
      >>> config = TrainConfig(store='data/synthetic', rounds=10, noise_multiplier=1.0)
      >>> run(config, 'runs/first').test['aggregate']['all']['accuracy']
    """
    observer = observer or Observer()
    folder = pathlib.Path(out)
    data = TokenStore.open(config.store)
    cohorts = build_sampler(config, data)
    plan = config.build_plan()
    plan.check_sampler(cohorts)
    sizes = model_config(config, data)
    recorder = recording.Recorder(config, folder, data, sizes, plan, observer)
    history = run_folder.check(folder, config, data)
    observer.on_plan(plan, cohorts)
    store = checkpoints.CheckpointStore(
        folder / "checkpoints",
        keep_last=_per_weights(config.keep_last),
        keep_every=_per_weights(config.keep_every),
    )
    # Told to its end, and no earlier state left that holds the secret seed.
    finished = (
        history is not None
        and config.rounds in history.told
        and store.rounds("state") == [config.rounds]
    )
    if finished and recorder.is_tested() and config.rounds in store.rounds("aggregate"):
        # Nothing is left to do: spare the reader the compilation.
        observer.on_start(config.rounds, config.rounds)
        outcome = Outcome(folder, recorder.tested(), plan)
        observer.on_end(outcome)
        return outcome
    with contextlib.ExitStack() as stack:
        if workshop is None:
            workshop = stack.enter_context(contextlib.closing(workshops.Workshop()))
        stack.enter_context(workshop.running(config))
        # Refuses what is wrong with optimisers and averager.
        process = workshop.process(config, sizes, plan)
        stack.enter_context(checkpoints.RunLock(folder))
        who = run_identity(config, data, cohorts, sizes)
        book = ledger.Ledger(folder)
        if (history := book.read()) is not None:
            resume.check_identity(history, who.facts(process), book)
        run_folder.claim(folder, config, data, plan, cohorts)
        report = functools.partial(
            run_folder.write_report, folder, config, data, plan, cohorts
        )
        try:
            outcome = _train(config, store, data, cohorts, process, who, recorder)
        except BaseException:
            # What ended the run is what is told, not that the disk is full for this.
            with contextlib.suppress(Exception):
                report(rounds_done=_rounds_done(book))
            raise
        report(rounds_done=_rounds_done(book))
        return outcome


def _rounds_done(book: ledger.Ledger) -> int:
    found = book.read()
    return 0 if found is None else max(found.last, 0)


def build_sampler(config: configs.TrainConfig, data: TokenStore) -> sampler.Sampler:
    """Returns the sampler of a configuration: who takes part in which round."""
    populations: tuple[groups.Group, ...] = groups.everyone(data.users("train"))
    shift = None
    if config.pds:
        populations = groups.by_type(data, "train")
        shift = _SCHEDULES[config.pds_schedule](config.pds_period)
    return sampler.Sampler(
        groups=populations,
        cohort_size=config.clients_per_round,
        rounds=config.rounds,
        participation=config.build_participation(),
        seed=config.seed,
        schedule=shift,
        split=config.pds_split,
        when_exhausted=config.on_exhausted,
    )


def model_config(config: configs.TrainConfig, data: TokenStore) -> model.ModelConfig:
    """Returns the model's sizes for a configuration and its data."""
    return model.ModelConfig(
        vocab_size=len(data.vocabulary.words),
        embedding_size=config.embedding_size,
        lstm_size=config.lstm_size,
        max_tokens=data.max_tokens,
    )


def _train(
    config: configs.TrainConfig,
    store: checkpoints.CheckpointStore,
    data: TokenStore,
    cohorts: sampler.Sampler,
    process: Any,
    who: identity.Identity,
    recorder: recording.Recorder,
) -> Outcome:
    """Runs the rounds that are left, then the test if one is wanted."""
    loop.train(
        process,
        identity=who,
        folder=store.folder.parent,
        rounds=config.rounds,
        cohort=_cohort_reader(config, data, cohorts),
        store=store,
        initialize=lambda: workshops.first_state(
            process, config, model_config(config, data)
        ),
        surroundings=identity.surroundings(("tff_agg", "pds", "stackoverflow")),
        on_start=recorder.start,
        on_round=recorder.record,
    )
    iterate, aggregate = (store.load(config.rounds, name) for name in WEIGHTS)
    return recorder.end(iterate, aggregate)


def run_identity(
    config: configs.TrainConfig,
    data: TokenStore,
    cohorts: sampler.Sampler,
    sizes: model.ModelConfig,
) -> identity.Identity:
    """Returns what a run is, besides what its process says of itself."""
    return identity.Identity(
        sampler=cohorts.fingerprint,
        data=data.fingerprint,
        model={
            "sizes": dataclasses.asdict(sizes),
            "seed": config.seed,
            "max_sentences": config.max_sentences,
            "batch_size": config.batch_size,
            "local_epochs": config.local_epochs,
            "client_learning_rate": config.client_learning_rate,
            "insecure_noise_seed": config.insecure_noise_seed,
        },
    )


def _per_weights(value: int | None) -> dict[str, int]:
    return {} if value is None else dict.fromkeys(WEIGHTS, value)


def _cohort_reader(
    config: configs.TrainConfig, data: TokenStore, cohorts: sampler.Sampler
) -> Callable[[int], loop.Cohort]:
    """Returns the clients of a round with their data, a pure function of the round."""
    import tensorflow as tf

    def cohort(round_num: int) -> loop.Cohort:
        members = cohorts.sample(round_num)
        rows = [
            data.rows(
                user,
                type=group if group in GROUPS[1:] else None,
                max_sentences=config.max_sentences,
                seed=config.seed,
                round=round_num,
            )
            for user, group in members
        ]
        names = [data.user_name(user) for user, _ in members]
        digest = hashlib.blake2b("\n".join(names).encode(), digest_size=6)
        asked = sum(group == "question" for _, group in members)
        facts = {
            "clients": len(members),
            "question_clients": asked if config.pds else "",
            "sentences": sum(map(len, rows)),
            "cohort": digest.hexdigest(),
        }
        return loop.Cohort(
            client_ids=names,
            data=[tf.data.Dataset.from_tensors(r) for r in rows],
            digest=identity.arrays_digest(rows),
            costs=[len(r) for r in rows],
            facts=facts,
        )

    return cohort
