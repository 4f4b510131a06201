"""One TFF type's way from Python values to flat lists of tensors and back, made once.

A process hands its whole state in and out in every round, and a long window of
checkpoints has hundreds of tensors. Walking the type anew each time, as `values` and
TFF itself do, costs more than the arithmetic of a small model. A `Layout` walks it
once and keeps one small function for each node.
"""

import collections
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.types import type_conversions

from tff_agg.runtime import values

_Read = Callable[[Any, list[Any]], None]
_Build = Callable[[Iterator[Any]], Any]
_Eager = tf.__internal__.EagerTensor


class _MisfitError(Exception):
    """A value that is not in its usual form: the thorough way decides about it."""


class Layout:
    """Flattens and packs values of one type.

    It accepts what `values.flatten` accepts and raises the same errors.

    Args:
      type_spec: A TFF type without functions.

    Example:
      >>> layout = Layout(tff.to_type([('a', tf.int32)]))
      >>> layout.unflatten(layout.flatten({'a': 3}))
      OrderedDict([('a', <tf.Tensor: shape=(), dtype=int32, numpy=3>)])
    """

    def __init__(self, type_spec: Any):
        self._type = type_spec
        self._read = None if type_spec is None else _reader(type_spec)
        self._build = None if type_spec is None else _builder(type_spec)

    def flatten(self, value: Any) -> list[Any]:
        """Lists the leaves of `value` as tensors."""
        if self._read is None:
            return []
        leaves: list[Any] = []
        try:
            self._read(value, leaves)
        except _MisfitError:
            pass
        else:
            return leaves
        # Out here, so that no error of the quick way, with values, is its context.
        return values.flatten(value, self._type)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Packs tensors into the Python containers that the type names."""
        return None if self._build is None else self._build(iter(leaves))


def _reader(type_spec: Any) -> _Read:
    if isinstance(type_spec, tff.FederatedType):
        return _reader(type_spec.member)
    if isinstance(type_spec, tff.StructType):
        return _struct_reader(type_spec)
    if isinstance(type_spec, tff.TensorType):
        return _tensor_reader(type_spec)
    return _thorough_reader(type_spec)


def _thorough_reader(type_spec: Any) -> _Read:
    """Reads one leaf with all conversions and checks."""

    def read(value: Any, leaves: list[Any]) -> None:
        try:
            leaves.extend(values.flatten(value, type_spec))
        except (TypeError, ValueError):
            raise _MisfitError from None

    return read


def _struct_reader(type_spec: Any) -> _Read:
    elements = tff.structure.to_elements(type_spec)
    names = [name for name, _ in elements]
    readers = [_reader(t) for _, t in elements]
    named = list(zip(names, readers, strict=True))

    def read(value: Any, leaves: list[Any]) -> None:
        kind: Any = type(value)
        if kind in (tuple, list) and len(value) == len(readers):
            for part, child in zip(value, readers, strict=True):
                child(part, leaves)
        elif kind in (collections.OrderedDict, dict) and value.keys() == set(names):
            for name, child in named:
                child(value[name], leaves)
        elif _field_names(kind) == names:
            for name, child in named:
                child(getattr(value, name), leaves)
        else:
            raise _MisfitError

    return read


@functools.cache
def _field_names(kind: Any) -> list[str] | None:
    """Names the fields of an attrs class or a named tuple; None for other classes."""
    if attrs.has(kind):
        return [field.name for field in attrs.fields(kind)]
    return list(kind._fields) if hasattr(kind, "_fields") else None


def _tensor_reader(type_spec: Any) -> _Read:
    dtype = tf.as_dtype(type_spec.dtype).as_datatype_enum
    shape = tf.TensorShape(type_spec.shape)
    known = tuple(shape) if shape.is_fully_defined() else None
    thorough = _thorough_reader(type_spec)

    def read(value: Any, leaves: list[Any]) -> None:
        # The plain properties `dtype` and `shape` make new objects at every look.
        if (
            type(value) is _Eager
            and value._datatype_enum() == dtype
            and value._shape_tuple() == known
        ):
            leaves.append(value)
        else:
            thorough(value, leaves)

    return read


def _builder(type_spec: Any) -> _Build:
    if isinstance(type_spec, tff.FederatedType) and type_spec.all_equal:
        return _builder(type_spec.member)
    if isinstance(type_spec, tff.TensorType):
        return next
    if not isinstance(type_spec, tff.StructType):
        return lambda supply: values.unflatten([next(supply)], type_spec)
    elements = tff.structure.to_elements(type_spec)
    names = [name for name, _ in elements]
    builders = [_builder(t) for _, t in elements]
    container = type_spec.python_container
    unnamed = all(name is None for name in names)
    if unnamed and container in (None, tuple, list):
        make = list if container is list else tuple
        return lambda supply: make([child(supply) for child in builders])
    if None not in names and container in (None, collections.OrderedDict):
        return lambda supply: collections.OrderedDict(
            [(n, child(supply)) for n, child in zip(names, builders, strict=True)]
        )

    def build(supply: Iterator[Any]) -> Any:
        # TFF knows all other containers, and leaves the finished children as they are.
        parts = [(n, child(supply)) for n, child in zip(names, builders, strict=True)]
        return type_conversions.type_to_py_container(
            tff.structure.Struct(parts), type_spec
        )

    return build
