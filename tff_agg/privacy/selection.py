"""Which keys (words, say) of users may be published: noisy votes and a threshold.

Each user votes for at most `cap` keys, once for each. The votes of one user then have
an L2 norm of at most √cap, and Gaussian noise of `noise_multiplier`·√cap on every key's
votes is the Gaussian mechanism, for keys that other users name as well. A key that only
one user names would betray that user by being there at all. The threshold is so high
that none of the keys of one user alone gets over it, except with probability δ.

For neighbours with and without a user let K be the keys that only this user names (at
most `cap`), each with one vote.

- From with to without: the noise of K is independent of all other noise. If no key of K
  passes, which has a probability of at least 1 − δ, what is left is the Gaussian
  mechanism on the other keys.
- From without to with: let noise be added to the keys of K without the user as well, to
  0 votes. That is the Gaussian mechanism on all keys; it differs from what is done only
  where a key of K passes, which is rarer with 0 votes than with 1.

Either way an event S has P(S) ≤ e^ε·P'(S) + δ_ε + δ, where (ε, δ_ε) is any pair of the
Gaussian mechanism. What is computed later with the published keys composes as usual
inside either argument, so that δ is added once and the ρ add up.

The threshold is the one of Gaussian partition selection in the literature
(differentially private set union, Gopi et al. 2020).
"""

import dataclasses
import functools
import math

import numpy as np
import scipy.special

from tff_agg import backends, checks
from tff_agg.noise import generators, seeds
from tff_agg.noise.seeds import Seed
from tff_agg.privacy.releases import Release


@dataclasses.dataclass(frozen=True)
class KeySelection:
    """How keys are selected by the users' votes.

    Attributes:
      cap: The most keys that one user votes for.
      noise_multiplier: Standard deviation of the noise over √cap.
      delta: The probability that a key which only one user names is published.

    Example:
      >>> selection = KeySelection(cap=100, noise_multiplier=5.0, delta=1e-7)
      >>> selection.rho, selection.stddev, round(selection.threshold)
      (0.02, 50.0, 301)
    """

    cap: int
    noise_multiplier: float
    delta: float

    def __post_init__(self) -> None:
        checks.make_whole(self, "cap")
        if checks.noise_multiplier(self.noise_multiplier) == 0:
            raise ValueError("noise_multiplier must be above 0: no noise, no privacy")
        checks.delta(self.delta)

    @property
    def stddev(self) -> float:
        """The standard deviation of the noise on the votes of a key."""
        return self.noise_multiplier * math.sqrt(self.cap)

    @functools.cached_property
    def threshold(self) -> float:
        """How many noisy votes a key must exceed."""
        # The chance of one key, such that all `cap` of them stay below with 1 − δ.
        one_key = -math.expm1(math.log1p(-self.delta) / self.cap)
        return 1.0 + self.stddev * float(-scipy.special.ndtri(one_key))

    @property
    def rho(self) -> float:
        """The ρ of zCDP of the noisy votes."""
        return 0.5 / self.noise_multiplier**2

    def noisy(self, votes: np.ndarray, seed: Seed, part: int = 0) -> np.ndarray:
        """Returns the votes with noise; a key is published if above `threshold`.

        Args:
          votes: The number of users who vote for each key. Every key that anybody
            votes for must be among them, once.
          seed: The secret that all noise depends on, from `noise.fresh_seed`. Four
            words draw it by AES-256-CTR.
          part: Tells several calls with one seed apart.
        """
        like, key = np.zeros(len(votes)), seeds.seed_in(backends.NUMPY, seed)
        unit = generators.normals(backends.NUMPY, key, part, like)
        return votes + self.stddev * unit

    def release(self, name: str) -> Release:
        """Returns what a plan counts for the published keys."""
        return Release(
            name,
            self.rho,
            self.delta,
            f"at most {self.cap} keys per user, Gaussian noise of standard deviation "
            f"{self.stddev:.6g} on the number of users of each key, keys above "
            f"{self.threshold:.6g}",
            is_gaussian=True,
        )
