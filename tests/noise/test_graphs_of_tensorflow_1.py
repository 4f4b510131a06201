"""Noise and averages are the same in the graphs that TFF traces into.

There `a == b` compares Python objects, silently: a mechanism that used it would add
noise that is not correlated.
"""

import numpy as np
import pytest

from tff_agg import averaging, structure


def in_old_graph(step, state, inputs):
    """Runs `step(state, input)` for each input in a graph of TensorFlow 1."""
    import tensorflow as tf

    results = []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        places = structure.map_leaves(
            lambda x: tf.compat.v1.placeholder(np.asarray(x).dtype, np.shape(x)), state
        )
        given = structure.map_leaves(
            lambda x: tf.compat.v1.placeholder(x.dtype, x.shape), inputs[0]
        )
        outputs = step(places, given)
        flat = [tf.convert_to_tensor(leaf) for leaf in structure.leaves(outputs)]
        for value in inputs:
            feed = dict(
                zip(structure.leaves(places), structure.leaves(state), strict=True)
            ) | dict(zip(structure.leaves(given), structure.leaves(value), strict=True))
            found = session.run(flat, {k: np.asarray(v) for k, v in feed.items()})
            state, result = structure.pack(outputs, found)
            results.append(result)
    return results


@pytest.mark.parametrize("k", [3, 5])
def test_an_average_is_the_same_as_in_eager_mode(k):
    averager = averaging.starting_at(4, averaging.uta(k))
    thetas = [np.full([2], t, np.float32) for t in range(14)]
    expected = list(averaging.fold(averager, thetas))
    found = in_old_graph(averager.next, averager.init(thetas[0]), thetas[1:])
    for a, b in zip(found, expected[1:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
