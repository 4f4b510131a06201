"""Does a run leak more than it claims? Trains it again with canaries and attacks it.

  python -m stackoverflow.audit --run=runs/uta
  python -m stackoverflow.audit --run=runs/uta --nousers --canaries=4000

Prints, for each threat model, the claimed ε, an estimate with its confidence interval
and a lower bound; writes them with a picture to the run's folder and its privacy
report. The exit status is 1 if a lower bound is above the claim.
"""

import contextlib
import dataclasses
from typing import Any

from absl import app, flags

from tff_agg.experiment.drivers import audit as driver

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines all flags of the binary."""
    flags.DEFINE_string("run", None, "the run's folder", required=True)
    flags.DEFINE_string("store", None, "the token store, if it has been moved")
    defaults = driver.AuditConfig()
    flags.DEFINE_integer("canaries", defaults.canaries, "how many canaries")
    flags.DEFINE_bool("users", defaults.users, "train on the run's users as well")
    flags.DEFINE_integer("window", defaults.window, "checkpoints of UTA and OPA")
    flags.DEFINE_float(
        "confidence", defaults.confidence, "how often a sound run is not accused"
    )
    flags.DEFINE_integer(
        "insecure_seed", None, "known coins and a known noise seed, for tests"
    )


def config_from_flags() -> driver.AuditConfig:
    """Returns the configuration that the flags give."""
    fields = dataclasses.fields(driver.AuditConfig)
    return driver.AuditConfig(**{f.name: getattr(FLAGS, f.name) for f in fields})


def subject_of(
    folder: str, store: str | None, stack: contextlib.ExitStack
) -> driver.Subject:
    """Returns the run of a folder as the driver wants it.

    What it starts is ended when `stack` is closed.
    """
    import tensorflow as tf

    from stackoverflow.model import local_training
    from tff_agg.audit import threats
    from tff_agg.experiment import config as configs
    from tff_agg.experiment import process_cache, runs
    from tff_agg.experiment.drivers import train
    from tff_agg.learning import process as processes

    found = runs.Run.open(folder, store)
    names = {field.name for field in dataclasses.fields(configs.TrainConfig)}
    config = configs.TrainConfig(
        **{k: v for k, v in found.config.items() if k in names}
    )
    # The audit's noise is its own: a round may not come twice with the same.
    own_noise = dataclasses.replace(config, insecure_noise_seed=None)
    cohorts = train.build_sampler(config, found.data)
    workshop = stack.enter_context(contextlib.closing(process_cache.Workshop()))

    def build(trainer: Any, plan: Any, learning_rate: float) -> Any:
        return processes.build_dp_ftrl_process(
            trainer,
            plan=plan,
            averager=config.build_averager(),
            server_learning_rate=learning_rate,
            server_momentum=config.server_momentum,
            nesterov=config.nesterov,
            step_from=config.step_from,
            on_non_finite=config.on_non_finite,
        )

    def start(process: Any, seed: tuple[int, int] | None) -> Any:
        state = process_cache.first_state(process, own_noise, found.sizes)
        return state if seed is None else processes.with_noise_seed(state, seed)

    def users_of_round(t: int) -> list[tf.data.Dataset]:
        return [
            tf.data.Dataset.from_tensors(
                found.data.rows(
                    user,
                    type=group if group in train.GROUPS[1:] else None,
                    max_sentences=config.max_sentences,
                    seed=config.seed,
                    round=t,
                )
            )
            for user, group in cohorts.sample(t)
        ]

    return driver.Subject(
        plan=config.build_plan(),
        learning_rate=config.server_learning_rate,
        server=threats.ServerStep(
            scale=1.0,
            momentum=config.server_momentum,
            nesterov=config.nesterov,
            averager=config.build_averager(),
            step_from=config.step_from,
        ),
        trainer=local_training.packed_trainer(
            found.sizes,
            config.client_learning_rate,
            batch_size=config.batch_size,
            epochs=config.local_epochs,
        ),
        build=build,
        start=start,
        users_of_round=users_of_round,
        running=lambda: workshop.running(config),
    )


def table(outcome: driver.Outcome) -> str:
    """Lays the figures out, a line for each threat model."""
    from tff_agg.experiment import terminal

    rows = [
        [
            found.threat,
            f"{found.claimed:.3f}",
            f"{found.estimate:.3f}",
            f"{found.interval[0]:.3f} to {found.interval[1]:.3f}",
            f"{found.lower_bound:.3f}",
            f"{found.correct} of {found.canaries}",
        ]
        for found in outcome.findings
    ]
    head = ("released", "claimed ε", "estimate", "interval", "lower bound", "guessed")
    return terminal.table(head, rows)


def show_audit(folder: str, store: str | None, config: driver.AuditConfig) -> int:
    """Audits a run, prints what is found and returns the exit status."""
    import tqdm

    with contextlib.ExitStack() as stack:
        subject = subject_of(folder, store, stack)
        bar = stack.enter_context(
            tqdm.tqdm(
                total=subject.plan.rounds, desc="audit", unit="round", mininterval=0.5
            )
        )
        outcome = driver.run(subject, config, folder, lambda t, metrics: bar.update(1))
    print(table(outcome))
    if outcome.noise is not None:
        print(
            f"noise: {outcome.noise.variance:.4f} of the planned variance, "
            f"correlation {outcome.noise.correlation:.4f} between rounds, p value "
            f"{outcome.noise.p_value:.3g}"
        )
    print(f"Everything is in {outcome.folder}")
    worst = max(outcome.findings, key=lambda found: found.lower_bound)
    print((worst if outcome.refutes_claim else outcome.findings[0]).summary())
    return 1 if outcome.refutes_claim else 0


def main(argv: list[str]) -> int:
    """Audits the run that the flags name."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    from tff_agg.experiment import terminal

    with terminal.plain_errors():
        return show_audit(FLAGS.run, FLAGS.store, config_from_flags())


def entry_point() -> None:
    """Runs as the console command `tff-agg-audit`."""
    from tff_agg.experiment import terminal

    terminal.run_binary(main, define_flags)


if __name__ == "__main__":
    entry_point()
