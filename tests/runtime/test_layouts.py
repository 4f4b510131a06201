"""A layout does what the thorough way does, for every type and every value."""

import collections
import subprocess
import sys
from typing import NamedTuple

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.runtime import values
from tff_agg.runtime.layouts import Layout


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


def same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.dtype is b.dtype
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("name", VALUES)
def test_flattens_as_the_thorough_way_does(name):
    layout = Layout(TYPES[name])
    for value in VALUES[name]:
        same(layout.flatten(value), values.flatten(value, TYPES[name]))


@pytest.mark.parametrize("name", VALUES)
def test_packs_into_the_containers_that_tff_would_take(name):
    leaves = values.flatten(VALUES[name][0], TYPES[name])
    packed = Layout(TYPES[name]).unflatten(leaves)
    expected = values.unflatten(leaves, TYPES[name])
    assert type(packed) is type(expected)
    assert repr(packed) == repr(expected)


def test_tensors_that_fit_go_through_untouched():
    (leaf,) = Layout(TYPES["scalar"]).flatten(N)
    assert leaf is N


def test_datasets_become_variants_and_sequences_become_lists():
    layout = Layout(TYPES["sequence"])
    for value in (tf.data.Dataset.range(3).map(lambda i: tf.cast(i, tf.int32)), [0, 1]):
        (leaf,) = layout.flatten(value)
        assert leaf.dtype == tf.variant
    assert [int(i) for i in layout.unflatten([leaf])] == [0, 1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scalar", "three"),
        ("scalar", W),
        ("tuple", (N,)),
        ("tuple", 5),
        ("mapping", {"w": W}),
        ("mapping", {"w": W, "m": N}),
        ("mapping", {"w": tf.constant([1.0]), "n": N}),
        ("named tuple", Pair(N, {"w": W, "n": "x"})),
        ("attrs", Pair(N, (1.0, 2.0))),
        ("sequence", 7),
    ],
)
def test_errors_are_those_of_the_thorough_way(name, value):
    with pytest.raises(TypeError) as expected:
        values.flatten(value, TYPES[name])
    with pytest.raises(TypeError) as got:
        Layout(TYPES[name]).flatten(value)
    assert str(got.value) == str(expected.value)


def test_no_type_no_leaves():
    assert Layout(None).flatten(None) == [] and Layout(None).unflatten([]) is None


def test_memory_is_kept_where_the_c_library_can():
    """In a process of its own: the setting is for good."""
    code = "from tff_agg import runtime; print(runtime.keep_memory())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(sys.platform == "linux")
