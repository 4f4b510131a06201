"""Python values to flat lists of tensors and back, as a TFF type says."""

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_agg.runtime.compile import graphs, private_api
from tff_agg.runtime.disclosure import PlainTypeError

#: A value as TFF takes it: tensors, arrays, numbers and datasets, in Python's
#: containers, named tuples, attrs classes or TFF's structures.
Value: TypeAlias = Any

_Struct = tff.structure.Struct


def flatten(value: Value, type_spec: tff.Type, path: str = "") -> list[tf.Tensor]:
    """Lists the leaves of `value` as tensors of the types in `type_spec`.

    A tensor that already is what the type wants goes through untouched. Datasets and
    lists that stand for a sequence become the variant tensors that graphs take.
    """
    if isinstance(type_spec, tff.FederatedType):
        return flatten(value, type_spec.member, path)
    if isinstance(type_spec, tff.StructType):
        parts = _parts(value, type_spec, path)
        return [
            leaf
            for (name, part), (i, (_, t)) in zip(
                parts, enumerate(tff.structure.to_elements(type_spec)), strict=True
            )
            for leaf in flatten(part, t, f"{path}/{i if name is None else name}")
        ]
    if isinstance(type_spec, tff.SequenceType):
        return [_variant(value, type_spec, path)]
    return [_tensor(value, type_spec, path)]


def unflatten(leaves: Sequence[object], type_spec: tff.Type) -> Value:
    """Packs tensors into the Python containers that `type_spec` names."""
    supply = iter(leaves)
    packed = _pack(supply, type_spec)
    return tff.types.type_to_py_container(packed, type_spec)


class Packing:
    """`flatten` and `unflatten` for one type, for many rounds.

    The containers that `unflatten` makes are learnt once. What is in these, and is
    tensors already, need not be walked through together with its type.

    Args:
      type_spec: The type.
    """

    def __init__(self, type_spec: tff.Type):
        self._type = type_spec
        leaves = graphs.leaf_types(type_spec)
        tensors = [leaf for leaf in leaves if isinstance(leaf, tff.TensorType)]
        self._wanted = [(tf.as_dtype(t.dtype), t.shape) for t in tensors]
        # By place in the containers, the number of a leaf; where all are Python's own.
        self._numbers: list[int] = []
        if len(tensors) == len(leaves):
            self._template = unflatten(range(len(leaves)), type_spec)
            self._numbers = tree.flatten(self._template)
        self._places: list[int] = []
        if all(isinstance(number, int) for number in self._numbers):
            self._places = np.argsort(self._numbers).tolist()

    def flatten(self, value: Value) -> list[tf.Tensor]:
        """Lists the leaves of a value, as `flatten` does."""
        if self._places:
            with contextlib.suppress(TypeError, ValueError):
                tree.assert_same_structure(self._template, value)
                found = tree.flatten(value)
                leaves = [found[place] for place in self._places]
                if all(map(_is_of, leaves, self._wanted)):
                    return leaves
        return flatten(value, self._type)

    def unflatten(self, leaves: Sequence[object]) -> Value:
        """Packs leaves into containers, as `unflatten` does."""
        if not self._places:
            return unflatten(leaves, self._type)
        return tree.unflatten_as(self._template, [leaves[i] for i in self._numbers])


def _is_of(leaf: object, wanted: tuple[tf.DType, Sequence[int]]) -> bool:
    """Returns whether a leaf is a tensor of a dtype and a shape without open sizes."""
    dtype, shape = wanted
    return (
        isinstance(leaf, tf.Tensor)
        and leaf.dtype == dtype
        and tuple(leaf.shape) == tuple(shape)
    )


def to_numpy(leaf: object) -> object:
    """Turns an eager tensor into what the stock runtime would give.

    A variant is a data set, which `unflatten` makes of it.
    """
    if isinstance(leaf, tf.Tensor) and leaf.dtype != tf.variant:
        return leaf.numpy()
    return leaf


def _pack(supply: Iterator[object], type_spec: tff.Type) -> Value:
    if isinstance(type_spec, tff.FederatedType):
        return _pack(supply, type_spec.member)
    if isinstance(type_spec, tff.StructType):
        return _Struct(
            [
                (name, _pack(supply, t))
                for name, t in tff.structure.to_elements(type_spec)
            ]
        )
    leaf = next(supply)
    return dataset(leaf, type_spec) if isinstance(type_spec, tff.SequenceType) else leaf


def dataset(variant: tf.Tensor, type_spec: tff.SequenceType) -> tf.data.Dataset:
    """Returns the dataset that a variant tensor is."""
    spec = tff.types.structure_from_tensor_type_tree(
        lambda t: tf.TensorSpec(t.shape, t.dtype), type_spec.element
    )
    return tf.data.experimental.from_variant(variant, spec)


