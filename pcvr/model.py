"""The multi-encoder model in JAX: one encoder for each class of features.

An encoder looks up the embeddings of its columns, puts them side by side and applies a
dense layer. The encodings, side by side, go through a small dense top to one logit.

Every layer is told apart into what it multiplies and what comes out, because DP-SGD
needs the norm of each example's gradient. `clipped_sum` finds it in closed form: of a
dense layer the gradient is the outer product of input and output gradient, whose norm
is the product of norms; of a table it is one row. No example's gradient is ever laid
out, and the clipped sum comes from one product of matrices per layer.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pcvr.features import Feature
from tff_agg.sample.per_example import ClippedSum, clip_factors

Weights = Mapping[str, jax.Array]
Arrays = dict[str, jax.Array]
TOP, LOGIT = "top", "logit"


class Sizes(NamedTuple):
    """What the model is made of.

    Attributes:
      features: The columns, by encoder.
      embedding: Width of an embedding.
      encoding: Units of an encoder.
      top: Units of the top.
    """

    features: tuple[Feature, ...]
    embedding: int
    encoding: int
    top: int

    @property
    def encoders(self) -> tuple[str, ...]:
        """The encoders, in the order of the features."""
        return tuple(dict.fromkeys(feature.encoder for feature in self.features))

    @property
    def layers(self) -> dict[str, tuple[int, int]]:
        """The dense layers with their inputs and outputs."""
        layers = {}
        for encoder in self.encoders:
            columns = sum(feature.encoder == encoder for feature in self.features)
            layers[_layer(encoder)] = (columns * self.embedding, self.encoding)
        layers[TOP] = (len(self.encoders) * self.encoding, self.top)
        layers[LOGIT] = (self.top, 1)
        return layers

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of the weights, in the order of trees: by name."""
        shapes: dict[str, tuple[int, ...]] = {
            feature.table: (feature.buckets, self.embedding)
            for feature in self.features
        }
        for name, (inputs, outputs) in self.layers.items():
            shapes |= {_kernel(name): (inputs, outputs), _bias(name): (outputs,)}
        return dict(sorted(shapes.items()))


def initial_weights(sizes: Sizes, seed: int) -> dict[str, np.ndarray]:
    """Returns random weights: tables of unit rows' size, kernels by fan-in."""
    rng = np.random.default_rng(seed)
    tables = {feature.table for feature in sizes.features}
    weights = {}
    for name, shape in sizes.shapes.items():
        if len(shape) == 1:
            weights[name] = np.zeros(shape, np.float32)
            continue
        variance = 1 / shape[1] if name in tables else 2 / shape[0]
        weights[name] = (variance**0.5 * rng.standard_normal(shape)).astype(np.float32)
    return weights


def logits(sizes: Sizes, weights: Weights, ids: jax.Array) -> jax.Array:
    """Returns [examples], the log odds of a conversion."""
    return _forward(sizes, weights, ids, _no_nudges(sizes, len(ids)))[0]


def losses(sizes: Sizes, weights: Weights, ids: jax.Array, labels: jax.Array):
    """Returns [examples], the logistic loss of each."""
    return _logistic(logits(sizes, weights, ids), labels)


def clipped_sum(
    sizes: Sizes,
    weights: Weights,
    examples: Sequence[jax.Array],
    counted: jax.Array,
    clip_norm: float,
) -> ClippedSum:
    """Sums the examples' gradients, each clipped to a norm over all weights.

    Args:
      sizes: The model.
      weights: Where the gradients are taken.
      examples: [examples, features], the rows of the tables; [examples], the labels.
      counted: [examples], which of them are there.
      clip_norm: The largest norm that is left as it is.
    """
    ids, labels = examples

    def total(nudges: Arrays) -> tuple[jax.Array, tuple[jax.Array, Arrays]]:
        outputs, inputs = _forward(sizes, weights, ids, nudges)
        each = _logistic(outputs, labels)
        return each.sum(), (each, inputs)

    # An example's loss depends on its own row of nudges only, so the gradient of the
    # sum has each example's own output gradients as rows.
    nothing = _no_nudges(sizes, len(ids))
    deltas, (each, inputs) = jax.grad(total, has_aux=True)(nothing)
    squares = jnp.zeros(len(ids))
    for name, delta in deltas.items():
        # One more for the bias, whose input is 1; of a table one row is read.
        times = jnp.square(inputs[name]).sum(1) + 1 if name in inputs else 1
        squares += times * jnp.square(delta).sum(1)
    factors, totals = clip_factors(jnp.sqrt(squares), each, counted, clip_norm)
    kept, factors = factors[:, None] > 0, factors[:, None]

    def scaled(name: str) -> jax.Array:
        # What is not finite would stay so when multiplied by zero.
        return jnp.where(kept, factors * deltas[name], 0)

    sums = {}
    for place, feature in enumerate(sizes.features):
        table = jnp.zeros((feature.buckets, sizes.embedding))
        sums[feature.table] = table.at[ids[:, place]].add(scaled(feature.table))
    for name in sizes.layers:
        of_outputs = scaled(name)
        sums[_kernel(name)] = jnp.where(kept, inputs[name], 0).T @ of_outputs
        sums[_bias(name)] = of_outputs.sum(0)
    return totals({name: sums[name] for name in sizes.shapes})


def example_bytes(sizes: Sizes) -> int:
    """Returns what `clipped_sum` holds for one example: inputs and output gradients."""
    dense = sum(inputs + 2 * outputs for inputs, outputs in sizes.layers.values())
    return 4 * (dense + 2 * len(sizes.features) * sizes.embedding)


def _forward(
    sizes: Sizes, weights: Weights, ids: jax.Array, nudges: Arrays
) -> tuple[jax.Array, Arrays]:
    """Returns the logits and the dense layers' inputs; nudges add to all outputs."""
    inputs = {}

    def dense(name: str, parts: list[jax.Array]) -> jax.Array:
        inputs[name] = jnp.concatenate(parts, axis=1)
        product = inputs[name] @ weights[_kernel(name)]
        return product + weights[_bias(name)] + nudges[name]

    encodings = []
    for encoder in sizes.encoders:
        parts = [
            weights[feature.table][ids[:, place]] + nudges[feature.table]
            for place, feature in enumerate(sizes.features)
            if feature.encoder == encoder
        ]
        encodings.append(jax.nn.relu(dense(_layer(encoder), parts)))
    top = jax.nn.relu(dense(TOP, encodings))
    return dense(LOGIT, [top])[:, 0], inputs


def _no_nudges(sizes: Sizes, examples: int) -> Arrays:
    widths = {feature.table: sizes.embedding for feature in sizes.features}
    widths |= {name: outputs for name, (_, outputs) in sizes.layers.items()}
    return {name: jnp.zeros((examples, width)) for name, width in widths.items()}


def _logistic(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    return jax.nn.softplus(outputs) - labels * outputs


def _layer(encoder: str) -> str:
    return f"encoder/{encoder}"


def _kernel(name: str) -> str:
    return f"{name}/kernel"


def _bias(name: str) -> str:
    return f"{name}/bias"
