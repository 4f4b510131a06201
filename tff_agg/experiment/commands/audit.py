"""Does a run leak more than it claims? Trains it again with canaries and attacks it.

Prints, for each threat model, the claimed ε, an estimate with its confidence interval
and a lower bound; writes them with a picture to the run's folder and its privacy
report. The exit status is 1 if a lower bound is above the claim.

With --membership it trains nothing: it attacks the models that the run has stored, by
the loss of users who took part and of users who did not.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tff_agg.aliases import Structure
from tff_agg.experiment import canary_audit, membership_audit, progress, runs
from tff_agg.experiment.build.start import first_weights
from tff_agg.experiment.canary_audit import AuditConfig, Subject
from tff_agg.experiment.commands import Command
from tff_agg.experiment.commands.of_runs import OfRun
from tff_agg.experiment.membership_audit import MembershipConfig
from tff_agg.experiment.study import show
from tff_agg.experiment.study.show import Table
from tff_agg.experiment.task import Task, UserTask
from tff_agg.privacy import Plan
from tff_agg.server import ServerStep
from tff_agg.server import state as states

if TYPE_CHECKING:
    import tensorflow_federated as tff


def subject_of(run: runs.Run, stack: contextlib.ExitStack) -> Subject:
    """Returns a run as the audit wants it.

    What it starts is ended when `stack` is closed.
    """
    from tff_agg.experiment.build import Compiled, dp_ftrl
    from tff_agg.federated import process as processes
    from tff_agg.federated import trainers

    if not isinstance(run.task, UserTask):
        raise ValueError(
            f"run: {run.task.package!r} trains by DP-SGD; canaries take part in "
            "DP-FTRL rounds only, so that it cannot be audited"
        )
    # The audit's noise is its own: a round may not come twice with the same. Canaries
    # are clients of their own, so that users train one by one.
    config = dataclasses.replace(
        run.task.config, insecure_noise_seed=None, group_users=1
    )
    task = run.task.with_config(config)
    built = dp_ftrl.FederatedBuild(task, stack.enter_context(Compiled()))
    trainer: Any = task.model()
    if not isinstance(trainer, trainers.Trainer):
        trainer = trainers.trainer_from_model(
            trainer, config.client_learning_rate, config.local_epochs
        )

    def build(
        trainer: trainers.Trainer, plan: Plan, step: ServerStep
    ) -> "tff.learning.templates.LearningProcess":
        return processes.build_dp_ftrl_process(
            trainer,
            plan=plan,
            **dp_ftrl.server_arguments(config, step),
        )

    def start(
        process: "tff.learning.templates.LearningProcess", seed: tuple[int, int] | None
    ) -> Structure:
        state = dp_ftrl.first_state(process, first_weights(task), None)
        return state if seed is None else states.with_noise_seed(state, seed)

    return Subject(
        plan=built.plan,
        server=config.build_server_step(task.num_parameters),
        trainer=trainer,
        build=build,
        start=start,
        users_of_round=lambda t: built.cohort(t).data,
        running=built.running,
    )


def table(findings: Iterable[Mapping[str, Any]]) -> Table:
    """Lays the figures out, a line for each threat model.

    Args:
      findings: As `audit.json` has them: None stands for infinity.
    """

    def number(value: float | None) -> str:
        return "inf" if value is None else f"{value:.3f}"

    rows = [
        [
            finding["threat"],
            number(finding["claimed"]),
            number(finding["estimate"]),
            " to ".join(map(number, finding["interval"])),
            number(finding["lower_bound"]),
            f"{finding['correct']} of {finding['canaries']}",
        ]
        for finding in findings
    ]
    head = ("released", "claimed ε", "estimate", "interval", "lower bound", "guessed")
    return Table(head, rows)


def audit_run(run: runs.Run, config: AuditConfig) -> int:
    """Audits a run, prints the results and returns the exit status."""
    with contextlib.ExitStack() as stack:
        subject = subject_of(run, stack)
        bar = stack.enter_context(
            contextlib.closing(
                progress.open_bar("audit", subject.plan.rounds, unit="round")
            )
        )
        outcome = canary_audit.run(
            subject, config, run.folder, lambda t, metrics: bar.update(1)
        )
    print(show.render(table(finding.to_json() for finding in outcome.findings)))
    if outcome.noise is not None:
        print(
            f"noise: {outcome.noise.variance:.4f} of the planned variance, "
            f"correlation {outcome.noise.correlation:.4f} between rounds, p value "
            f"{outcome.noise.p_value:.3g}"
        )
    print(f"Everything is in {outcome.folder}")
    worst = max(outcome.findings, key=lambda finding: finding.lower_bound)
    print((worst if outcome.refutes_claim else outcome.findings[0]).summary())
    return 1 if outcome.refutes_claim else 0


def attack_run(run: runs.Run, config: MembershipConfig, confidence: float) -> int:
    """Attacks a run's models, prints what is found and returns the exit status."""
    with contextlib.closing(
        progress.open_bar("membership", config.checkpoints, unit="model")
    ) as bar:
        outcome = membership_audit.run(run, config, confidence, lambda: bar.update(1))
    print(show.render(outcome.table))
    members, others, whose = outcome.compared
    print(f"{members:,} users who took part, {others:,} {whose}")
    print(f"Everything is in {outcome.folder}")
    print(outcome.summary())
    return 1 if outcome.refutes_claim else 0


def audit(
    task_class: type[Task],
    of_run: OfRun,
    config: AuditConfig,
    by_loss: MembershipConfig,
) -> int:
    """Audits the run that the options name."""
    run = runs.Run.open(task_class, of_run.run, of_run.data)
    if by_loss.membership:
        return attack_run(run, by_loss, config.confidence)
    return audit_run(run, config)


def command(task: type[Task]) -> Command:
    """Returns the command of a task."""
    return Command(
        functools.partial(audit, task), (OfRun, AuditConfig, MembershipConfig)
    )
