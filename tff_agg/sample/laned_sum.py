"""Clipped sums with a micro-batch on every core.

XLA shares single operations between cores: for networks of many small ones that leaves
the cores waiting for each other. Here each core runs the whole network by itself, on
every n-th micro-batch. Which lane computes what, and the order in which lanes are added
up, are functions of the number of cores, and so are the sum's last bits.
"""

import functools
from collections.abc import Callable
from concurrent import futures

import jax
import jax.numpy as jnp
import numpy as np

from tff_agg.sample.per_example import (
    ClippedSum,
    Count,
    Examples,
    SampleModel,
    Weights,
)

# Otherwise the lanes would share their products of matrices again.
_OPTIONS = {"xla_cpu_multi_thread_eigen": False}


class LanedSum:
    """A batch's clipped sum as a function, compiled for the first batch's shapes.

    Example:
      add = LanedSum(model, clip_norm=1.0, micro=4)
      total = add(weights, batch, count)
    """

    def __init__(self, model: SampleModel, clip_norm: float, micro: int):
        """Takes what `SampleModel.summed` takes; nothing is compiled yet."""
        self._lanes = model.lanes
        self._lane = functools.partial(
            _lane, model=model, clip_norm=clip_norm, micro=micro
        )
        self._compiled: Callable[..., ClippedSum] | None = None

    def __call__(self, weights: Weights, batch: Examples, count: int) -> ClippedSum:
        """Adds up the first `count` examples of a batch."""
        given = dict(weights), list(batch), np.int32(count)
        compiled = self._compiled
        if compiled is None:
            lowered = jax.jit(self._lane).lower(*given, np.int32(0))
            compiled = self._compiled = lowered.compile(_OPTIONS)
        with futures.ThreadPoolExecutor(self._lanes) as pool:

            def run(lane: int) -> ClippedSum:
                found = compiled(*given, np.int32(lane))
                return jax.block_until_ready(found)

            return _added(list(pool.map(run, range(self._lanes))))


def _lane(
    weights: Weights,
    batch: Examples,
    count: Count,
    lane: Count,
    *,
    model: SampleModel,
    clip_norm: float,
    micro: int,
) -> ClippedSum:
    return model.summed(weights, batch, count, clip_norm, micro, lane, model.lanes)


@jax.jit
def _added(parts: list[ClippedSum]) -> ClippedSum:
    total = parts[0]
    for part in parts[1:]:
        total = jax.tree_util.tree_map(jnp.add, total, part)
    return total
