"""Mechanisms from what was saved of them: nothing is optimised again."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tff_agg.noise.banded import banded_from
from tff_agg.noise.blt import blt_from
from tff_agg.noise.dense import dense_from
from tff_agg.noise.mechanism import Mechanism, identity
from tff_agg.noise.restart import restart_every
from tff_agg.noise.tree import tree


def _dense(rows: list[list[float]], **reported: Any) -> Mechanism:
    """Returns the mechanism whose matrix has these rows, up to the diagonal."""
    matrix = np.zeros((len(rows), len(rows)))
    for i, row in enumerate(rows):
        matrix[i, : i + 1] = row
    return dense_from(matrix, **reported)


def _restart(period: int, inner: Mapping[str, Any]) -> Mechanism:
    """Returns the mechanism that starts another one anew."""
    return restart_every(from_json(inner), period)


_MAKERS: dict[str, Callable[..., Mechanism]] = {
    "banded": banded_from,
    "blt": blt_from,
    "dense": _dense,
    "identity": identity,
    "restart": _restart,
    "tree": tree,
}


def from_json(values: Mapping[str, Any]) -> Mechanism:
    """Returns the mechanism whose `to_json` gave these values, bit for bit.

    A checkpoint that holds them, next to the state, lets a run go on elsewhere: what
    was optimised is read, not searched for again.

    Raises:
      ValueError: There is no such mechanism, or its values are not those of one. One
        with a stream of your own you rebuild yourself.

    Example:
      >>> from_json(banded_from([1.0, 0.5]).to_json()).matrix(2)
      array([[1. , 0. ],
             [0.5, 1. ]])
    """
    given = dict(values)
    if (name := given.pop("mechanism", None)) not in _MAKERS:
        raise ValueError(f"mechanism must be one of {sorted(_MAKERS)}, got {name!r}")
    try:
        return _MAKERS[name](**given)
    except TypeError as error:
        raise ValueError(f"these are not the values of {name!r}: {error}") from None
