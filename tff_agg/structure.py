"""Nested structures of arrays, whichever library the arrays come from.

Averagers and noise mechanisms are pure functions over nested structures (dicts,
tuples, lists, named tuples) whose leaves are numpy arrays, TensorFlow tensors or JAX
arrays. The few operations that differ between the three libraries live here; the
arithmetic operators are common to all of them. TensorFlow and JAX are never imported
by this module: a leaf that comes from one of them proves that it is already there.
"""

import sys
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
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


def backend_of(value: object) -> str:
    """Names the library of a leaf: 'tf', 'jax' or 'numpy' (Python numbers too)."""
    module = type(value).__module__.partition(".")[0]
    if module == "tensorflow":
        return "tf"
    if module in ("jax", "jaxlib"):
        return "jax"
    return "numpy"


def backend_of_structure(structure: Structure) -> str:
    """Names the library of the first leaf that is not numpy, else 'numpy'."""
    for leaf in leaves(structure):
        if (name := backend_of(leaf)) != "numpy":
            return name
    return "numpy"


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


def is_floating(value: Array) -> bool:
    """Returns whether a leaf holds real floating-point numbers (bfloat16 included)."""
    dtype = dtype_of(value)
    return np.issubdtype(dtype, np.floating) or dtype.name == "bfloat16"


def zeros_like(value: Array) -> Array:
    """Returns zeros of the leaf's shape and dtype, in its own library."""
    match backend_of(value):
        case "tf":
            return sys.modules["tensorflow"].zeros_like(value)
        case "jax":
            return sys.modules["jax"].numpy.zeros_like(value)
        case _:
            return np.zeros_like(value)


def scalar(value: float, dtype: npt.DTypeLike, like: str) -> Array:
    """Makes the scalar `value` of `dtype` in the library named `like`."""
    match like:
        case "tf":
            return sys.modules["tensorflow"].constant(value, dtype)
        case "jax":
            jax = sys.modules["jax"]
            # Without x64, JAX has no 64-bit types: take its own narrower twin.
            narrow = jax.dtypes.canonicalize_dtype(dtype)
            return jax.numpy.asarray(value, narrow)
        case _:
            return np.asarray(value, dtype)


def cast(value: Array, dtype: npt.DTypeLike) -> Array:
    """Converts a leaf (or a Python number) to the numpy dtype `dtype`."""
    match backend_of(value):
        case "tf":
            return sys.modules["tensorflow"].cast(value, dtype)
        case "jax":
            return value.astype(sys.modules["jax"].dtypes.canonicalize_dtype(dtype))
        case _:
            return np.asarray(value).astype(dtype)


def minimum(a: Scalar, b: Scalar) -> Array:
    """Returns the smaller of two values, of which either may be a Python number."""
    return _elementwise("minimum", a, b)


def equal(a: Scalar, b: Scalar) -> Array:
    """Compares two values, of which either may be a Python number.

    Not `a == b`: on the tensors of a graph in the style of TensorFlow 1, which is what
    TFF traces into, that asks whether they are the same Python object.
    """
    return _elementwise("equal", a, b)


def _elementwise(name: str, a: Array, b: Array) -> Array:
    backends = {backend_of(a), backend_of(b)}
    if "tf" in backends:
        tf = sys.modules["tensorflow"]
        # A Python number takes the tensor's dtype, on whichever side it stands.
        dtype = (a if backend_of(a) == "tf" else b).dtype
        a, b = tf.convert_to_tensor(a, dtype), tf.convert_to_tensor(b, dtype)
        return getattr(tf, name)(a, b)
    if "jax" in backends:
        return getattr(sys.modules["jax"].numpy, name)(a, b)
    return getattr(np, name)(a, b)


def cond(
    predicate: Scalar,
    if_true: Callable[[], Form],
    if_false: Callable[[], Form],
) -> Form:
    """Runs one of two functions without arguments, in graphs and traces as well."""
    match backend_of(predicate):
        case "tf":
            return sys.modules["tensorflow"].cond(predicate, if_true, if_false)
        case "jax":
            return sys.modules["jax"].lax.cond(predicate, if_true, if_false)
        case _:
            return if_true() if predicate else if_false()
