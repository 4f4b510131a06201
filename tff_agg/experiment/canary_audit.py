"""Audits a run: trains it once more with canaries among its users.

A finished run has no canaries, so its configuration is run again, with another noise
seed. The results go to the run's folder:
```
audit/audit.json    the figures under each threat model
audit/scores.png    the scores of canaries that took part and of those that did not
privacy_report.*    gets a section
```
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

from tff_agg import averaging, fields, files, privacy
from tff_agg.aliases import Structure
from tff_agg.audit import canaries, exposure, findings, noise_check, threats
from tff_agg.fields import described
from tff_agg.server import ServerStep, keeping_means, server_step

if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_federated as tff

    from tff_agg.federated.trainers import Trainer

# What is not asked for beside `membership`, which trains nothing.
_CANARIES = ("membership", (False,))


@dataclasses.dataclass(frozen=True)
class AuditConfig:
    """How a run is audited."""

    canaries: int = described(
        1000, "how many canaries; about half of them take part", at_least=10,
        only_with=_CANARIES,
    )  # fmt: skip
    users: bool = described(
        True, "train on the run's users as well", only_with=_CANARIES
    )
    window: int = described(
        10, "checkpoints of UTA and OPA", at_least=1, only_with=_CANARIES
    )
    confidence: float = described(0.95, "how often a sound run is not accused")
    insecure_seed: int | None = described(
        None,
        "known coins and a known noise seed, for tests; by default both are secret",
        only_with=_CANARIES,
    )

    def __post_init__(self) -> None:
        fields.check(self)
        if not 0.5 <= self.confidence < 1:
            raise ValueError(f"confidence must be in [0.5, 1); got {self.confidence!r}")


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """The run that is audited, as its task describes it.

    Attributes:
      plan: The privacy plan.
      server: The server's step.
      trainer: What a client does, a `Trainer`.
      build: Makes the process of a trainer, a plan and a server's step.
      start: Makes the first state of a process, with a noise seed of its own or, in
        tests, the one given.
      users_of_round: The datasets of a round's users.
      running: Runs TFF computations inside its block on the run's runtime.
    """

    plan: privacy.Plan
    server: ServerStep
    trainer: "Trainer"
    build: Callable[
        ["Trainer", privacy.Plan, ServerStep], "tff.learning.templates.LearningProcess"
    ]
    start: Callable[
        ["tff.learning.templates.LearningProcess", tuple[int, int] | None], Structure
    ]
    users_of_round: Callable[[int], Sequence["tf.data.Dataset"]]
    running: Callable[[], AbstractContextManager]


class Outcome(NamedTuple):
    """The result of an audit.

    Attributes:
      findings: One for each threat model; that of all iterates first.
      noise: How the noise compares with the plan; None where users took part.
      folder: Where figures and picture are.
    """

    findings: list[findings.Finding]
    noise: noise_check.NoiseCheck | None
    folder: pathlib.Path

    @property
    def refutes_claim(self) -> bool:
        """Whether any threat model shows more than was claimed."""
        return any(finding.refutes_claim for finding in self.findings)


def threat_models(server: ServerStep, window: int) -> tuple[threats.Threat, ...]:
    """Returns what attackers see: all iterates first, then less and less.

    Of a step that is not linear they see the noisy sums.
    """
    if not server.optimiser.linear:
        return (threats.noisy_sums(),)
    averager = server.averager
    return (
        threats.all_iterates(),
        threats.final_model(averager),
        threats.recycled_model(averaging.uta(window)),
        threats.last_models(window),
    )


def run(
    subject: Subject,
    config: AuditConfig,
    folder: str | os.PathLike,
    after_round: Callable[[int, Structure], None] = lambda round_number, metrics: None,
) -> Outcome:
    """Audits a run and writes the results into its folder.

    The canaries come on top of the cohorts. For this the audited plan's cohorts are
    larger and the server's learning rate is larger in proportion, so that every update
    and the noise move the model as far as they did.

    Args:
      subject: The run.
      config: How to audit it.
      folder: The run's folder.
      after_round: Called after each round with its number and its metrics.

    Raises:
      ValueError: The plan adds no noise, or the model is too small for the canaries.
      FileNotFoundError: The folder has no privacy report.

    Example:
      outcome = run(subject, AuditConfig(canaries=2000), 'runs/uta')
      outcome.findings[0].summary()
    """
    from tff_agg.audit import clients, rounds

    plan = subject.plan
    if plan.noise_multiplier == 0:
        raise ValueError("the run adds no noise: it claims nothing to be audited")
    if not (pathlib.Path(folder) / "privacy_report.json").is_file():
        raise FileNotFoundError(
            f"{folder} has no privacy_report.json to add the audit to: is it a run?"
        )
    places = exposure.strongest_rounds(plan, config.canaries)
    with subject.running():
        taking = canaries.make_canaries(
            clients.tensor_sizes(subject.trainer),
            places,
            probes=max(64, 3 * plan.rounds),
            seed=0,
            coins=config.insecure_seed,
        )
        most = max(len(taking.of_round(t)) for t in range(plan.rounds))
        seed = None if config.insecure_seed is None else (config.insecure_seed, 0)
        larger = dataclasses.replace(
            plan,
            cohort_size=plan.cohort_size + most,
            noise_seed_is_known=seed is not None,
        )
        growth = larger.cohort_size / plan.cohort_size
        is_linear = subject.server.optimiser.linear
        # Other optimisers take no notice of how large a mean is.
        step = (
            subject.server.scaled(growth)
            if is_linear
            else dataclasses.replace(
                subject.server, optimiser=keeping_means(subject.server.optimiser)
            )
        )
        process = subject.build(clients.with_canaries(subject.trainer), larger, step)
        evidence = rounds.run_with_canaries(
            process,
            larger,
            subject.trainer,
            taking,
            subject.users_of_round if config.users else lambda round_number: (),
            state=subject.start(process, seed),
            of_means=not is_linear,
            after_round=after_round,
        )
    # From a sum to a step it is the same server: a larger rate of a smaller mean.
    server = subject.server if is_linear else server_step(learning_rate=1 / growth)
    seen = threat_models(subject.server, min(config.window, plan.rounds))
    by_threat = [
        findings.audit(
            plan,
            server,
            taking,
            evidence,
            threat,
            confidence=config.confidence,
            among=len(seen),
        )
        for threat in seen
    ]
    noise = None
    if not config.users:
        noise = noise_check.check_noise(plan, server, evidence)
    outcome = Outcome(by_threat, noise, pathlib.Path(folder) / "audit")
    _write(outcome, config, pathlib.Path(folder))
    return outcome


def _write(outcome: Outcome, config: AuditConfig, folder: pathlib.Path) -> None:
    """Writes figures, picture and the report's section."""
    outcome.folder.mkdir(parents=True, exist_ok=True)
    content = {
        "audit": dataclasses.asdict(config),
        "findings": [finding.to_json() for finding in outcome.findings],
        "noise": None if outcome.noise is None else outcome.noise._asdict(),
        "paragraph": _paragraph(config),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    files.write_text(outcome.folder / "audit.json", text + "\n", mode=0o600)
    draw(outcome.findings, outcome.folder / "scores.png")
    privacy.add_audit(folder, content)


def draw(by_threat: Sequence[findings.Finding], path: pathlib.Path) -> None:
    """Draws the canaries' scores, a panel for each threat model."""
    from tff_agg.experiment.study import figures

    panels = {
        f"{finding.threat}\nclaimed {finding.claimed:.3g}, "
        f"estimate {finding.estimate:.3g}, lower bound {finding.lower_bound:.3g}": {
            "did not take part": finding.excluded,
            "took part": finding.included,
        }
        for finding in by_threat
    }
    figures.distributions(path, panels, "score")


def _paragraph(config: AuditConfig) -> str:
    """Returns in words what the figures rest on."""
    confidence = f"{100 * config.confidence:g} %"
    beside = (
        "beside the run's users. Releasing the audit's own models would be another "
        "release on these users, at the cost of another run"
        if config.users
        else "without other users"
    )
    return (
        f"The run was repeated with another noise seed and with {config.canaries} "
        f"canaries, of whom about half took part, {beside}. Claimed is the ε of "
        "training with the planned noise, while its seed is secret. The estimates fit "
        "normal distributions to the canaries' scores. The lower bounds hold together "
        f"with {confidence} confidence and need no normality of the scores; they rest "
        "on the canaries' directions being orthogonal and the planned noise "
        "independent over coordinates."
    )
