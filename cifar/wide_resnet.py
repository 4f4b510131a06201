"""WideResNets with group normalisation and weight standardisation, in JAX.

Nothing in them depends on other examples, so that every example has a gradient of its
own.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from cifar.layers import Layers
from tff_agg.sample.per_example import Weights

_EPSILON = 1e-5
_STEM = 16


@dataclasses.dataclass(frozen=True)
class WideResNet:
    """A network of `depth` layers, `width` times as wide as a plain one.

    Attributes:
      depth: 6n + 4 for n blocks in each of the three stages.
      width: The factor k: stages have 16k, 32k and 64k channels.
      classes: How many logits.
      groups: Of the group normalisation.

    Example:
      >>> sum(np.prod(s) for s in WideResNet(16, 4, 10).shapes().values())
      2748890
    """

    depth: int
    width: int
    classes: int
    groups: int = 16

    def __post_init__(self) -> None:
        if self.depth < 10 or (self.depth - 4) % 6:
            raise ValueError(f"depth must be 6n + 4, such as 16; got {self.depth!r}")
        if self.width < 1:
            raise ValueError(f"width must be at least 1; got {self.width!r}")
        if any(c % min(self.groups, c) for c in (_STEM, _STEM * self.width)):
            raise ValueError(
                f"groups={self.groups} must divide the {_STEM} channels of the stem "
                f"and the {_STEM * self.width} of the first stage"
            )

    def _blocks(self) -> list[tuple[str, int, int, int]]:
        """Returns name, channels in, channels out and stride of every block."""
        blocks, before = [], _STEM
        for stage in range(3):
            after = _STEM * self.width * 2**stage
            for number in range((self.depth - 4) // 6):
                stride = 2 if stage and not number else 1
                name = f"stage{stage + 1}/block{number}"
                blocks.append((name, before, after, stride))
                before = after
        return blocks

    @property
    def features_width(self) -> int:
        """How many features the last layer has."""
        return 4 * _STEM * self.width

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the names and shapes of the weights."""
        shapes: dict[str, tuple[int, ...]] = {"stem": (3, 3, 3, _STEM)}
        for name, before, after, stride in self._blocks():
            for number, channels in ((1, before), (2, after)):
                shapes[f"{name}/norm{number}/offset"] = (channels,)
                shapes[f"{name}/norm{number}/scale"] = (channels,)
                shapes[f"{name}/conv{number}"] = (3, 3, channels, after)
            if before != after or stride != 1:
                shapes[f"{name}/shortcut"] = (1, 1, before, after)
        width = self.features_width
        shapes["norm/offset"] = shapes["norm/scale"] = (width,)
        return shapes | {"bias": (self.classes,), "kernel": (width, self.classes)}

    def initial_weights(self, seed: int) -> dict[str, np.ndarray]:
        """Returns weights as a function of the seed."""
        generator = np.random.default_rng(seed)

        def initial(name: str, shape: tuple[int, ...]) -> np.ndarray:
            if name.endswith("scale"):
                return np.ones(shape, np.float32)
            if len(shape) == 1 or name == "kernel":
                return np.zeros(shape, np.float32)
            # Standardised when used: only the direction counts. But the shorter a
            # kernel, the further a step turns it; so long is the one that is used.
            normal = generator.standard_normal(shape)
            return (normal / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)

        return {name: initial(name, shape) for name, shape in self.shapes().items()}

    def features(self, weights: Weights | Layers, images: jax.Array) -> jax.Array:
        """Returns what the last layer sees, [images, features_width]."""
        layers = _layers(weights)
        x = _convolution(layers, "stem", images, 1)
        for name, before, after, stride in self._blocks():
            rest = self._active(layers, f"{name}/norm1", x)
            if before != after or stride != 1:
                x = _convolution(layers, f"{name}/shortcut", rest, stride)
            rest = _convolution(layers, f"{name}/conv1", rest, stride)
            rest = self._active(layers, f"{name}/norm2", rest)
            x = x + _convolution(layers, f"{name}/conv2", rest, 1)
        return jnp.mean(self._active(layers, "norm", x), axis=(1, 2))

    def logits(self, weights: Weights | Layers, images: jax.Array) -> jax.Array:
        """Returns one logit per class, [images, classes]."""
        layers = _layers(weights)
        features = self.features(layers, images)
        return features @ layers.weight("kernel") + layers.weight("bias")

    def _active(self, layers: Layers, name: str, x: jax.Array) -> jax.Array:
        """Group normalisation, then ReLU."""
        n, height, wide, channels = x.shape
        groups = min(self.groups, channels)
        parts = x.reshape(n, height * wide, groups, channels // groups)
        mean = jnp.mean(parts, axis=(1, 3), keepdims=True)
        variance = jnp.mean(jnp.square(parts - mean), axis=(1, 3), keepdims=True)
        parts = (parts - mean) * jax.lax.rsqrt(variance + _EPSILON)
        normal = parts.reshape(x.shape)
        return jax.nn.relu(
            normal * layers.weight(f"{name}/scale") + layers.weight(f"{name}/offset")
        )


def _layers(weights: Weights | Layers) -> Layers:
    return weights if isinstance(weights, Layers) else Layers(weights)


def _convolution(layers: Layers, name: str, x: jax.Array, stride: int) -> jax.Array:
    """A convolution with a standardised kernel, zeros on all sides."""
    edge = layers.shape(name)[0] // 2
    return layers.convolution(name, x, stride, [(edge, edge)] * 2, standard=True)


def augmented(image: jax.Array, moves: jax.Array) -> jax.Array:
    """Returns an image moved by up to four pixels and mirrored or not.

    Args:
      image: [32, 32, 3].
      moves: For each copy how far down and right, from 0 to 8, and whether mirrored.

    Returns:
      [copies, 32, 32, 3]; what lies beyond the border is the border's reflection.
    """
    padded = jnp.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")

    def copy(move: jax.Array) -> jax.Array:
        down, right, mirrored = move.astype(jnp.int32)
        cut = jax.lax.dynamic_slice(padded, (down, right, 0), image.shape)
        return jnp.where(mirrored > 0, cut[:, ::-1], cut)

    return jax.vmap(copy)(moves)