def _parts(
    value: Value, type_spec: tff.StructType, path: str
) -> list[tuple[str | None, Value]]:
    """Lists a container's children in the order of the type."""
    names = [name for name, _ in tff.structure.to_elements(type_spec)]
    if isinstance(value, _Struct):
        elements = list(tff.structure.to_elements(value))
        given = [name for name, _ in elements]
        values = [part for _, part in elements]
    elif isinstance(value, Mapping):
        _check_names(names, list(value), path)
        return [(name, value[name]) for name in names]
    elif attrs.has(type(value)):
        given = [field.name for field in attrs.fields(type(value))]
        values = [getattr(value, name) for name in given]
    elif hasattr(value, "_asdict"):
        given = list(value._fields)
        values = list(value)
    elif isinstance(value, list | tuple):
        given = [None] * len(value)
        values = list(value)
    else:
        raise PlainTypeError(
            f"argument{path}: expected a structure of type {type_spec}, "
            f"found a {type(value).__name__}"
        )
    if len(values) != len(names):
        raise PlainTypeError(
            f"argument{path}: expected {len(names)} elements for type {type_spec}, "
            f"found {len(values)}"
        )
    for want, have in zip(names, given, strict=True):
        if have is not None and have != want:
            raise PlainTypeError(
                f"argument{path}: expected an element named {want!r}, found {have!r}"
            )
    return list(zip(names, values, strict=True))


def _check_names(want: list[str | None], have: list[object], path: str) -> None:
    if set(want) != set(have):
        raise PlainTypeError(
            f"argument{path}: expected a mapping with the keys {want}, found "
            f"{len(have)} keys without {[k for k in want if k not in have]}"
        )


def _tensor(value: Value, type_spec: tff.TensorType, path: str) -> tf.Tensor:
    dtype = tf.as_dtype(type_spec.dtype)
    if not (isinstance(value, tf.Tensor) and value.dtype == dtype):
        converted = _converted(value, dtype)
        if converted is None:
            raise PlainTypeError(
                f"argument{path}: expected a value of type {type_spec}, "
                f"found a {type(value).__name__} that is none"
            )
        value = converted
    if not value.shape.is_compatible_with(tf.TensorShape(type_spec.shape)):
        given = tff.TensorType(value.dtype.as_numpy_dtype, value.shape)
        raise PlainTypeError(
            f"argument{path}: expected a value of type {type_spec}, "
            f"found {_without_sizes(given, type_spec)}"
        )
    return value


def _converted(value: Value, dtype: tf.DType) -> tf.Tensor | None:
    """Makes a tensor, or None: TensorFlow's own error would quote the value."""
    try:
        return tf.convert_to_tensor(value, dtype)
    except (TypeError, ValueError):
        return None


def _variant(value: Value, type_spec: tff.SequenceType, path: str) -> tf.Tensor:
    if not isinstance(value, tf.data.Dataset):
        if not isinstance(value, list):
            raise PlainTypeError(
                f"argument{path}: expected a tf.data.Dataset or a list of elements of "
                f"type {type_spec.element}, found a {type(value).__name__}"
            )
        value = _dataset(value, type_spec, path)
    elif not spec_matches(value.element_spec, type_spec):
        given = tff.types.tensorflow_to_type(value.element_spec)
        raise PlainTypeError(
            f"argument{path}: expected a dataset with elements of type "
            f"{type_spec.element}, found elements of type "
            f"{_without_sizes(given, type_spec.element)}"
        )
    return tf.data.experimental.to_variant(value)


def _dataset(
    elements: list[Value], type_spec: tff.SequenceType, path: str
) -> tf.data.Dataset:
    """Makes a dataset of a list of elements; TFF's own error would quote them."""
    with contextlib.suppress(TypeError, ValueError, tf.errors.OpError):
        return private_api.make_data_set_from_elements(
            None, elements, type_spec.element
        )
    raise PlainTypeError(
        f"argument{path}: expected a list of elements of type {type_spec.element}, "
        "found elements that are not of that type"
    )


def _without_sizes(given: tff.Type, expected: tff.Type | None) -> tff.Type:
    """Returns a type without the sizes that the expected type leaves open.

    The length of a batch reveals how much data a client has.
    """
    if isinstance(given, tff.StructType):
        parts = tff.structure.to_elements(given)
        others: list[tff.Type | None] = [None] * len(parts)
        if isinstance(expected, tff.StructType) and len(expected) == len(parts):
            others = [t for _, t in tff.structure.to_elements(expected)]
        return tff.StructType(
            [
                (name, _without_sizes(part, other))
                if name is not None
                else _without_sizes(part, other)
                for (name, part), other in zip(parts, others, strict=True)
            ]
        )
    if not isinstance(given, tff.TensorType) or given.shape is None:
        return given
    fixed: Sequence[int | None] = [None] * len(given.shape)
    known = expected.shape if isinstance(expected, tff.TensorType) else None
    if known is not None and len(known) == len(given.shape):
        fixed = known
    shape = [
        None if size is None else own
        for own, size in zip(given.shape, fixed, strict=True)
    ]
    return tff.TensorType(given.dtype, shape)


class _SpecCache:
    """Remembers which element specs fit which type: a cohort shares a few of each."""

    def __init__(self, size: int):
        self._size = size
        self._known: collections.OrderedDict[tuple[str, str], bool]
        self._known = collections.OrderedDict()

    def __call__(self, element_spec: object, type_spec: tff.SequenceType) -> bool:
        key = (repr(element_spec), str(type_spec))
        if key not in self._known:
            element = tff.types.tensorflow_to_type(element_spec)
            self._known[key] = type_spec.element.is_assignable_from(element)
            if len(self._known) > self._size:
                self._known.popitem(last=False)
        return self._known[key]


spec_matches: Callable[[object, tff.SequenceType], bool] = _SpecCache(size=256)


def leaf_count(type_spec: tff.Type | None) -> int:
    """Counts the leaves of a type."""
    return len(graphs.leaf_types(type_spec))
