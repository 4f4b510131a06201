"""The nodes of aggregation trees: which rounds each noisy node adds up.

Trees are described once, here; explicit matrices and the exact sensitivity under any
participation schema are read off this description.
"""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """A node over consecutive rounds; compared by identity, so that subtrees share.

    Attributes:
      size: How many rounds it covers.
      counted: Whether its noisy sum is among what the mechanism may reveal.
      children: Its parts from left to right; empty for a single round.
    """

    size: int
    counted: bool
    children: tuple["Node", ...] = ()


@functools.lru_cache(maxsize=512)
def complete(height: int, counted: bool, right_children: bool) -> Node:
    """Returns the complete binary tree of 2**height rounds.

    Args:
      height: Levels below the root.
      counted: Whether the root itself counts.
      right_children: Whether right children count. A running sum that adds up the
        fewest nodes never reads them.
    """
    if height == 0:
        return Node(1, counted)
    left = complete(height - 1, True, right_children)
    right = complete(height - 1, right_children, right_children)
    return Node(2**height, counted, (left, right))


def binary(n: int, right_children: bool) -> tuple[Node, ...]:
    """Returns the complete trees that make up n rounds, the largest first."""
    heights = [h for h in reversed(range(n.bit_length())) if n >> h & 1]
    return tuple(complete(h, True, right_children) for h in heights)


def intervals(forest: tuple[Node, ...]) -> Iterator[tuple[int, int]]:
    """Yields (first round, one past the last) of each counted node, children first."""

    def walk(node: Node, first: int) -> Iterator[tuple[int, int]]:
        at = first
        for child in node.children:
            yield from walk(child, at)
            at += child.size
        if node.counted:
            yield first, first + node.size

    start = 0
    for root in forest:
        yield from walk(root, start)
        start += root.size


def incidence(forest: tuple[Node, ...]) -> np.ndarray:
    """Returns the (nodes × rounds) matrix of zeros and ones."""
    spans = list(intervals(forest))
    matrix = np.zeros((len(spans), sum(root.size for root in forest)))
    for row, (first, end) in zip(matrix, spans, strict=True):
        row[first:end] = 1.0
    return matrix
