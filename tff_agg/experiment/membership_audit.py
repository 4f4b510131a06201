"""Attacks a run's stored models: does a user's loss tell who was trained on?

Nothing is trained. Users who took part in a round are compared with users who did not,
on the data that they brought or would have brought to the same rounds. What is found
goes to the run's folder:
```
audit/membership.json   the figures of every attack, and what the guarantee allows
audit/membership.csv    a row for every attack
audit/membership.png    the best attack's curve under the one that is allowed
privacy_report.*        gets a section
```
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pds.groups import Group
from tff_agg import fields, files, privacy
from tff_agg.aliases import JsonObject, Weights
from tff_agg.audit import membership
from tff_agg.audit.membership import Allowed, Found
from tff_agg.experiment import runs
from tff_agg.experiment.build import Compiled, build
from tff_agg.experiment.study import show
from tff_agg.experiment.study.show import Table
from tff_agg.experiment.task import UserTask
from tff_agg.fields import described
from tff_agg.privacy import Plan
from tff_agg.recycling import series

_IF_ASKED = ("membership", (True,))
#: A user with the group and the round of which the data are taken.
Key = tuple[int, str, int]


@dataclasses.dataclass(frozen=True)
class MembershipConfig:
    """How models are attacked by their loss."""

    membership: bool = described(
        False,
        "instead of canaries: does the loss of the stored models tell users who took "
        "part from users who did not?",
    )
    most_users: int = described(
        1000, "so many users of either kind, at most", at_least=10, only_with=_IF_ASKED
    )
    checkpoints: int = described(
        1, "how many of the last checkpoints are attacked", at_least=1,
        only_with=_IF_ASKED,
    )  # fmt: skip

    def __post_init__(self) -> None:
        fields.check(self)


class Compared(NamedTuple):
    """Whom an attack compares.

    Attributes:
      members: Users who took part before any of the attacked models was released.
      others: Users who took part in no round.
      whose: Who the others are, in words.
    """

    members: list[Key]
    others: list[Key]
    whose: str


class Outcome(NamedTuple):
    """The result of the attacks.

    Attributes:
      found: One for each checkpoint, and one for all of them together if several.
      allowed: What the guarantee allows at most; None where the run adds no noise.
      compared: How many users took part, how many did not, and who those are.
      table: All figures, to be shown.
      folder: Where they are.
    """

    found: Sequence[Found]
    allowed: Allowed | None
    compared: tuple[int, int, str]
    table: Table
    folder: pathlib.Path

    @property
    def refutes_claim(self) -> bool:
        """Whether the best attack, whose interval counts all, is above what may be."""
        auc = membership.best(self.found).auc
        return self.allowed is not None and auc.low > self.allowed.auc

    def summary(self) -> str:
        """Says in a line what the best attack found."""
        name, auc, *_ = membership.best(self.found)
        at_least = ""
        if self.allowed is not None:
            least = membership.least_epsilon(auc.low, self.allowed.delta)
            at_least = (
                f"; at most {self.allowed.auc:.3f} with the claimed epsilon "
                f"{self.allowed.epsilon:.3g}, of which this shows {least:.3f}"
            )
        return (
            f"AUC {auc.value:.3f} ({auc.low:.3f} to {auc.high:.3f}) at {name}{at_least}"
        )


def run(
    subject: runs.Run,
    config: MembershipConfig,
    confidence: float = 0.95,
    on_model: Callable[[], object] = lambda: None,
) -> Outcome:
    """Attacks the last checkpoints of a run and writes what is found.

    Args:
      subject: The run, of a task whose unit of privacy is a user.
      config: How to attack it.
      confidence: With which the intervals of all attacks hold together.
      on_model: Called after each checkpoint.

    Raises:
      ValueError: The task is trained on examples, or too few users can be compared.
      FileNotFoundError: The folder has no privacy report.

    Example:
      outcome = run(Run.open(StackOverflow, 'runs/uta'), MembershipConfig(True))
      outcome.summary()
    """
    task = subject.task
    if not isinstance(task, UserTask):
        raise ValueError(
            f"membership: {task.package!r} trains by DP-SGD, which hides single "
            "examples; the attack compares users"
        )
    if not (subject.folder / "privacy_report.json").is_file():
        raise FileNotFoundError(f"{subject.folder} has no privacy_report.json")
    # Round 0 has seen nobody.
    rounds = [r for r in subject.rounds(series.BROADCAST) if r][-config.checkpoints :]
    if not rounds:
        raise ValueError(f"{subject.folder} has no checkpoint after round 0")
    with Compiled() as compiled:
        built = build(task, compiled)
        plan = built.plan
        who = compared(task, built.unchecked_sampler, rounds, config.most_users)
    measure = _losses(task)
    sides = [_data(task, keys) for keys in (who.members, who.others)]
    if min(map(len, sides)) < 10:
        raise ValueError(
            f"membership: {len(sides[0])} users who took part and {len(sides[1])} "
            f"{who.whose} have data to compare; 10 of either are needed"
        )
    scores = []
    for number in rounds:
        weights = subject.load(number, series.BROADCAST)
        scores.append([measure(weights, side) for side in sides])
        on_model()
    named = {
        f"round {number}": both for number, both in zip(rounds, scores, strict=True)
    }
    if len(rounds) > 1:
        means = [np.mean(side, axis=0) for side in zip(*scores, strict=True)]
        named[f"mean of {len(rounds)}"] = means
    # All intervals hold together, so that the best of them may be picked.
    each = 1 - (1 - confidence) / len(named)
    found = [
        membership.attack(name, *both, confidence=each) for name, both in named.items()
    ]
    counts = (len(sides[0]), len(sides[1]), who.whose)
    return _written(found, plan, counts, confidence, subject)


def compared(
    task: UserTask, sampler: Any, rounds: Sequence[int], most: int
) -> Compared:
    """Chooses whom to compare: as many of either kind in every group of users.

    The others are users of the training data who took part in no round, or held-out
    users where the task has more of those. Each is given the group and the round of a
    member, so that nothing but having been trained on tells the two apart.

    Args:
      task: The task.
      sampler: Who takes part in which round.
      rounds: The rounds of the models.
      most: So many of either kind, at most.
    """
    names = [group.name for group in sampler.groups]
    seen: set[int] = set()
    last: dict[int, Key] = {}
    for t in range(max(rounds)):
        users = np.asarray(sampler.users(t))
        seen.update(map(int, users))
        if t < min(rounds):
            places = sampler.group_indices(t)
            for user, place in zip(users, places, strict=True):
                last[int(user)] = (int(user), names[place], t)
    members = {name: [k for k in last.values() if k[1] == name] for name in names}

    def pairs(pool: Sequence[Group]) -> dict[str, int]:
        return {g.name: min(len(members[g.name]), len(g.users)) for g in pool}

    whose = "users of the training data who took part in no round"
    pool: Sequence[Group] = [
        Group(g.name, np.array([u for u in g.users if int(u) not in seen], int))
        for g in sampler.groups
    ]
    if sum(pairs(pool).values()) < min(most, len(last)):
        held_out = task.heldout_users()
        if sum(pairs(held_out).values()) > sum(pairs(pool).values()):
            whose, pool = "held-out users", held_out
    found = Compared([], [], whose)
    share = min(1.0, most / max(sum(pairs(pool).values()), 1))
    random = np.random.default_rng(0)
    for group in pool:
        count = math.floor(share * pairs(pool)[group.name])
        own = members[group.name]
        chosen = [own[i] for i in random.permutation(len(own))[:count]]
        strangers = random.permutation(group.users)[:count]
        found.members.extend(chosen)
        found.others.extend(
            (int(user), group.name, t)
            for user, (_, _, t) in zip(strangers, chosen, strict=True)
        )
    return found


def _data(task: UserTask, keys: Sequence[Key]) -> list[Any]:
    """Returns what the model is scored on, of all who have anything."""
    clients = [task.client(*key) for key in keys]
    return [task.scored_on(client) for client in clients if client.examples]


def _losses(task: UserTask) -> Callable[[Weights, Sequence[Any]], np.ndarray]:
    """Returns what scores users by how well a model does on them, each by oneself."""
    evaluate = task.evaluator()
    losses = [metric for metric in task.metrics if metric.name == "loss"]
    metric = [*losses, task.metric][0]
    sign = 1.0 if metric.higher_is_better else -1.0

    def measure(weights: Weights, data: Sequence[Any]) -> np.ndarray:
        found = evaluate(weights, {f"user {i}": own for i, own in enumerate(data)})
        values = [found[f"user {i}"][metric.name] for i in range(len(data))]
        return sign * np.asarray(values, float)

    return measure


def _allowed(plan: Plan) -> Allowed | None:
    """Returns what the plan allows while its noise seed is secret."""
    if plan.noise_multiplier == 0:
        return None
    secret = dataclasses.replace(plan, noise_seed_is_known=False)
    return Allowed(secret.loss, secret.epsilon, secret.delta)


def table(found: Sequence[Found], allowed: Allowed | None) -> Table:
    """Lays the figures out, a line for each attack and one for what is allowed."""

    def share(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:.1f} %"

    def line(name: str, auc: str, figures: JsonObject) -> list[str]:
        at: Any = figures["true_positives_at"]
        advantage: Any = figures["advantage"]
        return [name, auc, f"{advantage:.3f}", *map(share, at.values())]

    rows = [
        line(
            one.name,
            f"{one.auc.value:.3f} ({one.auc.low:.3f} to {one.auc.high:.3f})",
            one.to_json(),
        )
        for one in found
    ]
    if allowed is not None:
        name = f"allowed by ε = {allowed.epsilon:.3g}"
        rows.append(line(name, f"{allowed.auc:.3f}", allowed.to_json()))
    rates = [f"TPR at FPR {100 * rate:g} %" for rate in membership.RATES]
    return Table(["attack", "AUC (interval)", "advantage", *rates], rows)


def _figures(found: Sequence[Found]) -> Table:
    """Returns the figures of every attack in full: for programs."""
    rates = [f"true_positives_at_{rate:g}" for rate in membership.RATES]
    rows = [
        [one.name, *one.auc, one.advantage,
         *("" if x is None else x for x in one.true_positives.values())]
        for one in found
    ]  # fmt: skip
    return Table(["attack", "auc", "low", "high", "advantage", *rates], rows)


def _written(
    found: Sequence[Found],
    plan: Plan,
    compared: tuple[int, int, str],
    confidence: float,
    subject: runs.Run,
) -> Outcome:
    """Writes figures, picture and the report's section."""
    allowed = _allowed(plan)
    shown = table(found, allowed)
    outcome = Outcome(found, allowed, compared, shown, subject.folder / "audit")
    outcome.folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {
        "members": compared[0],
        "others": compared[1],
        "who_the_others_are": compared[2],
        "confidence": confidence,
        "attacks": [one.to_json() for one in found],
        "allowed": None if allowed is None else allowed.to_json(),
        "table": {"head": list(shown.header), "rows": [list(r) for r in shown.rows]},
        "refutes_claim": outcome.refutes_claim,
        "paragraph": _paragraph(outcome, plan, confidence),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    # They come from users' data without noise: the owner's alone.
    files.write_text(outcome.folder / "membership.json", text + "\n", mode=0o600)
    show.save(_figures(found), outcome.folder / "membership.csv", mode=0o600)
    draw(outcome, outcome.folder / "membership.png")
    privacy.add_audit(subject.folder, content, "membership")
    return outcome


def draw(outcome: Outcome, path: pathlib.Path) -> None:
    """Draws the best attack under what is allowed, whole and where few are accused."""
    from tff_agg.experiment.study import figures

    best = membership.best(outcome.found)
    least = 0.5 / outcome.compared[1]
    figure, axes = figures.new_figure(2, height=4.6)
    grey, blue, orange, green = figures.COLOURS[:4]
    for axis, rates in zip(
        axes, (np.linspace(0, 1, 501), np.geomspace(least, 1, 501)), strict=True
    ):
        axis.plot(rates, rates, ":", color=grey, label="guessing")
        false, true = best.curve
        # Straight lines between thresholds: of ties each is called as often.
        label = f"{best.name}: AUC {best.auc.value:.3f}"
        axis.plot(false, true, color=blue, label=label)
        if (allowed := outcome.allowed) is not None:
            most = allowed.by_epsilon(rates)
            words = f"ε = {allowed.epsilon:.3g} at δ = {allowed.delta:g}"
            axis.plot(rates, most, "--", color=green, label=f"allowed by {words}")
            if allowed.is_gaussian:
                most = allowed.true_positives(rates)
                label = "allowed by the run's Gaussian mechanism"
                axis.plot(rates, most, color=orange, label=label)
        axis.set_xlabel("false positives: others called members")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("true positives: members called members")
    axes[0].set_title("who took part, by the loss")
    axes[1].set_title("the same, where few are accused")
    axes[1].set_xscale("log")
    axes[1].set_xlim(least, 1)
    figures.legends(figure, axes)
    figures.save(figure, path)


def _paragraph(outcome: Outcome, plan: Plan, confidence: float) -> str:
    """Returns in words what the figures are and what they are not."""
    members, others, whose = outcome.compared
    text = (
        "Whom the stored models were trained on was guessed from the loss on a user's "
        f"own data: {members:,} users who took part, against {others:,} {whose}. An "
        f"AUC of 0.5 is guessing; the intervals hold together with {100 * confidence:g}"
        " % confidence, over the choice of the users. This is a lower bound of what "
        "the models give away, by one weak attacker: that it finds nothing proves "
        "nothing. "
    )
    if outcome.allowed is None:
        text += "The run adds no noise: nothing limits what an attacker may find. "
    else:
        exactly = (
            ", exactly, for a Gaussian mechanism" if outcome.allowed.is_gaussian else ""
        )
        text += (
            "The last line is the most that the guarantee allows any attacker where "
            f"the two sorts of users are alike{exactly}. "
        )
        if plan.noise_seed_is_known:
            text += (
                "This run's noise seed is known, so that it has no guarantee: the line "
                "is that of the same run with a secret seed. "
            )
    if outcome.refutes_claim:
        text += (
            "The best attack is ABOVE what is allowed: the run leaks more than it "
            "claims, or the two sorts of users differ in more than having taken part. "
        )
    return text + (
        "These figures were computed on users' data without noise. No ε covers them."
    )
