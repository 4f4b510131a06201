"""Canary users: directions that nobody else has, and who takes part with them.

A canary is a user whose update is known: a random direction, sent at the clip norm. All
directions of an audit have disjoint supports, so that they are exactly orthogonal: what
a release says of one canary, it says of no other, and the noise that hides them is
independent from canary to canary. Directions that no user sends, the probes, come from
the same partition; they show the noise alone.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tff_agg import checks

# A direction of so many coordinates in each tensor is as hard to hide as a longer one,
# and a projection on it is cheap however large the model is.
LARGEST_SUPPORT = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class Directions:
    """Orthonormal directions, each with a support of its own.

    Attributes:
      positions: [directions, support], into the concatenated parameters of a model.
      values: [directions, support], each row of norm 1.
      size: How many parameters the model has.
    """

    positions: np.ndarray
    values: np.ndarray
    size: int

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, which: slice | np.ndarray) -> "Directions":
        """Returns some of the directions."""
        return Directions(self.positions[which], self.values[which], self.size)

    def project(self, vector: np.ndarray) -> np.ndarray:
        """Returns the inner product of each direction with a model's parameters."""
        vector = np.asarray(vector)
        if vector.shape != (self.size,):
            raise ValueError(
                f"vector must have the {self.size} parameters of the model in one "
                f"dimension, got shape {vector.shape}"
            )
        seen = vector[self.positions].astype(np.float64)
        return np.einsum("ij,ij->i", seen, self.values)

    def dense(self, which: int) -> np.ndarray:
        """Returns one direction with all its zeros."""
        full = np.zeros(self.size)
        full[self.positions[which]] = self.values[which]
        return full


def make_directions(count: int, sizes: Sequence[int], seed: int) -> Directions:
    """Draws orthonormal directions over the tensors of a model.

    The coordinates of each tensor are dealt out to all directions alike, so that a
    direction has the same share of its length in every tensor that is large enough for
    all of them; smaller tensors are left out. Values are random signs.

    Args:
      count: How many directions, canaries and probes together.
      sizes: The number of parameters of each tensor, in the model's order.
      seed: Whoever knows it knows the directions; the proofs allow that.

    Raises:
      ValueError: The model has no tensor with `count` parameters.

    Example:
      >>> directions = make_directions(3, sizes=[6, 2], seed=0)
      >>> directions.positions.shape
      (3, 2)
    """
    count = checks.whole("count", count)
    if not sizes or max(sizes) < count:
        raise ValueError(
            f"count={count} directions need a tensor with as many parameters; the "
            f"largest of sizes={list(sizes)} has {max(sizes, default=0)}: take fewer "
            "canaries or probes"
        )
    rng = np.random.default_rng([seed, 0xD1])
    positions, values = [], []
    start = 0
    large = sum(size >= count for size in sizes)
    for size in sizes:
        share = min(size // count, LARGEST_SUPPORT)
        if share:
            dealt = start + rng.choice(size, size=(count, share), replace=False)
            signs = rng.choice([-1.0, 1.0], size=(count, share))
            positions.append(dealt)
            values.append(signs / np.sqrt(share * large))
        start += size
    return Directions(np.concatenate(positions, 1), np.concatenate(values, 1), start)


@dataclasses.dataclass(frozen=True, eq=False)
class Canaries:
    """The canaries of an audit.

    Attributes:
      directions: The direction of each canary.
      probes: Directions that nobody sends.
      included: [canaries], whether each takes part: fair coins.
      rounds: In which rounds each canary takes part, if it does.
    """

    directions: Directions
    probes: Directions
    included: np.ndarray
    rounds: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.directions)

    def of_round(self, round_number: int) -> np.ndarray:
        """Returns the canaries that really take part in a round."""
        return np.array(
            [
                i
                for i, rounds in enumerate(self.rounds)
                if self.included[i] and round_number in rounds
            ],
            int,
        )


def make_canaries(
    sizes: Sequence[int],
    rounds: Sequence[Sequence[int]],
    *,
    probes: int,
    seed: int,
    coins: int | None = None,
) -> Canaries:
    """Draws the canaries of an audit.

    Args:
      sizes: The number of parameters of each tensor of the model.
      rounds: For each canary, the rounds in which it takes part if it does at all.
      probes: How many directions nobody sends; twice the rounds or more let the audit
        estimate the noise's covariance over rounds.
      seed: Of the directions.
      coins: The seed of who is included; None takes it from the operating system.

    Example:
      >>> canaries = make_canaries([100], [(0,), (1,)], probes=8, seed=0)
      >>> len(canaries), len(canaries.probes)
      (2, 8)
    """
    count = len(rounds)
    if count < 2:
        raise ValueError(f"rounds must name at least 2 canaries, got {count}")
    both = make_directions(count + probes, sizes, seed)
    rng = np.random.default_rng(None if coins is None else [coins, 0xC0])
    return Canaries(
        both[:count],
        both[count:],
        rng.integers(0, 2, size=count).astype(bool),
        tuple(tuple(int(t) for t in own) for own in rounds),
    )
