"""Clipped gradients of networks, layer by layer: no gradient is computed twice.

A backward pass over a micro-batch keeps what each convolution saw (A) and the gradient
of its output (E). The gradient of one example's kernel is AᵀE. Its norm follows either
from that product or, where images are small and kernels large, from AAᵀ and EEᵀ, which
are smaller; the sum of clipped gradients is then one product over all examples with
rows of E scaled. All other weights are few, and have gradients by `vmap`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from cifar import convolution as conv
from tff_agg.sample.per_example import (
    ClippedSum,
    ClippedSummer,
    Examples,
    Weights,
    clip_factors,
)

_EPSILON = 1e-5
# From products of rows, the norm of a standardised kernel's gradient is a difference,
# whose rounding must not make it too small: what is lost in sums of some thousand
# float32, relative to what is subtracted from. It is added, so that a gradient is
# clipped a little more where hardly anything is left, and never less.
_ROUNDING = 2e-5


class Layers:
    """A network's weights, by name, as its forward pass uses them.

    A network written on `Layers` runs on plain weights, and yields clipped gradients
    by `clipped_by_layers`.

    Example:
      def loss(layers, example):
        image, label = example
        hidden = jax.nn.relu(layers.convolution('first', image[None]))
        scores = hidden.mean((0, 1, 2)) @ layers.weight('last')
        return -jax.nn.log_softmax(scores)[label]
    """

    def __init__(self, weights: Weights):
        """Takes the weights."""
        self._weights = weights

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns a weight's shape."""
        return tuple(self._weights[name].shape)

    def weight(self, name: str) -> jax.Array:
        """Returns a weight, for any use."""
        return self._weights[name]

    def convolution(
        self,
        name: str,
        x: jax.Array,
        stride: int = 1,
        padding: conv.Padding = "SAME",
        standard: bool = False,
    ) -> jax.Array:
        """Returns the convolution with a kernel, which nothing else may use.

        Args:
          name: Of the kernel.
          x: The images, [images, height, width, channels].
          stride: As in `convolution`.
          padding: As in `convolution`.
          standard: Whether the kernel is standardised first.
        """
        kernel = self._weights[name]
        edges = conv.pads(x.shape, kernel.shape, stride, padding)
        used = standardised(kernel) if standard else kernel
        y = conv.convolution(x, used, stride, edges)
        use = _Use(kernel, stride, edges, standard, x.shape, y.shape)
        return self._convolved(name, use, x, y)

    def _convolved(
        self, name: str, use: "_Use", x: jax.Array, y: jax.Array
    ) -> jax.Array:
        """Returns what a convolution gives, from its input and output."""
        del name, use, x
        return y


def standardised(kernel: jax.Array) -> jax.Array:
    """Returns a kernel with mean 0 and variance 1 / fan-in for each output.

    Activations keep their size, and only the kernel's direction counts.
    """
    rows = kernel.reshape(-1, kernel.shape[-1])
    centred = rows - jnp.mean(rows, axis=0)
    return (centred * _scale(centred)).reshape(kernel.shape)


def _scale(centred: jax.Array) -> jax.Array:
    return jax.lax.rsqrt(jnp.sum(jnp.square(centred), axis=0) + _EPSILON)


# From what each example's gradient is multiplied with to the sum of the gradients.
_WeightedSum = Callable[[jax.Array], jax.Array]


