"""The audit: from what was released to an estimate, bounds and a verdict."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_agg import checks
from tff_agg.aliases import JsonObject
from tff_agg.audit import bounds, exposure, scores
from tff_agg.audit.canaries import Canaries
from tff_agg.audit.threats import Threat
from tff_agg.privacy import gaussian
from tff_agg.privacy.plan import Plan
from tff_agg.server import ServerStep

# Canaries that show less than this part of what the strongest shows are not guessed.
_STRONG = 0.5
# For the bounds that hold for dependent canaries: the part that is guessed, the surest.
_SUREST = 0.25


@dataclasses.dataclass(frozen=True, eq=False)
class Replay:
    """A round that was computed and released once more, with other data.

    Attributes:
      round: Which.
      canaries: [canaries], the projections of the second θ_{round+1} − θ_round.
      probes: [probes], likewise.
      took_part: [canaries], whether each, if included, took part in the second.
    """

    round: int
    canaries: np.ndarray
    probes: np.ndarray
    took_part: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Evidence:
    """What a run with canaries released, as far as an audit needs it.

    Attributes:
      canaries: [rounds + 1, canaries], θ_0, θ_1, … projected on the canaries.
      probes: [rounds + 1, probes], projected on what nobody sent.
      replays: Rounds that were released more than once.
    """

    canaries: np.ndarray
    probes: np.ndarray
    replays: Sequence[Replay] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Finding:
    """What an audit found under one threat model.

    All ε are at the plan's δ and for the user that shows the most.

    Attributes:
      threat: The threat model's name.
      statistic: Whose scores they are: 'planned noise', 'measured noise' or 'replayed
        rounds'.
      claimed: The ε of training with the planned noise and a secret seed. A run whose
        seed is known has no guarantee; its noise can be audited all the same.
      delta: δ.
      estimate: ε estimated from a normal fit of both kinds' scores.
      interval: Its two-sided confidence interval.
      lower_bound: The bound on ε from guesses, for independent canaries.
      lower_bound_if_dependent: For μ-GDP mechanisms of any other kind.
      lower_bound_any_mechanism: For (ε, δ)-DP mechanisms of any kind.
      confidence: Of the interval and the bounds.
      canaries: How many were guessed.
      correct: How many of them rightly.
      included: The scores of those who took part.
      excluded: The scores of those who did not.
    """

    threat: str
    statistic: str
    claimed: float
    delta: float
    estimate: float
    interval: tuple[float, float]
    lower_bound: float
    lower_bound_if_dependent: float
    lower_bound_any_mechanism: float
    confidence: float
    canaries: int
    correct: int
    included: np.ndarray
    excluded: np.ndarray

    @property
    def refutes_claim(self) -> bool:
        """Whether the run leaks more than was claimed."""
        return self.lower_bound > self.claimed * (1 + 1e-9)

    def summary(self) -> str:
        """Returns the three figures in one line."""
        return (
            f"claimed epsilon {self.claimed:.4g}, estimate {self.estimate:.4g}, "
            f"lower bound {self.lower_bound:.4g}"
        )

    def to_json(self) -> JsonObject:
        """Returns the figures, without the scores, as JSON values."""
        figures = dataclasses.asdict(self)
        del figures["included"], figures["excluded"]
        figures["interval"] = list(self.interval)
        figures["refutes_claim"] = self.refutes_claim
        # JSON knows no infinity.
        return {
            name: checks.finite(value) if isinstance(value, float) else value
            for name, value in figures.items()
        }


def audit(
    plan: Plan,
    server: ServerStep,
    canaries: Canaries,
    evidence: Evidence,
    threat: Threat,
    *,
    confidence: float = 0.95,
    among: int = 1,
) -> Finding:
    """Audits a run under one threat model.

    Several statistics are tried, each at its share of the error allowed: the noise as
    planned, the noise as it shows on the probes, and, where rounds were released more
    than once, the canaries of these rounds alone. The finding is that of the
    statistic with the largest bound.

    Args:
      plan: What is claimed, supposing that its noise seed is secret.
      server: The server's step.
      canaries: Who they were and who took part.
      evidence: What the run released.
      threat: What of it the attacker sees.
      confidence: How often, at least, a sound run is not accused.
      among: How many audits of one run share the error allowed.

    Raises:
      ValueError: The plan adds no noise, or the parts do not fit together.

    Example:
      finding = audit(plan, server, canaries, evidence, all_iterates())
      finding.summary()  # 'claimed epsilon 4.89, estimate 4.7, lower bound 4.1'
    """
    if plan.noise_multiplier == 0:
        raise ValueError("the plan adds no noise: it claims nothing to be audited")
    shape = (plan.rounds + 1, len(canaries))
    if evidence.canaries.shape != shape:
        raise ValueError(
            f"evidence.canaries must be θ_0 … θ_{plan.rounds} on {shape[1]} canaries, "
            f"{shape}; got {evidence.canaries.shape}"
        )
    strengths = exposure.strengths(plan, _matrix(plan), list(canaries.rounds))
    tests = _statistics(plan, server, canaries, evidence, threat)
    each = 1 - (1 - confidence) / (len(tests) * among)
    best, mu = tests[0], -1.0
    for test in tests:
        right = _guessed_right(test, canaries.included)
        bound = bounds.lower_bound(
            int(right.sum()), strengths[test.guessed], confidence=each
        )
        if bound > mu:
            best, mu = test, bound
    return _finding(plan, canaries.included, threat.name, confidence, each, best, mu)


class _Test(NamedTuple):
    """A statistic: its name, its scores, and which canaries are guessed by it."""

    name: str
    scores: scores.Scores
    guessed: np.ndarray

    def sureness(self) -> np.ndarray:
        """Returns the guesses about those canaries, see `scores.guess`."""
        values, shown = self.scores
        return scores.guess(scores.Scores(values[self.guessed], shown[self.guessed]))


def _guessed_right(test: _Test, included: np.ndarray) -> np.ndarray:
    return (test.sureness() > 0) == included[test.guessed]


def _matrix(plan: Plan) -> np.ndarray:
    return np.asarray(plan.mechanism.matrix(plan.rounds), float)


def _statistics(
    plan: Plan,
    server: ServerStep,
    canaries: Canaries,
    evidence: Evidence,
    threat: Threat,
) -> list[_Test]:
    """Returns the statistics that are tried."""
    unit = plan.clip_norm
    shares = threat.release(server.response(plan.rounds)) / plan.cohort_size
    rows = threat.release(evidence.canaries) / unit
    probes = threat.release(evidence.probes) / unit
    took_part = np.zeros((plan.rounds, len(canaries)))
    for i, own in enumerate(canaries.rounds):
        np.add.at(took_part[:, i], list(own), 1.0)
    expected = shares @ took_part
    noise = plan.noise_stddev / plan.clip_norm
    planned = scores.matched_filter(
        rows, expected, scores.planned_covariance(shares, _matrix(plan), noise)
    )
    # Chosen by what the plan expects to see, so that no luck of the run is in it.
    strong = planned.shown >= _STRONG * planned.shown.max()
    tests = [_Test("planned noise", planned, strong)]
    twice = np.zeros(len(canaries), bool)
    if evidence.replays and len(shares) == plan.rounds:
        for replay in evidence.replays:
            other = took_part.copy()
            twice |= took_part[replay.round] != replay.took_part
            other[replay.round] = replay.took_part
            share = shares[replay.round]
            rows = np.vstack([rows, replay.canaries / unit])
            probes = np.vstack([probes, replay.probes / unit])
            expected = np.vstack([expected, share @ other])
    covariance = scores.measured_covariance(probes)
    if covariance is not None and len(rows) > 1:
        measured = scores.matched_filter(rows, expected, covariance)
        tests.append(_Test("measured noise", measured, strong))
        if twice.sum() > 1:
            tests.append(_Test("replayed rounds", measured, twice))
    return tests


def _finding(
    plan: Plan,
    included: np.ndarray,
    threat: str,
    confidence: float,
    confidence_each: float,
    test: _Test,
    lower_mu: float,
) -> Finding:
    """Turns the scores of one statistic into figures."""
    values, shown = (part[test.guessed] for part in test.scores)
    truth = included[test.guessed]
    right = _guessed_right(test, included)
    surest = np.argsort(-np.abs(test.sureness()))[: max(1, int(_SUREST * len(right)))]
    few = int(right[surest].sum())
    fit = bounds.fit(values, truth, shown, confidence=confidence)
    count = len(right)

    def epsilon(mu: float) -> float:
        return gaussian.epsilon(mu, plan.delta)

    return Finding(
        threat=threat,
        statistic=test.name,
        claimed=epsilon(1 / plan.noise_multiplier),
        delta=plan.delta,
        estimate=epsilon(fit.mu),
        interval=(epsilon(fit.low), epsilon(fit.high)),
        lower_bound=epsilon(lower_mu),
        lower_bound_if_dependent=epsilon(
            bounds.lower_bound_if_dependent(
                few, len(surest), count, confidence=confidence_each
            )
        ),
        lower_bound_any_mechanism=bounds.epsilon_lower_bound(
            few, len(surest), count, plan.delta, confidence=confidence_each
        ),
        confidence=confidence,
        canaries=count,
        correct=int(right.sum()),
        included=values[truth],
        excluded=values[~truth],
    )
