"""The window of the newest checkpoints and its mean: the inside of tail averaging."""

import functools
import operator
from collections.abc import Callable
from typing import TypedDict

import numpy as np
import tree

from tff_agg import backends, structure
from tff_agg.aliases import Array, Structure
from tff_agg.structure import Form


class Window(TypedDict):
    """The state of tail averaging.

    Attributes:
      step: How many checkpoints came after the first.
      window: The newest checkpoints, the latest first; zeros where there is none yet.
    """

    step: Array
    window: tuple[Structure, ...]


def tail_mean(k: int) -> tuple[Callable, Callable]:
    """Makes `init` and `next` of the mean of the last k checkpoints.

    The window is a tuple, newest first, so that moving it on copies no checkpoint. It
    is added up anew at every step. That takes k − 1 additions, but nothing is ever
    subtracted: rounding errors do not pile up over a long run, float64 is not needed
    (JAX has none by default), and a NaN leaves together with its checkpoint.
    """

    def init(theta: Structure) -> Window:
        check_floating(theta)
        empty = structure.map_leaves(backends.of(theta).zeros, theta)
        # Slots not yet filled hold zeros: they add nothing to the sum.
        return {"step": counter(theta), "window": (theta,) + (empty,) * (k - 1)}

    def next_(state: Window, theta: Form) -> tuple[Window, Form]:
        structure.check_alike(
            theta, state["window"][0], "checkpoint", "the ones before have"
        )
        step = state["step"] + 1
        window = (theta, *state["window"][:-1])
        library = backends.of(step)
        filled = library.minimum(step + 1, k)

        def mean(*leaves: Array) -> Array:
            total = functools.reduce(operator.add, leaves)
            return total / library.cast(filled, structure.dtype_of(total))

        return {"step": step, "window": window}, structure.map_leaves(
            mean, theta, *window[1:]
        )

    return init, next_


def counter(theta: Structure) -> Array:
    """Returns a zero step counter in the library of the structure's leaves."""
    return backends.of(theta).constant(0, np.int64)


def check_floating(theta: Structure) -> None:
    """Refuses leaves that a mean would turn into another type."""
    backends.of(theta)  # It refuses a library that nothing here knows.
    for path, leaf in tree.flatten_with_path(theta):
        if not structure.is_floating(leaf):
            where = ".".join(map(str, path)) or "the structure itself"
            raise TypeError(
                f"cannot average the leaf at {where}: its dtype is "
                f"{structure.dtype_of(leaf)}, and only floating-point leaves have a "
                "mean of their own type; keep whole-number leaves out of the "
                "averaged structure, or convert them to float32"
            )
