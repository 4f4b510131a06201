"""Nested structures of arrays: dicts, tuples, lists and named tuples.

Their leaves are arrays of numpy, TensorFlow or JAX. What is here does not care which;
`tff_agg.backends` has what does.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import tree

from tff_agg.aliases import Array, Scalar, Structure

#: What holds the leaves, with every name and place in it, stays what it is.
Form = TypeVar("Form")


def leaves(structure: Structure) -> list[Array]:
    """Returns the leaves of `structure` in a fixed order."""
    return tree.flatten(structure)


def map_leaves(fn: Callable[..., object], structure: Form, *others: Structure) -> Form:
    """Applies `fn` leaf by leaf and returns the results in the first one's structure.

    Example:
      >>> map_leaves(lambda a, b: a + b, {'w': 1.0}, {'w': 2.0})
      {'w': 3.0}
    """
    # Containers of like form may differ in kind: a list saved may come back a tuple.
    return tree.map_structure(fn, structure, *others, check_types=False)


def pack(structure: Form, flat: list[Array]) -> Form:
    """Puts the leaves `flat` into the form of `structure`."""
    return tree.unflatten_as(structure, flat)


def dtype_of(value: Array) -> np.dtype:
    """Returns the dtype of a leaf as a numpy dtype."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return np.asarray(value).dtype
    # tf.DType knows its numpy twin; numpy and jax dtypes convert as they are.
    return np.dtype(getattr(dtype, "as_numpy_dtype", dtype))


def shapes_agree(a: Scalar, b: Scalar) -> bool:
    """Returns whether two shapes are equal; what a graph leaves open may differ."""
    first, second = np.shape(a), np.shape(b)
    for one, other in ((first, second), (second, first)):
        if hasattr(one, "is_compatible_with"):
            return one.is_compatible_with(other)
    return first == second


def check_alike(given: Structure, expected: Structure, name: str, of: str) -> None:
    """Refuses a structure whose leaves would broadcast to others instead of match.

    Args:
      given: What was given.
      expected: What has the form and shapes that are right.
      name: What errors call it.
      of: What errors say before the right shape.

    Raises:
      ValueError: A leaf has another shape, or the leaves have other places.

    Example:
      check_alike(np.ones(2), np.ones(3), "mean", "the model has")  # ValueError
    """
    tree.assert_same_structure(expected, given, check_types=False)
    for (path, right), leaf in zip(
        tree.flatten_with_path(expected), leaves(given), strict=True
    ):
        if not shapes_agree(right, leaf):
            where = ".".join(map(str, path)) or "the structure itself"
            raise ValueError(
                f"{name}: the leaf at {where} has shape {tuple(np.shape(leaf))}; "
                f"{of} {tuple(np.shape(right))}"
            )


def is_floating(value: Array) -> bool:
    """Returns whether a leaf holds real floating-point numbers (bfloat16 included)."""
    dtype = dtype_of(value)
    return np.issubdtype(dtype, np.floating) or dtype.name == "bfloat16"
