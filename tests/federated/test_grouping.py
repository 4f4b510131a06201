"""Who is in which group, and what a group's dataset holds."""

import numpy as np
import pytest
import tensorflow as tf

from tff_agg.federated import grouping

SPEC = (tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None], tf.int32))


@pytest.mark.parametrize("clients", [0, 1, 4, 5, 23])
@pytest.mark.parametrize("size", [1, 4, 100])
def test_everybody_is_in_one_group_with_similar_ones(clients, size):
    costs = np.random.default_rng(clients).integers(0, 9, clients).tolist()
    groups = grouping.form_groups(costs, size)
    assert sorted(i for group in groups for i in group) == list(range(clients))
    assert len(groups) == -(-clients // size)
    lengths = [len(group) for group in groups]
    assert not groups or (max(lengths) <= size and max(lengths) - min(lengths) <= 1)
    in_order = [costs[i] for group in groups for i in group]
    assert in_order == sorted(costs)
    assert groups == grouping.form_groups(costs, size)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, None])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(ValueError, match="size must be a whole number of at least 1"):
        grouping.form_groups([1, 2], size)


def batches(*sizes, seed=0):
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(n, 2)).astype(np.float32), rng.integers(0, 9, n))
        for n in sizes
    ]


def test_every_batch_is_there_once_in_its_clients_order():
    clients = [batches(3, 3, 1), [], batches(3, 2, seed=1), batches(2, seed=2)]
    dataset = grouping.group_batches(clients, SPEC)
    seen = [[] for _ in clients]
    steps = 0
    for element in dataset.as_numpy_iterator():
        assert element["users"] == len(clients)
        steps += 1
        for place, member in enumerate(element["members"]):
            x, y = element["batch"]
            assert x.dtype == np.float32 and y.dtype == np.int32
            seen[member].append((x[place], y[place]))
    # Batches of equal size go together: 3 and 3, then 2, 3, 2 and 1 by themselves.
    assert steps == 5
    for wanted, got in zip(clients, seen, strict=True):
        assert len(wanted) == len(got)
        for (x, y), (u, v) in zip(wanted, got, strict=True):
            np.testing.assert_array_equal(x, u)
            np.testing.assert_array_equal(y, v)


def test_the_elements_are_of_the_declared_kind():
    spec = grouping.group_spec(SPEC)
    for clients in ([batches(3), batches(3)], [batches(3, 1), batches(2)], [[], []]):
        found = grouping.group_batches(clients, SPEC).element_spec
        tf.nest.map_structure(
            lambda a, b: pytest.fail(f"{a} {b}") if not b.is_compatible_with(a) else 0,
            found,
            spec,
        )


def test_a_group_without_data_still_tells_its_size():
    (element,) = grouping.group_batches([[], [], []], SPEC).as_numpy_iterator()
    assert element["users"] == 3
    assert len(element["members"]) == 0


def test_a_group_of_nobody_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        grouping.group_batches([], SPEC)
