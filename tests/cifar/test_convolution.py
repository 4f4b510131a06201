"""Convolutions: values and gradients are those of XLA's."""

import jax
import numpy as np
import pytest

from cifar.convolution import convolution

ORDER = ("NHWC", "HWIO", "NHWC")


def xla(x, kernel, stride, padding):
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=ORDER
    )


@pytest.mark.parametrize("padding", ["SAME", "VALID", ((1, 1), (2, 0))])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("size", "kernel_size", "channels"),
    [((8, 8), (3, 3), 5), ((7, 9), (3, 3), 33), ((7, 6), (1, 1), 4),
     ((9, 5), (2, 3), 3)],
)  # fmt: skip
def test_values_and_gradients(size, kernel_size, channels, stride, padding):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((2, *size, channels)).astype("f")
    kernel = generator.standard_normal((*kernel_size, channels, 4)).astype("f")
    wanted, wanted_back = jax.vjp(lambda *a: xla(*a, stride, padding), x, kernel)
    found, found_back = jax.vjp(lambda *a: convolution(*a, stride, padding), x, kernel)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    errors = generator.standard_normal(wanted.shape).astype("f")
    for one, other in zip(found_back(errors), wanted_back(errors), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_gradients_of_single_examples():
    generator = np.random.default_rng(0)
    images = generator.standard_normal((3, 1, 6, 5, 2)).astype("f")
    kernel = generator.standard_normal((3, 3, 2, 4)).astype("f")

    def gradient(run):
        return jax.grad(lambda k, x: (run(x, k, 2, "SAME") ** 2).sum())

    found = jax.vmap(gradient(convolution), (None, 0))(kernel, images)
    for image, one in zip(images, found, strict=True):
        np.testing.assert_allclose(one, gradient(xla)(kernel, image), rtol=1e-4)
