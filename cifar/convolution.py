"""Convolutions whose gradients are products of matrices.

XLA's convolutions are fast on processors in the forward direction only. For the
gradients it turns them into convolutions of odd shapes, with kernels as large as an
image, that take up to five times as long as a product of matrices of the same size,
and longer still for gradients of single examples, by `vmap`.
"""

import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp

_ORDER = ("NHWC", "HWIO", "NHWC")
# With so few channels products of one position of the kernel are too thin to be fast.
_THIN = 32

Padding = str | Sequence[tuple[int, int]]
Pads = tuple[tuple[int, int], tuple[int, int]]


def convolution(
    x: jax.Array, kernel: jax.Array, stride: int = 1, padding: Padding = "SAME"
) -> jax.Array:
    """Returns the convolution of images with a kernel: `lax.conv_general_dilated`'s.

    Args:
      x: [images, height, width, channels].
      kernel: [height, width, channels, channels after].
      stride: In both directions.
      padding: 'SAME', 'VALID', or how many zeros before and after, for both directions.

    Example:
      >>> convolution(jnp.ones((1, 5, 5, 2)), jnp.ones((3, 3, 2, 4)), 2).shape
      (1, 3, 3, 4)
    """
    return _convolution(x, kernel, stride, pads(x.shape, kernel.shape, stride, padding))


def pads(
    shape: Sequence[int], kernel: Sequence[int], stride: int, padding: Padding
) -> Pads:
    """Returns the zeros before and after, in both directions."""
    sides = (
        jax.lax.padtype_to_pads(shape[1:3], kernel[:2], (stride, stride), padding)
        if isinstance(padding, str)
        else padding
    )
    (top, bottom), (left, right) = sides
    return (int(top), int(bottom)), (int(left), int(right))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolution(
    x: jax.Array, kernel: jax.Array, stride: int, edges: Pads
) -> jax.Array:
    if kernel.shape[:2] == (1, 1) and not any(sum(edges, ())):
        return x[:, ::stride, ::stride] @ kernel[0, 0]
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), edges, dimension_numbers=_ORDER
    )


def _forward(
    x: jax.Array, kernel: jax.Array, stride: int, edges: Pads
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _convolution(x, kernel, stride, edges), (x, kernel)


def _backward(
    stride: int, edges: Pads, seen: tuple[jax.Array, jax.Array], errors: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = seen
    return (
        _input_gradient(x.shape, kernel, errors, stride, edges),
        kernel_gradient(x, errors, kernel.shape, stride, edges),
    )


_convolution.defvjp(_forward, _backward)


def _input_gradient(
    shape: Sequence[int], kernel: jax.Array, errors: jax.Array, stride: int, edges: Pads
) -> jax.Array:
    """Returns the gradient of the images: one product, whose parts are moved back."""
    high, wide, channels, _ = kernel.shape
    rows = errors @ kernel.reshape(-1, kernel.shape[-1]).T
    parts = rows.reshape(*errors.shape[:3], high * wide, channels)
    total = None
    for number in range(high * wide):
        room = [(0, 0, 0)]
        for axis, first in enumerate(divmod(number, wide)):
            before = first - edges[axis][0]
            last = (errors.shape[axis + 1] - 1) * stride + before
            room.append((before, shape[axis + 1] - 1 - last, stride - 1))
        zero = jnp.zeros((), rows.dtype)
        moved = jax.lax.pad(parts[:, :, :, number], zero, [*room, (0, 0, 0)])
        total = moved if total is None else total + moved
    return total


def kernel_gradient(
    x: jax.Array, errors: jax.Array, shape: Sequence[int], stride: int, edges: Pads
) -> jax.Array:
    """Returns the gradient of the kernel, a product for each of its positions.

    Args:
      x: The images.
      errors: The gradient of the output.
      shape: The kernel's.
      stride: As in `convolution`.
      edges: The zeros around the images.
    """
    rows = errors.reshape(-1, errors.shape[-1])
    if shape[2] >= _THIN:
        seen = views(x, shape, stride, edges, errors.shape[1:3])
        flat = [view.reshape(-1, shape[2]) for view in seen]
        return jnp.stack([view.T @ rows for view in flat]).reshape(shape)
    whole = patches(x, shape, stride, edges, errors.shape[1:3])
    return (whole.reshape(rows.shape[0], -1).T @ rows).reshape(shape)


def views(
    x: jax.Array, shape: Sequence[int], stride: int, edges: Pads, after: Sequence[int]
) -> Iterator[jax.Array]:
    """Yields what each position of a kernel sees, [images, *after, channels]."""
    padded = jnp.pad(x, ((0, 0), *edges, (0, 0)))
    for i in range(shape[0]):
        for j in range(shape[1]):
            down = slice(i, i + (after[0] - 1) * stride + 1, stride)
            right = slice(j, j + (after[1] - 1) * stride + 1, stride)
            yield padded[:, down, right]


def patches(
    x: jax.Array, shape: Sequence[int], stride: int, edges: Pads, after: Sequence[int]
) -> jax.Array:
    """Returns what the whole kernel sees, [images, *after, kernel's size]."""
    return jnp.concatenate(list(views(x, shape, stride, edges, after)), axis=-1)
