"""Reading TF-Privacy's noise multipliers, which are per tree node.

TF-Privacy (and TFF's `tree_aggregation`) call noise multiplier the standard deviation
of one node's noise over the clip norm. A plan's noise multiplier is relative to the
whole sensitivity, which is √11 nodes for one participation in 2,000 rounds. A number
of one kind taken for the other is wrong by that factor, in ρ by its square. Hence the
long names: `per_node_multiplier` here, `noise_multiplier` everywhere else.
"""

import math

from tff_agg import checks
from tff_agg.noise import forest as forests
from tff_agg.privacy import losses, tree_sensitivity
from tff_agg.privacy.participation import AtMostOnce, Participation


def node_sensitivity(
    rounds: int,
    participation: Participation | None = None,
    restart_every: int | None = None,
) -> float:
    """Returns the sensitivity of all nodes of TF-Privacy's tree together.

    All nodes count here, as in TF-Privacy's accountant, although a plain prefix sum
    never reads right children; the plain tree of this library is a little better for
    several participations.

    Args:
      rounds: The length of the run.
      participation: In which rounds one user may take part; once by default.
      restart_every: Rounds between two restarts of the tree, None for no restart.

    Example:
      >>> round(node_sensitivity(2000) ** 2)
      11
    """
    rounds = period = checks.whole("rounds", rounds)
    if restart_every is not None:
        period = checks.whole("restart_every", restart_every)
    full, rest = divmod(rounds, period)
    blocks = [period] * full + ([rest] if rest else [])
    forest = tuple(
        root for size in blocks for root in forests.binary(size, right_children=True)
    )
    squared, _ = tree_sensitivity.squared(forest, participation or AtMostOnce())
    return math.sqrt(squared)


def rho_of_per_node(
    per_node_multiplier: float,
    rounds: int,
    participation: Participation | None = None,
    restart_every: int | None = None,
) -> float:
    """Returns the ρ that a per-node multiplier gives.

    Example:
      >>> round(rho_of_per_node(0.341, 2000), 1)
      47.3
    """
    per_node = checks.noise_multiplier(per_node_multiplier)
    nodes = node_sensitivity(rounds, participation, restart_every)
    return losses.of_noise(per_node / nodes).rho
