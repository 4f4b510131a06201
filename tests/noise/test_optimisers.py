"""The optimisers' results: known figures, gradients, what is best, the cache."""

import json

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_agg import noise
from tff_agg.noise import cache, toeplitz, workloads
from tff_agg.privacy import AtMostOnce, MinSeparation, sensitivity


def rmse(mechanism, n, participation=None, decay=0.0, metric="mean"):
    """Error of the workload per unit of noise multiplier, sensitivity counted in."""
    inverse = (
        np.linalg.inv(mechanism.matrix(n))
        if mechanism.decoder is None
        else mechanism.decoder(n)
    )
    rows = np.square(workloads.momentum(decay).matrix(n) @ inverse).sum(axis=1)
    spread = sensitivity(mechanism, participation or AtMostOnce(), n).value
    return float(np.sqrt(rows.mean() if metric == "mean" else rows.max()) * spread)


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda: noise.dense(512), 2.741),
        (lambda: noise.blt(512, 2), 2.850),
        (lambda: noise.blt(512, 3), 2.838),
        (lambda: noise.banded_square_root(512), 2.8892),
        (lambda: noise.tree("honaker", 512), 5.150),
        (lambda: noise.tree(), 6.710),
    ],
    ids=["dense", "blt 2", "blt 3", "square root", "honaker", "tree"],
)
def test_error_of_prefix_sums_at_512_rounds(make, most):
    """The figures of the field for one participation, or better."""
    assert most - 0.01 < rmse(make(), 512) <= most


def test_closed_form_error_is_that_of_the_explicit_matrices():
    n, decay = 40, 0.9
    workload = workloads.momentum(decay).first_column(n)
    for mechanism in (noise.blt(n, 2), noise.banded_square_root(7)):
        column = mechanism.toeplitz(n)
        for metric in ("mean", "max"):
            weights = toeplitz.error_weights(n, metric)
            error = toeplitz.error_with_gradient(column, workload, weights).value ** 0.5
            expected = rmse(mechanism, n, decay=decay, metric=metric)
            assert error * np.linalg.norm(column) == pytest.approx(expected)


def test_gradients_are_the_differences():
    n, rng = 30, np.random.default_rng(0)
    column = np.sort(rng.uniform(0.1, 1, 8))[::-1].copy()
    workload = workloads.momentum(0.9).first_column(n)
    weights = toeplitz.error_weights(n, "mean")
    for function in (
        lambda c: toeplitz.error_with_gradient(c, workload, weights),
        lambda c: toeplitz.spread_with_gradient(c, n, 5, 4),
    ):
        numeric = scipy.optimize.approx_fprime(
            column, lambda c, f=function: f(c).value, 1e-7
        )
        np.testing.assert_allclose(function(column).gradient, numeric, rtol=1e-4)


@pytest.mark.parametrize("metric", ["mean", "max"])
@pytest.mark.parametrize("decay", [0.0, 0.95])
@pytest.mark.parametrize("schema", [AtMostOnce(), MinSeparation(60, 3)])
def test_optimised_beats_the_unoptimised(metric, decay, schema):
    n = 150
    workload = workloads.momentum(decay)
    options = {"workload": workload, "metric": metric}
    if not schema.is_once:
        options |= {"separation": 60, "participations": 3}
    root = rmse(noise.banded_square_root(60, workload), n, schema, decay, metric)
    banded = rmse(noise.banded(n, 60, **options), n, schema, decay, metric)
    blt = [
        rmse(noise.blt(n, d, **options), n, schema, decay, metric) for d in (1, 2, 3)
    ]
    identity = rmse(noise.identity(), n, schema, decay, metric)
    assert banded < root < identity
    assert blt[2] <= blt[1] * 1.0001 and blt[1] <= blt[0] * 1.0001
    assert blt[2] < identity


