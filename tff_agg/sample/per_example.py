"""Sums of clipped per-example gradients, in micro-batches."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from tff_agg.processes import usable_cores

#: A model's weights by name.
Weights = Mapping[str, jax.Array]
#: The arrays of some examples along their first axis, or of one without that axis.
Examples = Sequence[jax.Array]
#: How many examples, or which lane: a number, also in a trace.
Count: TypeAlias = int | jax.Array
#: The loss of one example.
Loss = Callable[[Weights, Examples], jax.Array]

#: In bytes: what a micro-batch may hold for its examples, unless somebody says more.
MEMORY_BUDGET = 256 << 20


class ClippedSum(NamedTuple):
    """Sums over the examples that count.

    Attributes:
      gradients: Of the clipped gradients, in the form of the weights.
      loss: Of the losses.
      clipped: How many gradients were longer than the clip norm.
      non_finite: How many losses or gradients were NaN or infinite. Such an example
        counts as a gradient of zeros: a clipping like any other.
    """

    gradients: dict[str, jax.Array]
    loss: jax.Array
    clipped: jax.Array
    non_finite: jax.Array


# clipped_sum(weights, examples, counted, clip_norm): examples along the first axis;
# `counted` says which of them are there, the others are zeros.
ClippedSummer = Callable[[Weights, Examples, jax.Array, float], ClippedSum]


@dataclasses.dataclass(frozen=True, eq=False)
class SampleModel:
    """What DP-SGD has to know of a model: the loss of one example.

    Attributes:
      loss: `loss(weights, example)` of one example, a list of arrays without the axis
        of the batch. For an augmentation multiplicity K it is the mean over the K
        augmented copies, whose gradient is the mean of theirs: see `augmented`.
      clipped_sum: A faster way to the same sums, such as a closed form; by default
        `vmap` of the gradient. Tests compare it with the default.
      example_bytes: What one example takes in a micro-batch; by default its gradient.
      largest_micro_batch: Above so many examples at a time it gets slower: 1 where
        `vmap` does not pay, or what stays in a core's cache.
      by_core: Whether each core computes micro-batches of its own (`laned_sum`), for
        models of many small operations, which XLA does not share between cores well.

    Example:
      SampleModel(lambda weights, example: -example[0] @ weights['w'])
    """

    loss: Loss
    clipped_sum: ClippedSummer | None = None
    example_bytes: int | None = None
    largest_micro_batch: int = 1 << 14
    by_core: bool = False

    @property
    def lanes(self) -> int:
        """How many micro-batches are computed side by side."""
        return usable_cores() if self.by_core else 1

    def micro_batch(self, weights: Weights, memory_budget: int) -> int:
        """Returns how many examples fit the memory budget; one at least."""
        taken = self.example_bytes
        if taken is None:
            taken = 4 * sum(math.prod(w.shape) for w in weights.values())
        return max(
            1, min(memory_budget // (taken * self.lanes), self.largest_micro_batch)
        )

    def summed(
        self,
        weights: Weights,
        batch: Examples,
        count: Count,
        clip_norm: float,
        micro: int,
        lane: Count = 0,
        lanes: int = 1,
    ) -> ClippedSum:
        """Adds up the first `count` examples of a batch, `micro` at a time.

        Of several lanes, the one given: micro-batches go round.
        """
        add = self.clipped_sum or clipped_by_vmap(self.loss)
        return _added_up(
            lambda part, counted: add(weights, part, counted, clip_norm),
            batch,
            count,
            micro,
            lane,
            lanes,
        )


def _added_up(
    add: Callable[[Examples, jax.Array], ClippedSum],
    batch: Examples,
    count: Count,
    micro: int,
    lane: Count = 0,
    lanes: int = 1,
) -> ClippedSum:
    """Adds up `add(part, counted)` over the micro-batches of a batch, or of a lane."""

    def of_part(number: Count) -> ClippedSum:
        first = (number * lanes + lane) * micro
        part = [jax.lax.dynamic_slice_in_dim(array, first, micro) for array in batch]
        return add(part, first + jnp.arange(micro) < count)

    def body(number: jax.Array, total: ClippedSum) -> ClippedSum:
        return jax.tree_util.tree_map(jnp.add, total, of_part(number))

    nothing = jax.tree_util.tree_map(
        lambda like: jnp.zeros(like.shape, like.dtype), jax.eval_shape(of_part, 0)
    )
    turns = (-(-count // micro) - lane + lanes - 1) // lanes
    return jax.lax.fori_loop(0, turns, body, nothing)


def clipped_by_vmap(loss: Loss) -> ClippedSummer:
    """Returns the clipped sum of any loss: all gradients of a micro-batch at once."""

    def clipped_sum(
        weights: Weights, examples: Examples, counted: jax.Array, clip_norm: float
    ) -> ClippedSum:
        of_one = jax.value_and_grad(loss)
        losses, gradients = jax.vmap(of_one, (None, 0))(dict(weights), list(examples))
        squares = sum(
            jnp.sum(jnp.square(g), axis=tuple(range(1, g.ndim)))
            for g in jax.tree_util.tree_leaves(gradients)
        )
        scale, totals = clip_factors(jnp.sqrt(squares), losses, counted, clip_norm)

        def total(g: jax.Array) -> jax.Array:
            # A gradient that is not finite would stay so when multiplied by zero.
            kept = jnp.where(_beside(scale > 0, g), g, 0)
            return jnp.tensordot(scale, kept, axes=1)

        return totals(jax.tree_util.tree_map(total, gradients))

    return clipped_sum


def clip_factors(
    norms: jax.Array, losses: jax.Array, counted: jax.Array, clip_norm: float
) -> tuple[jax.Array, Callable[[dict[str, jax.Array]], ClippedSum]]:
    """Returns what each gradient is multiplied with, and what makes the sums.

    Args:
      norms: The norms of the gradients, examples along the first axis.
      losses: The losses.
      counted: Which examples are there.
      clip_norm: The largest norm that is left as it is.

    Returns:
      The factors: zero for examples that are not there or not finite; and a function
      from the sum of the clipped gradients to a `ClippedSum`.
    """
    finite = jnp.isfinite(norms) & jnp.isfinite(losses)
    kept = counted & finite
    shorter = jnp.minimum(1.0, clip_norm / jnp.maximum(norms, 1e-30))
    factors = jnp.where(kept, shorter, 0.0)

    def totals(gradients: dict[str, jax.Array]) -> ClippedSum:
        return ClippedSum(
            gradients,
            jnp.sum(jnp.where(kept, losses, 0.0), axis=0),
            jnp.sum(kept & (norms > clip_norm), axis=0, dtype=jnp.int32),
            jnp.sum(counted & ~finite, axis=0, dtype=jnp.int32),
        )

    return factors, totals


def augmented(
    loss: Loss,
    augment: Callable[[Examples], Examples],
) -> Loss:
    """Returns the mean loss over the augmented copies of an example.

    Its gradient is the mean of the copies' gradients, clipped as one.

    Args:
      loss: The loss of a single copy.
      augment: From an example to its K copies, along a new first axis.
    """

    def mean(weights: Weights, example: Examples) -> jax.Array:
        copies = list(augment(example))
        return jnp.mean(jax.vmap(loss, (None, 0))(weights, copies))

    return mean


def _beside(flags: jax.Array, array: jax.Array) -> jax.Array:
    """Returns flags of examples in the rank of an array."""
    return flags.reshape((-1,) + (1,) * (array.ndim - 1))
