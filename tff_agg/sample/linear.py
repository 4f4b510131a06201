"""Clipped gradients of a softmax layer, in closed form.

The gradient of one example is the outer product of its features and its error. The norm
of an outer product is the product of the norms, and the sum of scaled outer products is
one product of matrices: no gradient of a single example is ever written down.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from tff_agg.sample.per_example import (
    ClippedSum,
    Examples,
    SampleModel,
    Weights,
    clip_factors,
)

# So many rows of some thousand features, and what is computed of them, stay in a core's
# cache.
_ROWS = 512


def softmax_layer(
    prepared: Callable[[jax.Array], jax.Array] = lambda features: features,
) -> SampleModel:
    """Returns the model of one softmax layer with weights 'kernel' and 'bias'.

    Args:
      prepared: From features as they are stored, [examples, …], to numbers,
        [examples, width].

    Example:
      softmax_layer(lambda bytes: bytes.astype(jnp.float32) / 255)
    """

    def loss(weights: Weights, example: Examples) -> jax.Array:
        features, label = example
        scores = logits(weights, prepared(features[None]))[0]
        return -jax.nn.log_softmax(scores)[label]

    return SampleModel(
        loss,
        functools.partial(_clipped_sum, prepared),
        largest_micro_batch=_ROWS,
    )


def _clipped_sum(
    prepared: Callable[[jax.Array], jax.Array],
    weights: Weights,
    examples: Examples,
    counted: jax.Array,
    clip_norm: float,
) -> ClippedSum:
    """Returns the sums over the examples."""
    features, labels = prepared(examples[0]), examples[1]
    log_scores = jax.nn.log_softmax(logits(weights, features))
    hit = labels[:, None] == jnp.arange(log_scores.shape[-1])
    losses = -jnp.sum(jnp.where(hit, log_scores, 0), axis=-1)
    errors = jnp.exp(log_scores) - hit
    # The bias is one more feature, which is always 1.
    lengths = jnp.sum(features**2, axis=1) + 1
    squares = jnp.sum(errors**2, axis=-1) * lengths
    factors, totals = clip_factors(jnp.sqrt(squares), losses, counted, clip_norm)
    kept = jnp.where(factors[:, None] > 0, errors * factors[:, None], 0)
    rows = jnp.where(jnp.isfinite(features), features, 0)
    return totals({"bias": jnp.sum(kept, axis=0), "kernel": rows.T @ kept})


def logits(weights: Weights, features: jax.Array) -> jax.Array:
    """Returns the layer's output, [examples, classes]."""
    return features @ weights["kernel"] + weights["bias"]
