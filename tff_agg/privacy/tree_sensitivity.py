"""The exact sensitivity of tree mechanisms under any participation schema.

With a sum in every node, the squared sensitivity of a set of rounds is the sum over
nodes of (how many of the rounds it covers)². Both methods below maximise that.
"""

import numpy as np

from tff_agg.noise import forest as forests
from tff_agg.privacy.participation import (
    FixedEpochOrder,
    MinSeparation,
    Participation,
)

# (rounds until the next participation is allowed, value): later but worth more.
Frontier = list[tuple[int, int]]


def squared(
    forest: tuple[forests.Node, ...], participation: Participation
) -> tuple[float, bool]:
    """Returns the squared sensitivity of the trees under a schema.

    Args:
      forest: The trees from left to right.
      participation: In which rounds one user may take part.

    Returns:
      The value and whether it is exact. It is, unless a user of a fixed epoch order
      may choose few out of very many epochs; then it is an upper bound.

    Example:
      >>> squared(forests.binary(4, right_children=True), AtMostOnce())
      (3.0, True)
    """
    rounds = sum(root.size for root in forest)
    most = participation.largest(rounds)
    exact = True
    if isinstance(participation, FixedEpochOrder):
        if most == -(-rounds // participation.epoch_length):
            return _fixed_order(forest, participation.epoch_length, rounds), True
        # Any such choice is also one of rounds that are an epoch apart.
        exact = False
    elif not isinstance(participation, MinSeparation):
        raise TypeError(f"participation must be a schema, got {participation!r}")
    return float(_separated(forest, participation.spacing(rounds), most)), exact


def _fixed_order(
    forest: tuple[forests.Node, ...], epoch_length: int, rounds: int
) -> float:
    """Counts, for every starting round, how many own rounds each node covers."""
    spans = np.array(list(forests.intervals(forest)))
    starts = np.arange(min(epoch_length, rounds))

    def before(edge: np.ndarray) -> np.ndarray:
        """How many own rounds lie before each edge, for each start."""
        return np.maximum(0, -(-(edge[:, None] - starts[None, :]) // epoch_length))

    counts = before(spans[:, 1]) - before(spans[:, 0])
    return float(np.square(counts.astype(float)).sum(axis=0).max())


def _separated(forest: tuple[forests.Node, ...], spacing: int, most: int) -> int:
    """Maximises over at most `most` rounds that are at least `spacing` apart.

    Goes through the trees from left to right. What the rest needs to know about a
    node is how many of the rounds it took, what they were worth, and how long the
    wait is until another may follow; of equal numbers only those that wait less or
    are worth more are kept.
    """
    table: dict[tuple[int, int], dict[int, Frontier]] = {}

    def inside(node: forests.Node, wait: int) -> dict[int, Frontier]:
        """Returns, for each number of rounds taken in `node`, the best outcomes."""
        if wait >= node.size:
            return {0: [(wait - node.size, 0)]}
        key = (id(node), wait)
        if key in table:
            return table[key]
        if not node.children:
            outcome = {
                0: [(max(0, wait - 1), 0)],
                1: [(spacing - 1, int(node.counted))],
            }
        else:
            outcome = in_sequence(node.children, wait)
            if node.counted:
                outcome = {
                    taken: [(after, value + taken**2) for after, value in frontier]
                    for taken, frontier in outcome.items()
                }
        table[key] = outcome
        return outcome

    def in_sequence(nodes: tuple[forests.Node, ...], wait: int) -> dict[int, Frontier]:
        """Goes through neighbours from left to right."""
        outcome: dict[int, Frontier] = {0: [(wait, 0)]}
        for node in nodes:
            gathered: dict[int, dict[int, int]] = {}
            for taken, frontier in outcome.items():
                for at, value in frontier:
                    for more, ahead in inside(node, at).items():
                        if taken + more > most:
                            continue
                        best = gathered.setdefault(taken + more, {})
                        for after, extra in ahead:
                            total = value + extra
                            if best.get(after, -1) < total:
                                best[after] = total
            outcome = {taken: _prune(best) for taken, best in gathered.items()}
        return outcome

    final = in_sequence(forest, 0)
    return max(value for frontier in final.values() for _, value in frontier)


def _prune(outcomes: dict[int, int]) -> Frontier:
    """Keeps the outcomes that no other one beats in both wait and value."""
    kept: Frontier = []
    for after in sorted(outcomes):
        if not kept or outcomes[after] > kept[-1][1]:
            kept.append((after, outcomes[after]))
    return kept