def test_dense_is_the_best_of_all_for_one_participation():
    n = 64
    best = rmse(noise.dense(n, tolerance=1e-6), n)
    others = [
        noise.blt(n, 3),
        noise.banded(n, n),
        noise.banded_square_root(n),
        noise.tree("honaker", n),
    ]
    for other in others:
        assert best < rmse(other, n)
    # No small change of C does better either.
    c = noise.dense(n, tolerance=1e-6).matrix(n)
    rng = np.random.default_rng(1)
    for _ in range(20):
        moved = c * (1 + 0.02 * rng.standard_normal(c.shape))
        assert best < rmse(noise.dense_from(moved), n) * (1 + 1e-6)


def test_dense_has_unit_columns_and_no_negative_entry():
    c = noise.dense(48).matrix(48)
    np.testing.assert_allclose(np.square(c).sum(axis=0), 1)
    assert np.array_equal(c, np.tril(c)) and (c.diagonal() > 0).all()


def test_whole_numbers_of_numpy_are_whole_numbers(tmp_path):
    n, two = np.int64(64), np.int64(2)
    for make in (
        lambda n, k: noise.blt(n, k, separation=k, participations=k, cache=tmp_path),
        lambda n, k: noise.banded(n, k, separation=k, participations=k, cache=tmp_path),
        lambda n, k: noise.dense(n, cache=tmp_path),
        lambda n, k: noise.tree("honaker", n),
        lambda n, k: noise.banded_square_root(n),
        lambda n, k: noise.restart_every(noise.tree(), k),
    ):
        of_numpy, of_python = make(n, two), make(64, 2)
        assert json.dumps(of_numpy.to_json()) == json.dumps(of_python.to_json())
    for make in (noise.blt, noise.dense, noise.banded_square_root):
        with pytest.raises(ValueError, match="True"):
            make(True)


def test_cache_hands_out_what_it_stored(tmp_path):
    first = noise.blt(80, 2, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    before = path.stat().st_mtime_ns
    again = noise.blt(80, 2, cache=tmp_path)
    assert again.parameters == first.parameters
    assert path.stat().st_mtime_ns == before
    assert first.parameters == noise.blt(80, 2).parameters
    noise.blt(80, 2, workload=workloads.momentum(0.5), cache=tmp_path)
    noise.banded(80, 3, cache=tmp_path)
    noise.dense(16, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def _flip_payload(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


def _edit_header(path):
    line, _, payload = path.read_bytes().partition(b"\n")
    header = json.loads(line)
    header["inputs"]["rounds"] += 1
    path.write_bytes(json.dumps(header).encode() + b"\n" + payload)


@pytest.mark.parametrize(
    "damage",
    [
        _flip_payload,
        _edit_header,
        lambda path: path.write_bytes(path.read_bytes()[:-8]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"[1, 2]\n"),
        lambda path: path.write_bytes(
            path.read_bytes().replace(b'"format": 1', b'"format": 9', 1)
        ),
    ],
    ids=["payload", "inputs", "cut", "empty", "foreign", "format"],
)
def test_tampered_cache_file_is_refused(tmp_path, damage):
    noise.blt(50, 2, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    damage(path)
    with pytest.raises(ValueError, match=r"is damaged .*; delete it"):
        noise.blt(50, 2, cache=tmp_path)


def test_nothing_half_written_stays(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(cache.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        noise.banded(20, 2, cache=tmp_path)
    assert not list(tmp_path.iterdir())


@given(
    st.lists(st.floats(0.05, 0.95), min_size=1, max_size=4, unique=True),
    st.floats(0.0, 1.0),
    st.integers(1, 30),
)
@settings(deadline=None, max_examples=40)
def test_any_blt_streams_its_matrix(decays, total, n):
    weights = tuple(total / len(decays) for _ in decays)
    mechanism = noise.blt_from(tuple(decays), weights)
    like = np.zeros(2)
    z, w = [], []
    for made, out in ((noise.identity(), z), (mechanism, w)):
        state = made.init(like, (5, 6))
        for _ in range(n):
            state, drawn = made.next(state, like)
            out.append(drawn)
    np.testing.assert_allclose(
        mechanism.matrix(n) @ np.stack(w), np.stack(z), atol=1e-9
    )
    column = mechanism.toeplitz(n)
    assert (column >= 0).all() and (np.diff(column) <= 0).all()
