"""Any structure comes back from the store as it was."""

import collections

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest

from tests.identical import assert_identical
from tff_agg import averaging, noise
from tff_agg.checkpoints import CheckpointStore

_dtypes = st.one_of(
    hnp.floating_dtypes(endianness="?"),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.boolean_dtypes(),
    hnp.complex_number_dtypes(),
    hnp.unicode_string_dtypes(max_len=3),
)
_arrays = hnp.arrays(_dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
_big_arrays = st.builds(
    lambda seed, n, dtype: np.asarray(
        np.random.default_rng(seed).standard_normal(n), dtype
    ),
    st.integers(0, 5),
    st.integers(100, 40_000),
    st.sampled_from(["<f4", "<f8", "<f2", ">f4", "<i4", "u1"]),
)
_leaves = st.one_of(
    _arrays,
    _big_arrays,
    _big_arrays.map(lambda a: a[::-2]),
    _arrays.map(lambda a: a.T),
    _dtypes.flatmap(lambda dtype: hnp.from_dtype(np.dtype(dtype))),
    st.text(),
)
_structures = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(), inner, max_size=4),
        st.dictionaries(st.text(), inner, max_size=4).map(collections.OrderedDict),
    ),
    max_leaves=10,
)


@hypothesis.settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(structure=_structures)
def test_any_structure_comes_back_bit_for_bit(tmp_path_factory, structure):
    folder = tmp_path_factory.mktemp("store")
    CheckpointStore(folder).save(3, {"x": structure})
    assert_identical(structure, CheckpointStore(folder).load(3, "x"))


_LIKE = {"w": np.zeros((3, 2), np.float32), "b": np.zeros((), np.float32)}


@pytest.mark.parametrize(
    "pair",
    [
        noise.tree(),
        noise.blt(rounds=8, buffers=2, separation=4, participations=2),
        noise.banded(rounds=8, bands=2),
        averaging.last(),
        averaging.uta(2),
        averaging.starting_at(2, averaging.ema(decay=0.9)),
    ],
    ids=["tree", "blt", "banded", "last", "uta", "starting_at"],
)
def test_states_of_mechanisms_and_averagers_come_back_as_they_were(tmp_path, pair):
    """A loop of one's own saves them as they are and goes on with what it loads."""
    of_noise = isinstance(pair, noise.Mechanism)
    state = pair.init(_LIKE, np.array([1, 2])) if of_noise else pair.init(_LIKE)
    for number in range(6):
        CheckpointStore(tmp_path).save(number, {"state": state})
        loaded = CheckpointStore(tmp_path).load(number, "state")
        assert_identical(state, loaded)
        state, went_on = pair.next(state, _LIKE)
        _, resumed = pair.next(loaded, _LIKE)
        assert_identical(went_on, resumed)


def test_a_scalar_is_no_array_of_no_dimensions(tmp_path):
    state = collections.OrderedDict(z=np.float32(1), a=(np.array(1), [], ()))
    CheckpointStore(tmp_path).save(0, {"state": state})
    assert_identical(state, CheckpointStore(tmp_path).load(0, "state"))