class _Seen(NamedTuple):
    """Of one convolution: input, output, and the gradient of the output."""

    x: jax.Array
    y: jax.Array
    errors: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class _Use:
    """How a kernel is used."""

    kernel: jax.Array
    stride: int
    edges: conv.Pads
    standard: bool
    before: tuple[int, ...]  # the input's shape
    after: tuple[int, ...]  # the output's

    @property
    def rows(self) -> int:
        """How many places of an example's images the kernel sees."""
        return math.prod(self.after[:-1])

    @property
    def small(self) -> bool:
        """Whether products of rows take less than half of the kernel's gradient."""
        size, outputs = math.prod(self.kernel.shape), self.after[-1]
        return 2 * self.rows * (size // outputs + outputs) < size

    @property
    def numbers(self) -> int:
        """How many numbers of one example are kept for the sums, about."""
        size, outputs = math.prod(self.kernel.shape), self.after[-1]
        kept = self.rows * size // outputs if self.small else size
        return kept + math.prod(self.before) + 2 * math.prod(self.after)

    def gradients(self, seen: _Seen) -> tuple[jax.Array, _WeightedSum]:
        """Returns squared norms of all examples' gradients, and a way to their sum.

        Args:
          seen: Along the first axis the examples.

        Returns:
          The squared norms; and a function from factors to the sum of the gradients.
        """
        squares, total = (self._by_rows if self.small else self._by_kernels)(seen)
        if not self.standard:
            return squares, total

        def through(factors: jax.Array) -> jax.Array:
            _, back = jax.vjp(standardised, self.kernel)
            return back(total(factors))[0]

        return squares, through

    def _columns(self) -> tuple[jax.Array, jax.Array]:
        """Returns the standardised kernel, an output a column, and their scales."""
        flat = self.kernel.reshape(-1, self.after[-1])
        centred = flat - jnp.mean(flat, axis=0)
        scale = _scale(centred)
        return centred * scale, scale

    # With w a column of the standardised kernel and g the gradient of w, less its mean,
    # that of the column before is scale · (g - w⟨w, g⟩).

    def _by_kernels(self, seen: _Seen) -> tuple[jax.Array, _WeightedSum]:
        """Computes the gradient of each example's kernel."""

        def of_one(x: jax.Array, errors: jax.Array) -> jax.Array:
            shape = self.kernel.shape
            return conv.kernel_gradient(x, errors, shape, self.stride, self.edges)

        gradients = jax.vmap(of_one)(seen.x, seen.errors)
        own = gradients.reshape(len(gradients), -1, self.after[-1])
        if self.standard:
            columns, scale = self._columns()
            own = own - jnp.mean(own, axis=1, keepdims=True)
            along = jnp.sum(columns * own, axis=1, keepdims=True)
            own = scale * (own - columns * along)
        squares = jnp.sum(jnp.square(own), axis=(1, 2))
        return squares, lambda factors: _weighted(factors, gradients)

    def _by_rows(self, seen: _Seen) -> tuple[jax.Array, _WeightedSum]:
        """Computes norms from products of rows, |AᵀE|² = ⟨AAᵀE, E⟩ for each output."""
        assert seen.errors is not None
        count, outputs = len(seen.errors), self.after[-1]
        x = seen.x.reshape(-1, *seen.x.shape[2:])
        shape = self.kernel.shape
        views = conv.patches(x, shape, self.stride, self.edges, self.after[1:3])
        views = views.reshape(count, -1, views.shape[-1])
        if self.standard:
            views = views - jnp.mean(views, axis=-1, keepdims=True)
        errors = seen.errors.reshape(count, -1, outputs)
        products = jnp.einsum("etk,euk->etu", views, views) @ errors
        squares = jnp.sum(products * errors, axis=1)
        if self.standard:
            columns, scale = self._columns()
            # ⟨w, g⟩ = ⟨Aw, E⟩, and Aw is the output.
            along = jnp.sum(seen.y * seen.errors, axis=(1, 2, 3))
            rest = 2 - jnp.sum(jnp.square(columns), axis=0)
            squares = (1 + _ROUNDING) * squares - rest * jnp.square(along)
            squares = jnp.square(scale) * squares

        def total(factors: jax.Array) -> jax.Array:
            factors = factors[:, None, None]
            # What is not finite would stay so when multiplied by zero.
            kept = jnp.where(factors > 0, errors * factors, 0).reshape(-1, outputs)
            rows = jnp.where(factors > 0, views, 0).reshape(-1, views.shape[-1])
            return (rows.T @ kept).reshape(shape)

        return jnp.sum(squares, axis=1), total


#: The loss of one example, by a network that is written on `Layers`.
Loss = Callable[[Layers, Examples], jax.Array]


class _Probing(Layers):
    """Finds out which weights are used, and how."""

    def __init__(self, weights: Weights):
        super().__init__(weights)
        self.plain: set[str] = set()
        self.uses: dict[str, _Use] = {}

    def take(self, weights: Weights) -> None:
        self._weights = weights

    def weight(self, name: str) -> jax.Array:
        if name in self.uses:
            raise ValueError(f"{name!r} is a convolution's: nothing else may use it")
        self.plain.add(name)
        return super().weight(name)

    def _convolved(self, name: str, use: _Use, x: jax.Array, y: jax.Array) -> jax.Array:
        if name in self.plain or name in self.uses:
            raise ValueError(f"{name!r} is used before: a kernel may have one use")
        self.uses[name] = use
        return y


class _Tapped(Layers):
    """Keeps what convolutions see; gradients of the taps are those of their outputs."""

    def __init__(self, weights: Weights, taps: dict[str, jax.Array]):
        super().__init__(weights)
        self._taps = taps
        self.seen: dict[str, _Seen] = {}

    def _convolved(self, name: str, use: _Use, x: jax.Array, y: jax.Array) -> jax.Array:
        self.seen[name] = _Seen(x, y)
        return y + self._taps[name]


def clipped_by_layers(loss: Loss) -> ClippedSummer:
    """Returns the clipped sum of a network's loss of one example.

    Args:
      loss: From `Layers` and one example to its loss. Where it takes several images
        through the network (augmented copies), their gradients are clipped as one.
    """

    def clipped_sum(
        weights: Weights, examples: Examples, counted: jax.Array, clip_norm: float
    ) -> ClippedSum:
        weights, examples = dict(weights), list(examples)
        probing = _probed(loss, weights, examples)
        uses = probing.uses
        plain = {name: weights[name] for name in sorted(probing.plain)}
        taps = {name: jnp.zeros(use.after) for name, use in uses.items()}

        def of_one(
            example: Examples,
        ) -> tuple[jax.Array, dict[str, jax.Array], dict[str, _Seen]]:
            def run(
                plain: dict[str, jax.Array], taps: dict[str, jax.Array]
            ) -> tuple[jax.Array, dict[str, _Seen]]:
                layers = _Tapped(weights | plain, taps)
                return loss(layers, example), layers.seen

            value, back, seen = jax.vjp(run, plain, taps, has_aux=True)
            gradients, errors = back(jnp.ones_like(value))
            return (
                value,
                gradients,
                {name: seen[name]._replace(errors=errors[name]) for name in uses},
            )

        # By vmap, so that no example can enter another one's gradient.
        losses, gradients, seen = jax.vmap(of_one)(examples)
        squares = sum(
            jnp.sum(jnp.square(g), axis=tuple(range(1, g.ndim)))
            for g in gradients.values()
        )
        sums = {}
        for name, use in uses.items():
            own, sums[name] = use.gradients(seen[name])
            squares = squares + own
        norms = jnp.sqrt(squares)
        factors, totals = clip_factors(norms, losses, counted, clip_norm)
        total = {name: jnp.zeros_like(value) for name, value in weights.items()}
        total |= {name: _weighted(factors, g) for name, g in gradients.items()}
        total |= {name: add(factors) for name, add in sums.items()}
        return totals(total)

    return clipped_sum


def example_bytes(loss: Loss, weights: Weights, examples: Examples) -> int:
    """Returns what one example takes in a micro-batch, about.

    Args:
      loss: As in `clipped_by_layers`.
      weights: Shapes and types are enough, of these as of the examples.
      examples: Some, along the first axis.
    """
    probing = _probed(loss, weights, examples)
    plain = sum(math.prod(weights[name].shape) for name in probing.plain)
    return 4 * (plain + sum(use.numbers for use in probing.uses.values()))


def _probed(loss: Loss, weights: Weights, examples: Examples) -> _Probing:
    """Finds out how a loss uses the weights, without computing it."""
    probing = _Probing(weights)
    example = [jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in examples]

    def run(given: Weights, example: Examples) -> jax.Array:
        # Traced as well, so that shapes are enough.
        probing.take(given)
        return loss(probing, example)

    jax.eval_shape(run, dict(weights), example)
    probing.take(weights)
    uses = probing.uses.items()
    # Traced weights must not leave their trace.
    probing.uses = {n: dataclasses.replace(u, kernel=weights[n]) for n, u in uses}
    return probing


def _weighted(factors: jax.Array, gradients: jax.Array) -> jax.Array:
    """Returns the sum of gradients times their factors."""
    beside = factors.reshape((-1,) + (1,) * (gradients.ndim - 1))
    return jnp.tensordot(factors, jnp.where(beside > 0, gradients, 0), axes=1)
