"""Python values become flat tensors and come back in the containers of their type."""

import collections
import re
from typing import NamedTuple

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.runtime.compile import graphs, values


class Pair(NamedTuple):
    first: object
    second: object


@attrs.define
class Point:
    x: object
    y: object


MODEL = collections.OrderedDict(w=tff.TensorType(np.float32, [2]), n=np.int32)
TYPES = {
    "scalar": tff.TensorType(np.int32),
    "unknown size": tff.TensorType(np.float32, [None]),
    "tuple": tff.to_type((np.int32, np.float32)),
    "list": tff.to_type([np.int32, np.float32]),
    "mapping": tff.to_type(MODEL),
    "named tuple": tff.to_type(Pair(np.int32, MODEL)),
    "attrs": tff.to_type(Point(np.int32, (np.float32, np.float32))),
    "no container": tff.StructType([("a", np.int32), ("b", np.float32)]),
    "nested": tff.to_type(((np.int32,), [collections.OrderedDict(a=MODEL)])),
    "empty": tff.to_type(()),
    "server": tff.FederatedType(MODEL, tff.SERVER),
    "sequence": tff.SequenceType(np.int32),
}
W, N = tf.constant([1.0, 2.0]), tf.constant(3)
VALUES = {
    "scalar": [N, 3, np.int32(3)],
    "unknown size": [W, [1.0], np.ones(4, np.float32)],
    "tuple": [(N, tf.constant(1.0)), [3, 1.0]],
    "list": [[N, tf.constant(1.0)], (3, 1.0)],
    "mapping": [
        collections.OrderedDict(w=W, n=N),
        {"n": 3, "w": [1.0, 2.0]},
        tff.structure.Struct([("w", W), ("n", N)]),
        (W, N),
    ],
    "named tuple": [Pair(N, {"w": W, "n": N}), (3, (W, 3))],
    "attrs": [Point(N, (tf.constant(1.0), 2.0)), (3, [1.0, 2.0])],
    "no container": [{"a": 3, "b": 1.0}, tff.structure.Struct([("a", 3), ("b", 1.0)])],
    "nested": [((N,), [{"a": {"w": W, "n": N}}])],
    "empty": [(), []],
    "server": [{"w": W, "n": N}],
}


def numbers(leaves):
    return [leaf.numpy().tolist() for leaf in leaves]


def learnt(value, type_spec):
    return values.Packing(type_spec).flatten(value)


@pytest.mark.parametrize("flatten", [values.flatten, learnt])
@pytest.mark.parametrize("name", VALUES)
def test_every_form_of_a_value_gives_the_same_leaves(name, flatten):
    first, *others = (flatten(value, TYPES[name]) for value in VALUES[name])
    kinds = [spec.dtype for spec in graphs.specs_of(TYPES[name])]
    assert [leaf.dtype for leaf in first] == kinds
    if name == "unknown size":
        assert [len(leaf) for leaf in (*first, *others[0], *others[1])] == [2, 1, 4]
        return
    for other in others:
        assert numbers(other) == numbers(first)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("scalar", 3),
        ("tuple", (3, 1.0)),
        ("list", [3, 1.0]),
        ("mapping", collections.OrderedDict(w=[1.0, 2.0], n=3)),
        ("named tuple", Pair(3, collections.OrderedDict(w=[1.0, 2.0], n=3))),
        ("attrs", Point(3, (1.0, 2.0))),
        ("no container", collections.OrderedDict(a=3, b=1.0)),
        (
            "nested",
            ((3,), [collections.OrderedDict(a={"w": [1.0, 2.0], "n": 3})]),
        ),
        ("empty", ()),
        ("server", collections.OrderedDict(w=[1.0, 2.0], n=3)),
    ],
)
def test_leaves_are_packed_into_the_containers_that_the_type_names(name, expected):
    leaves = numbers(values.flatten(VALUES[name][0], TYPES[name]))
    for packed in (
        values.unflatten(leaves, TYPES[name]),
        values.Packing(TYPES[name]).unflatten(leaves),
    ):
        assert type(packed) is type(expected)
        assert packed == expected


@pytest.mark.parametrize("name", VALUES)
def test_what_was_packed_is_flattened_to_the_very_same_tensors(name, monkeypatch):
    leaves = values.flatten(VALUES[name][0], TYPES[name])
    packing = values.Packing(TYPES[name])
    packed = packing.unflatten(leaves)
    if leaves and name != "unknown size":
        # Not by the long way.
        monkeypatch.setattr(values, "flatten", None)
    for one, other in zip(packing.flatten(packed), leaves, strict=True):
        assert one is other


def test_tensors_that_fit_go_through_untouched():
    (leaf,) = values.flatten(N, TYPES["scalar"])
    assert leaf is N


def test_leaves_of_a_type_without_python_containers_are_packed_all_the_same():
    bare = tff.StructType([("a", tff.StructType([np.int32])), ("b", np.float32)])
    both = values.unflatten([3, 1.0], bare), values.Packing(bare).unflatten([3, 1.0])
    assert both[0] == both[1]


def test_datasets_become_variants_and_sequences_become_lists():
    for value in (tf.data.Dataset.range(3).map(lambda i: tf.cast(i, tf.int32)), [0, 1]):
        (leaf,) = values.flatten(value, TYPES["sequence"])
        assert leaf.dtype == tf.variant
    assert [int(i) for i in values.unflatten([leaf], TYPES["sequence"])] == [0, 1]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("scalar", "three", "argument: expected a value of type int32"),
        ("scalar", W, "argument: expected a value of type int32"),
        ("tuple", (N,), "argument: expected 2 elements"),
        ("tuple", 5, "argument: expected a structure of type <int32,float32>"),
        ("mapping", {"w": W}, "argument: expected a mapping with the keys"),
        ("mapping", {"w": W, "m": N}, "argument: expected a mapping with the keys"),
        ("mapping", {"w": W[:1], "n": N}, "argument/w: expected a value of type"),
        ("named tuple", Pair(N, {"w": W, "n": "x"}), "argument/second/n: expected"),
        ("attrs", Pair(N, (1.0, 2.0)), "argument: expected an element named 'x'"),
        ("sequence", 7, "argument: expected a tf.data.Dataset or a list"),
    ],
)
def test_errors_say_where_and_what_was_expected(name, value, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        values.flatten(value, TYPES[name])
