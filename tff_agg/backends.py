"""The three libraries of arrays behind one interface.

Averagers, noise mechanisms and server steps are pure functions over structures of numpy
arrays, TensorFlow tensors or JAX arrays. The arithmetic operators are common to all of
them. What is not is a method of `Numpy`, `TensorFlow` and `Jax`; `of(structure)` says
which of them a structure needs.

Neither TensorFlow nor JAX is imported here: a leaf that comes from one of them proves
that it is already there.
"""

import functools
import math
import sys
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tff_agg import structure
from tff_agg.aliases import Array, Scalar, Structure
from tff_agg.structure import Form


class Backend(Protocol):
    """What the libraries call by different names, or do in different ways.

    Attributes:
      name: 'numpy', 'tf' or 'jax'.
      raises: Whether `check` always raises where something is wrong.
    """

    name: str
    raises: bool

    def owns(self, value: object) -> bool:
        """Returns whether a value is one of this library's arrays."""

    def constant(self, value: Scalar, dtype: npt.DTypeLike) -> Array:
        """Makes an array of a number or an array; JAX may have to narrow 64 bits."""

    def cast(self, value: Scalar, dtype: npt.DTypeLike) -> Array:
        """Converts an array (or a Python number) to a numpy dtype."""

    def zeros(self, like: Array) -> Array:
        """Returns zeros of a leaf's shape and dtype; the leaf may be a mere spec."""

    def shape(self, like: Array) -> Any:
        """Returns a leaf's shape: sizes, or a tensor where they are not known yet."""

    def concatenate(self, parts: list[Array]) -> Array:
        """Joins arrays along their first axis."""

    def bitcast(self, words: Array, dtype: npt.DTypeLike) -> Array:
        """Reads words of 64 bits as twice as many of 32 bits."""

    def sqrt(self, x: Array) -> Array:
        """Returns the square root."""

    def log(self, x: Array) -> Array:
        """Returns the natural logarithm."""

    def exp(self, x: Array) -> Array:
        """Returns the exponential function."""

    def cos(self, x: Array) -> Array:
        """Returns the cosine."""

    def sin(self, x: Array) -> Array:
        """Returns the sine."""

    def minimum(self, a: Scalar, b: Scalar) -> Array:
        """Returns the smaller of two values, of which either may be a number."""

    def equal(self, a: Scalar, b: Scalar) -> Array:
        """Compares two values, of which either may be a Python number.

        Not `a == b`: on the tensors of a graph in the style of TensorFlow 1, which is
        what TFF traces into, that asks whether they are the same Python object.
        """

    def where(self, predicate: Array, a: Array, b: Array) -> Array:
        """Takes elements of `a` where the predicate holds, else those of `b`."""

    def is_finite(self, x: Array) -> Array:
        """Returns where an array is neither infinite nor NaN."""

    def cond(
        self,
        predicate: Scalar,
        if_true: Callable[[], Form],
        if_false: Callable[[], Form],
    ) -> Form:
        """Runs one of two functions without arguments, in graphs and traces as well."""

    def while_loop(
        self,
        condition: Callable[..., Scalar],
        body: Callable[..., tuple],
        carry: tuple,
    ) -> tuple:
        """Runs `carry = body(*carry)` as long as `condition(*carry)` holds."""

    def take(self, table: np.ndarray, i: Scalar) -> Array:
        """Returns a row of a constant table, by a number of this library."""

    def check(self, allowed: Scalar, value: Form, message: str) -> Form:
        """Returns `value`, refusing as well as it can where something is not allowed.

        numpy, eager TensorFlow and JAX outside of a trace raise at once, a TensorFlow
        graph when it runs. A trace of JAX cannot raise: real numbers become NaN there,
        so that a run that goes too far fails, and whole numbers stay.
        """


class Numpy:
    """Arrays and numbers of numpy; Python's own numbers too."""

    name = "numpy"
    raises = True

    def __init__(self) -> None:
        self.sqrt, self.log, self.exp = np.sqrt, np.log, np.exp
        self.cos, self.sin = np.cos, np.sin
        self.minimum, self.equal, self.where = np.minimum, np.equal, np.where
        self.is_finite, self.concatenate = np.isfinite, np.concatenate

    def owns(self, value: object) -> bool:
        return isinstance(value, np.ndarray | np.generic)

    def constant(self, value, dtype):
        return np.asarray(value, dtype)

    def cast(self, value, dtype):
        return np.asarray(value).astype(dtype)

    def zeros(self, like):
        return np.zeros(np.shape(like), structure.dtype_of(like))

    def shape(self, like):
        return np.shape(like)

    def bitcast(self, words, dtype):
        return words.view(dtype)

    def cond(self, predicate, if_true, if_false):
        return if_true() if predicate else if_false()

    def while_loop(self, condition, body, carry):
        while condition(*carry):
            carry = body(*carry)
        return carry

    def take(self, table, i):
        return table[int(i)]

    def check(self, allowed, value, message):
        if not allowed:
            raise ValueError(message)
        return value


