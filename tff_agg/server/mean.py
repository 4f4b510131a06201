"""The noisy mean of a clipped sum: what of the clients' work anybody may see.

The plan's limits are kept here, whatever drives the rounds: a run can neither go on
after the planned rounds nor add up more users than the plan divides by.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from tff_agg import backends, structure
from tff_agg.aliases import Array, Scalar, Structure
from tff_agg.noise import seeds
from tff_agg.noise.mechanism import State
from tff_agg.privacy import Plan


class ClippedSum(NamedTuple):
    """What the users of a round add up to.

    Attributes:
      total: The sum of the clipped updates, in single precision at least.
      users: How many they were; None where batches are drawn by chance, so that there
        is no largest number.
    """

    total: Structure
    users: Scalar | None = None


class _Init(Protocol):
    def __call__(self, like: Structure, seed: seeds.Seed | None = None) -> State:
        """Returns the state before the first round."""


class NoisyMean(NamedTuple):
    """Two functions over structures of numpy, TensorFlow or JAX.

    Attributes:
      init: `init(like, seed=None) -> state`. `like` gives shapes, dtypes and library. A
        secret seed comes from the operating system; one that is given is known, and
        refused unless the plan says so.
      next: `next(state, summed) -> (state, mean)`. What the plan does not cover raises
        a ValueError, or fails in a graph of TensorFlow; in a trace of JAX, which cannot
        raise, the mean becomes NaN.

    The state holds the round, which nobody else counts, and, where there is noise or
    batches are drawn by chance, what the mechanism keeps, its secret seed included.
    """

    init: _Init
    next: Callable[[State, ClippedSum], tuple[State, Structure]]


def noisy_mean(plan: Plan, words: int | None = None) -> NoisyMean:
    """Returns the noisy mean of a plan: (sum + noise) / `plan.cohort_size`.

    The divisor is the plan's whatever the actual number of users was, because that
    number must not leak into the scale of the noise.

    Args:
      plan: Its noise, rounds, cohort size and most users.
      words: How many integers of 64 bits a seed has that is drawn here. Four, the
        default where the seed is secret, are a key of AES-256-CTR, which makes the
        noise: not on TFF's worker, which cannot run it. Two make noise of Philox, in
        JAX of threefry.

    Example:
      mean = noisy_mean(plan)
      state = mean.init(weights)
      state, update = mean.next(state, ClippedSum(total, users=len(cohort)))
    """
    stddev = float(plan.noise_stddev)
    # Batches that are drawn by chance are drawn with the seed, noise or not.
    has_seed = stddev > 0 or plan.most_users is None
    over = f"the plan ends after {plan.rounds} rounds; another would spend more"
    many = f"the plan is for at most {plan.most_users} clients per round"

    def init(like: Structure, seed: seeds.Seed | None = None) -> State:
        backend = backends.of(like)
        if not has_seed:
            return {"round": backend.constant(0, np.int64)}
        known = plan.noise_seed_is_known
        started = seeds.of_run(backend, seed, is_known=known, words=words)
        return plan.mechanism.init(like, started)

    def within_plan(state: State, summed: ClippedSum) -> Structure:
        """Returns the sum, if the plan covers it."""
        total, users = summed
        backend = backends.of(total)
        total = backend.check(state["round"] < plan.rounds, total, over)
        if (most := plan.most_users) is None:
            return total
        if users is None:
            raise ValueError(f"users must be given: {many}")
        return backend.check(users <= most, total, many)

    def next_(state: State, summed: ClippedSum) -> tuple[State, Structure]:
        total = within_plan(state, summed)
        backend = backends.of(total)
        if stddev:
            state, noise = plan.mechanism.next(state, total)
            total = backends.combine(backend, [(1.0, total), (stddev, noise)])
        else:
            after = backend.constant(state["round"] + 1, np.int64)
            state = {**state, "round": after}

        def divided(leaf: Array) -> Array:
            return backend.cast(leaf / plan.cohort_size, structure.dtype_of(leaf))

        return state, structure.map_leaves(divided, total)

    return NoisyMean(init, next_)
