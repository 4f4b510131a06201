"""Which checkpoints a method uses, and their averages in one pass over them.

Nothing here knows the model. `load(round)` gives a checkpoint's weights. "The last k
checkpoints" are the last k that there are.
"""

import collections
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np

from tff_agg import averaging, structure
from tff_agg.aliases import Structure
from tff_agg.recycling.outputs import Load, Model

Key = TypeVar("Key", bound=Hashable)
# What checkpoints that another window needs may take in memory.
_REUSED_BYTES = 1 << 28


def fold_averagers(
    averagers: Mapping[Key, averaging.Averager],
    checkpoints: Iterable[tuple[int, Model]],
    rounds: Iterable[int],
) -> Iterator[tuple[int, Key, Model]]:
    """Runs several averagers over the checkpoints together, in one pass.

    Args:
      averagers: By any key.
      checkpoints: (round, weights) in order, such as `store.iterate('iterate')`.
      rounds: At which rounds the aggregates are wanted.

    Yields:
      (round, key, aggregate). In memory are the averagers' states and one checkpoint;
      a UTA's state holds its window, see `tail_means` for a way without.

    Example:
      >>> thetas = [(t, np.float32(t)) for t in range(4)]
      >>> means = fold_averagers({'mean': averaging.pda(0)}, thetas, rounds=[1, 3])
      >>> [(t, key, float(value)) for t, key, value in means]
      [(1, 'mean', 0.5), (3, 'mean', 1.5)]
    """
    wanted = set(rounds)
    states: dict[Key, Structure] = {}
    for number, theta in checkpoints:
        for key, averager in averagers.items():
            if key not in states:
                states[key], aggregate = averager.init(theta), theta
            else:
                states[key], aggregate = averager.next(states[key], theta)
            if number in wanted:
                yield number, key, aggregate
        wanted.discard(number)
        if not wanted:
            return
    raise ValueError(f"rounds {sorted(wanted)} are not among the checkpoints.")


def tail_means(
    load: Load[Model], members: Sequence[int], end: int, ks: Iterable[int]
) -> Iterator[tuple[int, Model]]:
    """Yields UTA's mean of the last k checkpoints up to a round, for every k at once.

    Goes backwards from `end` with one running sum in double precision, so that memory
    does not depend on k, and every checkpoint is read once. Where fewer than k
    checkpoints exist, all of them are averaged.

    Args:
      load: Returns a round's weights.
      members: The rounds that have a checkpoint, in order.
      end: The newest checkpoint to use; one of `members`.
      ks: The window lengths.

    Example:
      >>> [(k, float(mean)) for k, mean in tail_means(np.float32, range(9), 8, [1, 3])]
      [(1, 8.0), (3, 7.0)]
    """
    newest = position_of(members, end)
    wanted = sorted(set(ks))
    total: list[np.ndarray] | None = None
    for depth in range(1, min(wanted[-1], newest + 1) + 1 if wanted else 1):
        theta = load(members[newest - depth + 1])
        leaves = structure.leaves(theta)
        if total is None:
            total = [np.array(leaf, np.float64) for leaf in leaves]
        else:
            for running, leaf in zip(total, leaves, strict=True):
                running += leaf
        at_start = depth == newest + 1
        for k in [k for k in wanted if k == depth or (at_start and k > depth)]:
            means = [
                (running / depth).astype(structure.dtype_of(leaf))
                for running, leaf in zip(total, leaves, strict=True)
            ]
            yield k, structure.pack(theta, means)


class Reused(Generic[Model]):
    """A `load` for windows that overlap: what a later one needs stays in memory.

    Beyond a limit checkpoints are read once for each window instead.

    Args:
      load: Returns a round's weights.
      windows: The rounds that will be asked for, window by window.
      limit: In bytes.

    Example:
      >>> load = Reused(np.float32, [[1, 2, 3], [2, 3, 4]])
      >>> [float(load(number)) for number in (3, 2, 1, 4, 3, 2)]
      [3.0, 2.0, 1.0, 4.0, 3.0, 2.0]
    """

    def __init__(
        self,
        load: Load[Model],
        windows: Iterable[Iterable[int]],
        limit: int = _REUSED_BYTES,
    ):
        self._load, self._room = load, limit
        self._left = collections.Counter(n for window in windows for n in window)
        self._held: dict[int, tuple[Model, int]] = {}

    def __call__(self, number: int) -> Model:
        """Returns a round's weights."""
        self._left[number] -= 1
        if number in self._held:
            weights, size = self._held[number]
            if self._left[number] <= 0:
                del self._held[number]
                self._room += size
            return weights
        weights = self._load(number)
        size = sum(np.asarray(leaf).nbytes for leaf in structure.leaves(weights))
        if self._left[number] > 0 and size <= self._room:
            self._held[number] = weights, size
            self._room -= size
        return weights


def window_warnings(
    members: Sequence[int], rounds: Iterable[int], ks: Iterable[int]
) -> list[str]:
    """Returns warnings where the last k checkpoints are not those of k rounds.

    Args:
      members: The rounds that have a checkpoint, in order.
      rounds: The newest checkpoints of the windows; each one of `members`.
      ks: The window lengths.

    Example:
      >>> window_warnings([0, 10, 20, 21, 22], rounds=[22], ks=[3, 5, 9])
      ['k = 5 of round 22 reaches back to round 0, because some rounds have no
      checkpoint', 'k = 9 of round 22: there are only 5 checkpoints']
    """
    warnings = []
    for end in rounds:
        newest = position_of(members, end)
        for k in sorted(set(ks)):
            name = f"k = {k} of round {end}"
            if k > newest + 1:
                warnings.append(f"{name}: there are only {newest + 1} checkpoints")
            elif (first := members[newest - k + 1]) < end - k + 1:
                warnings.append(
                    f"{name} reaches back to round {first}, because some rounds have "
                    "no checkpoint"
                )
    return warnings


def position_of(members: Sequence[int], round_number: int) -> int:
    """Returns where a round is among the members."""
    try:
        return list(members).index(round_number)
    except ValueError:
        raise ValueError(
            f"round {round_number} has no checkpoint; there are {len(members)} of them"
            + (f" from {members[0]} to {members[-1]}." if len(members) else ".")
        ) from None