class TensorFlow:
    """Tensors, eager and in graphs of either version."""

    name = "tf"
    raises = True

    def __init__(self) -> None:
        tf = self._tf = sys.modules["tensorflow"]
        self.sqrt, self.log, self.exp = tf.math.sqrt, tf.math.log, tf.math.exp
        self.cos, self.sin = tf.math.cos, tf.math.sin
        self.where, self.is_finite = tf.where, tf.math.is_finite

    def owns(self, value: object) -> bool:
        return _library_of(value) == "tensorflow"

    def constant(self, value, dtype):
        make = self._tf.cast if self.owns(value) else self._tf.constant
        return make(value, dtype)

    def cast(self, value, dtype):
        return self._tf.cast(value, dtype)

    def zeros(self, like):
        return self._tf.zeros(self.shape(like), like.dtype)

    def shape(self, like):
        known = like.shape.is_fully_defined()
        return like.shape.as_list() if known else self._tf.shape(like)

    def concatenate(self, parts):
        return self._tf.concat(parts, 0)

    def bitcast(self, words, dtype):
        return self._tf.reshape(self._tf.bitcast(words, dtype), [-1])

    def minimum(self, a, b):
        return self._tf.minimum(*self._alike(a, b))

    def equal(self, a, b):
        return self._tf.equal(*self._alike(a, b))

    def _alike(self, a, b):
        """Gives a Python number the tensor's dtype, on whichever side it stands."""
        dtype = (a if self.owns(a) else b).dtype
        convert = self._tf.convert_to_tensor
        return convert(a, dtype), convert(b, dtype)

    def cond(self, predicate, if_true, if_false):
        return self._tf.cond(predicate, if_true, if_false)

    def while_loop(self, condition, body, carry):
        return self._tf.while_loop(condition, body, carry, parallel_iterations=1)

    def take(self, table, i):
        return self._tf.gather(self._tf.constant(table, self._tf.float32), i)

    def check(self, allowed, value, message):
        done = self._tf.debugging.Assert(allowed, [message])
        with self._tf.control_dependencies([] if done is None else [done]):
            return structure.map_leaves(self._tf.identity, value)


class Jax:
    """Arrays of JAX, inside and outside of a trace."""

    name = "jax"
    raises = False

    def __init__(self) -> None:
        self._jax = sys.modules["jax"]
        jnp = self._jnp = self._jax.numpy
        self.sqrt, self.log, self.exp = jnp.sqrt, jnp.log, jnp.exp
        self.cos, self.sin = jnp.cos, jnp.sin
        self.minimum, self.equal, self.where = jnp.minimum, jnp.equal, jnp.where
        self.is_finite, self.concatenate = jnp.isfinite, jnp.concatenate
        self.cond = self._jax.lax.cond

    def owns(self, value: object) -> bool:
        return _library_of(value) in ("jax", "jaxlib")

    def constant(self, value, dtype):
        return self._jnp.asarray(value, self._jax.dtypes.canonicalize_dtype(dtype))

    def cast(self, value, dtype):
        if self.owns(value):
            return value.astype(self._jax.dtypes.canonicalize_dtype(dtype))
        # Rounded once, from the double: JAX would go by way of single precision.
        return np.asarray(value).astype(dtype)

    def zeros(self, like):
        return self._jnp.zeros(np.shape(like), structure.dtype_of(like))

    def shape(self, like):
        return np.shape(like)

    def bitcast(self, words, dtype):
        return self._jax.lax.bitcast_convert_type(words, dtype).reshape(-1)

    def while_loop(self, condition, body, carry):
        return self._jax.lax.while_loop(
            lambda held: condition(*held), lambda held: body(*held), carry
        )

    def take(self, table, i):
        return self._jnp.asarray(table)[i]

    def check(self, allowed, value, message):
        if not isinstance(allowed, self._jax.core.Tracer):
            return NUMPY.check(allowed, value, message)

        def spoiled(leaf):
            if not structure.is_floating(leaf):
                return leaf
            return self._jnp.where(allowed, leaf, math.nan)

        return structure.map_leaves(spoiled, value)


NUMPY = Numpy()
_MAKERS: dict[str, Callable[[], Backend]] = {
    "tensorflow": functools.cache(TensorFlow),
    "jax": functools.cache(Jax),
}
_MAKERS["jaxlib"] = _MAKERS["jax"]


def of(value: Structure) -> Backend:
    """Returns the library of the first leaf that is not numpy's, else `NUMPY`.

    Example:
      >>> of({'w': np.zeros(2)}).name
      'numpy'
    """
    for leaf in structure.leaves(value):
        library = _library_of(leaf)
        if library in _MAKERS:
            return _MAKERS[library]()
        if library == "torch":
            raise TypeError(
                "tensors of PyTorch are not known here: give numpy arrays, as in "
                "`tensor.detach().cpu().numpy()`, and take the result back with "
                "`torch.from_numpy(array)`"
            )
    return NUMPY


def _library_of(value: object) -> str:
    return type(value).__module__.partition(".")[0]


def combine(backend: Backend, terms: list[tuple[float, Form]]) -> Form:
    """Adds up coefficient times structure, in the dtype of the structures.

    Coefficients are Python floats or scalars of the structures' own library.

    Example:
      >>> combine(NUMPY, [(2.0, np.ones(2)), (-1.0, np.ones(2))])
      array([1., 1.])
    """

    def one(*parts):
        total = None
        for (weight, _), part in zip(terms, parts, strict=True):
            if isinstance(weight, float) and weight == 1.0:
                term = part
            elif isinstance(weight, float) and weight == -1.0 and total is not None:
                total = total - part
                continue
            else:
                term = _scalar_for(backend, part, weight) * part
            total = term if total is None else total + term
        if backend is NUMPY:
            # numpy turns arrays without dimensions into float64 on the way.
            return np.asarray(total, structure.dtype_of(parts[0]))
        return total

    return structure.map_leaves(one, *[part for _, part in terms])


def _scalar_for(backend: Backend, part: Array, weight: Scalar) -> Scalar:
    """Casts a coefficient to the dtype of the leaf that it multiplies."""
    if isinstance(weight, float) and math.isfinite(weight):
        return weight
    return backend.cast(weight, structure.dtype_of(part))
