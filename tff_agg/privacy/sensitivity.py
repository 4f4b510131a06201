"""How far one user can move Cx: the sensitivity of a mechanism.

If a user's clipped update is at most 1 long in each round it takes part in, the
squared sensitivity is at most the largest Σ |XᵢXⱼ| over pairs of its rounds, where X
holds the columns of C. That is exact where no two columns that can meet have a
negative product, because then the worst user sends the same vector every time.
"""

from typing import NamedTuple

import numpy as np

from tff_agg.noise.mechanism import Mechanism
from tff_agg.privacy.participation import AtMostOnce, Participation


class Sensitivity(NamedTuple):
    """A sensitivity and how it was found.

    Attributes:
      value: The largest ‖C(x − x')‖ for contributions of norm at most 1.
      exact: Whether some user attains it; otherwise it is an upper bound.
      method: Names the way of computing.
    """

    value: float
    exact: bool
    method: str


def sensitivity(
    mechanism: Mechanism, participation: Participation, rounds: int
) -> Sensitivity:
    """Computes the sensitivity of a mechanism under a participation schema."""
    n = mechanism.check_rounds(rounds)
    participation.largest(n)
    if isinstance(participation, AtMostOnce):
        encoder = (mechanism.encoder or mechanism.matrix)(n)
        norms = np.square(encoder).sum(axis=0)
        return Sensitivity(float(np.sqrt(norms.max())), True, "largest column")
    raise NotImplementedError
