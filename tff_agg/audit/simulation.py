"""A run of canaries alone, in numpy: clip, sum, noise and server step, no model.

The gradients of a model are whatever they are; the guarantee does not depend on them.
A run without other users exercises all that it does depend on, in milliseconds, with
the real mechanisms. What is run can be told apart from what is claimed: that is how the
audit itself is tested.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from tff_agg.audit.canaries import Canaries, Directions
from tff_agg.audit.findings import Evidence
from tff_agg.privacy.plan import Plan
from tff_agg.server import ClippedSum, ServerStep, noisy_mean

# How many clip norms long a canary's update is before it is clipped: enough for any
# part of it to be cut that is cut for itself.
OVERSIZE = 100.0

Clip = Callable[[list[np.ndarray], float], list[np.ndarray]]


def clip_all(tensors: list[np.ndarray], clip_norm: float) -> list[np.ndarray]:
    """Clips an update, given as tensors, to a norm of all tensors together.

    Example:
      >>> clip_all([np.array([3.0, 4.0])], 1.0)
      [array([0.6, 0.8])]
    """
    norm = np.sqrt(sum(float(np.vdot(part, part)) for part in tensors))
    return [part * min(1.0, clip_norm / norm) for part in tensors]


def sums_of_rounds(
    canaries: Canaries, sizes: Sequence[int], plan: Plan, clip: Clip = clip_all
) -> np.ndarray:
    """Returns [rounds, parameters]: the sums of the canaries' clipped updates."""
    total = np.zeros((plan.rounds, sum(sizes)))
    cuts = np.cumsum(sizes)[:-1]
    for i in np.flatnonzero(canaries.included):
        update = OVERSIZE * plan.clip_norm * canaries.directions.dense(i)
        clipped = np.concatenate(clip(np.split(update, cuts), plan.clip_norm))
        for t in canaries.rounds[i]:
            total[t] += clipped
    return total


def means_of_rounds(plan: Plan, sums: np.ndarray, seed: Sequence[int]) -> np.ndarray:
    """Returns [rounds, parameters]: the noisy means of clipped sums.

    Args:
      plan: What is done; its seed counts as known.
      sums: [rounds, parameters]. How many users they are of is not looked at: canaries
        may be more than a cohort.
      seed: Of the noise.
    """
    mean = noisy_mean(dataclasses.replace(plan, noise_seed_is_known=True))
    rows = np.asarray(sums, np.float32)
    state, means = mean.init(rows[0], seed), []
    for row in rows:
        state, update = mean.next(state, ClippedSum(row, users=0))
        means.append(np.asarray(update, float))
    return np.stack(means)


def project(thetas: np.ndarray, directions: Directions) -> np.ndarray:
    """Returns [checkpoints, directions]: checkpoints projected on directions."""
    return np.stack([directions.project(theta) for theta in thetas])


def evidence_of(canaries: Canaries, server: ServerStep, means: np.ndarray) -> Evidence:
    """Returns what a run with these noisy means releases, from a model of zeros."""
    thetas = server.run(np.zeros(means.shape[1]), means)
    return Evidence(
        project(thetas, canaries.directions), project(thetas, canaries.probes)
    )


def simulate(
    plan: Plan,
    server: ServerStep,
    canaries: Canaries,
    sizes: Sequence[int],
    *,
    seed: tuple[int, int],
    clip: Clip = clip_all,
    done: Plan | None = None,
) -> Evidence:
    """Runs the canaries through a plan, or through what is done instead of it.

    Args:
      plan: What is claimed.
      server: The server's step.
      canaries: The canaries.
      sizes: The number of parameters of each tensor.
      seed: Of the noise.
      clip: How updates are clipped.
      done: The plan whose noise is really added; the one claimed if None.

    Example:
      evidence = simulate(plan, server, canaries, [4096], seed=(1, 2))
    """
    sums = sums_of_rounds(canaries, sizes, plan, clip)
    return evidence_of(canaries, server, means_of_rounds(done or plan, sums, seed))
