"""Windows of the newest checkpoints and their mean: the inside of tail averaging."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tree

from tff_agg import structure
from tff_agg.structure import Structure

State = Any


def direct(k: int) -> tuple[Callable, Callable]:
    """A window of checkpoints, added up at each step."""

    def init(theta: Structure) -> State:
        check_floating(theta)
        empty = structure.map_leaves(structure.zeros_like, theta)
        # Slots not yet filled hold zeros: they add nothing to the sum.
        return {"step": counter(theta), "window": (theta,) + (empty,) * (k - 1)}

    def next_(state: State, theta: Structure) -> tuple[State, Structure]:
        step = state["step"] + 1
        check_alike(state["window"][0], theta)
        window = (theta, *state["window"][:-1])
        total = window[0]
        for older in window[1:]:
            total = structure.map_leaves(_add, total, older)
        return {"step": step, "window": window}, _mean(total, step, k)

    return init, next_


def blockwise(k: int) -> tuple[Callable, Callable]:
    """A window whose sum takes a few additions a step, whatever k is.

    Checkpoints come in blocks. The sum of the window is that of the block under way and
    the one before it (`both`; `sum` is of the one under way alone), and of what is left
    of older ones, which shrinks by one checkpoint a step. Those rests are made one
    block ahead, one in each step, beginning with the smallest: `made` (newest first)
    grows by the checkpoints `coming`, and when the block is full it becomes `rests`, in
    the order of use. `blocks` are sums of whole blocks, newest first, from which the
    smallest is made, by way of `sums`. (These are kept for TensorFlow's sake: it merges
    sums that nobody else reads, by variables of its own, and fails to inside a
    condition.)
    """
    length = _block_length(k)
    whole, single = divmod(k - 2 * length, length)

    def init(theta: Structure) -> State:
        check_floating(theta)
        empty = structure.map_leaves(structure.zeros_like, theta)
        return {
            "step": counter(theta),
            "window": (theta,) + (empty,) * (k - 1),
            "sum": theta,
            "both": theta,
            "rests": (empty,) * length,
            "made": (empty,) * length,
            "coming": (empty,) * (length - 1),
            "blocks": (empty,) * whole,
            "sums": (empty,) * (whole + single),
        }

    def next_(state: State, theta: Structure) -> tuple[State, Structure]:
        step = state["step"] + 1
        check_alike(state["sum"], theta)
        window = (theta, *state["window"][:-1])
        rest, *later = state["rests"]
        block_sum = structure.map_leaves(_add, state["sum"], theta)
        both = structure.map_leaves(_add, state["both"], theta)
        total = structure.map_leaves(_add, both, rest)

        def same_block() -> dict[str, Any]:
            first, *others = state["coming"]
            longer = structure.map_leaves(_add, state["made"][0], first)
            # What was used is let go; any structure may stand in its place.
            return {
                "sum": block_sum,
                "both": both,
                "rests": (*later, theta),
                "made": (longer, *state["made"][:-1]),
                "coming": (*others, theta),
                "blocks": state["blocks"],
                "sums": state["sums"],
            }

        def next_block() -> dict[str, Any]:
            empty = structure.map_leaves(structure.zeros_like, theta)
            blocks = (block_sum, *state["blocks"])[:whole]
            behind = whole * length
            sums: list[Structure] = []
            for part in (*blocks, *window[behind : behind + single]):
                more = structure.map_leaves(_add, sums[-1], part) if sums else part
                sums.append(more)
            return {
                "sum": empty,
                "both": block_sum,
                "rests": state["made"],
                "made": (sums[-1] if sums else empty, *state["made"][:-1]),
                "coming": window[k - 2 * length : k - length - 1],
                "blocks": blocks,
                "sums": tuple(sums),
            }

        full = structure.equal((step + 1) % length, 0)
        new_state = structure.cond(full, next_block, same_block)
        return {"step": step, "window": window, **new_state}, _mean(total, step, k)

    return init, next_


def _block_length(k: int) -> int:
    """Chooses the length for which the smallest rest takes the fewest additions."""

    def additions(length: int) -> float:
        return sum(divmod(k - 2 * length, length)) / length

    return min(range(2, min(k // 2, math.isqrt(4 * k)) + 1), key=additions)


def _mean(total: Structure, step: Any, k: int) -> Structure:
    """Divides the sum of a window by how many checkpoints are in it."""
    filled = structure.minimum(step + 1, k)
    return structure.map_leaves(
        lambda leaf: leaf / structure.cast(filled, structure.dtype_of(leaf)), total
    )


def _add(a: Any, b: Any) -> Any:
    return a + b


def counter(theta: Structure) -> Any:
    """Returns a zero step counter in the library of the structure's leaves."""
    return structure.scalar(0, np.int64, structure.backend_of_structure(theta))


def check_floating(theta: Structure) -> None:
    """Refuses leaves that a mean would turn into another type."""
    for path, leaf in tree.flatten_with_path(theta):
        if not structure.is_floating(leaf):
            where = ".".join(map(str, path)) or "the structure itself"
            raise TypeError(
                f"cannot average the leaf at {where}: its dtype is "
                f"{structure.dtype_of(leaf)}, and only floating-point leaves have a "
                "mean of their own type; keep whole-number leaves out of the "
                "averaged structure, or convert them to float32"
            )


def check_alike(expected: Structure, theta: Structure) -> None:
    """Refuses a checkpoint whose leaves would broadcast instead of match."""
    tree.assert_same_structure(expected, theta, check_types=False)
    for (path, old), new in zip(
        tree.flatten_with_path(expected), structure.leaves(theta), strict=True
    ):
        if not structure.shapes_agree(old, new):
            where = ".".join(map(str, path)) or "the structure itself"
            raise ValueError(
                f"the leaf at {where} has shape {np.shape(new)}; the checkpoints "
                f"before it have {np.shape(old)}"
            )
