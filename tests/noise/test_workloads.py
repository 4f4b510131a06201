"""Workloads: matrices written by hand, servers that are measured, what needs them."""

import numpy as np
import pytest

from tff_agg import noise, server
from tff_agg.noise import toeplitz, workloads

MOMENTUM_BY_HAND = [
    [1.0, 0.0, 0.0, 0.0],
    [1.5, 1.0, 0.0, 0.0],
    [1.75, 1.5, 1.0, 0.0],
    [1.875, 1.75, 1.5, 1.0],
]
PREFIX_SUM_BY_HAND = [
    [1.0, 0.0, 0.0, 0.0],
    [1.0, 1.0, 0.0, 0.0],
    [1.0, 1.0, 1.0, 0.0],
    [1.0, 1.0, 1.0, 1.0],
]
FALLING = server.Schedule(1.0, rounds=4, kind="linear")


def measured(decay, rounds, **options):
    step = server.server_step(server.momentum(decay), **options)
    return workloads.of_server(step, rounds)


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (workloads.prefix_sum(), PREFIX_SUM_BY_HAND),
        (workloads.momentum(0.5), MOMENTUM_BY_HAND),
        (measured(0.0, 4, learning_rate=0.3), PREFIX_SUM_BY_HAND),
        (measured(0.5, 4), MOMENTUM_BY_HAND),
        (measured(0.5, 6, learning_rate=0.3), MOMENTUM_BY_HAND),
    ],
    ids=["prefix sum", "momentum", "plain server", "server", "server, small steps"],
)
def test_matrix_by_hand(workload, expected):
    np.testing.assert_allclose(workload.matrix(4), expected, rtol=1e-14)
    column = np.array(expected)[:, 0]
    np.testing.assert_allclose(workload.first_column(4), column, rtol=1e-14)


def test_a_server_that_looks_ahead_by_hand():
    step = server.server_step(server.momentum(0.5, nesterov=True))
    column = workloads.of_server(step, 3).first_column(3)
    # The steps after a unit in the first round are 1 + 1/2, 1/4, 1/8.
    np.testing.assert_allclose(column, np.array([1.5, 1.75, 1.875]) / 1.5)


def test_a_server_whose_rate_falls_by_hand():
    workload = measured(0.0, 4, learning_rate=FALLING)
    rates = [1.0, 0.75, 0.5, 0.25]
    np.testing.assert_allclose(workload.matrix(4), np.tril([rates] * 4))
    for make in (
        lambda: noise.blt(4, 1, workload=workload),
        lambda: noise.banded(4, 2, workload=workload),
        lambda: noise.banded_square_root(2, workload),
    ):
        with pytest.raises(ValueError, match=r"not Toeplitz.*dense takes any"):
            make()


def test_dense_noise_for_a_measured_server_leaves_it_less_error():
    workload = measured(0.9, 32, learning_rate=server.Schedule(1.0, 32, "cosine"))

    def error(mechanism):
        return np.linalg.norm(workload.matrix(32) @ np.linalg.inv(mechanism.matrix(32)))

    made_for_it = noise.dense(32, workload=workload)
    others = [noise.dense(32, workload=workloads.momentum(d)) for d in (0.0, 0.9)]
    assert error(made_for_it) < 0.98 * min(map(error, others))
    again = noise.from_json(made_for_it.to_json())
    assert again.to_json() == made_for_it.to_json()


def test_a_measured_server_with_momentum_is_the_closed_form():
    rounds, closed = 200, workloads.momentum(0.95)
    workload = measured(0.95, rounds, learning_rate=0.5)
    np.testing.assert_allclose(
        workload.matrix(rounds), closed.matrix(rounds), rtol=1e-12
    )
    np.testing.assert_allclose(
        workload.square_root(rounds), closed.square_root(rounds), rtol=1e-9
    )
    for make in (
        lambda workload: noise.blt(rounds, 2, workload=workload),
        lambda workload: noise.banded(rounds, 8, workload=workload),
    ):
        np.testing.assert_allclose(
            make(workload).toeplitz(rounds), make(closed).toeplitz(rounds), rtol=1e-3
        )


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.95])
def test_the_root_squared_is_the_workload(decay):
    closed = workloads.momentum(decay)
    series = closed.first_column(60)
    for root in (closed.square_root(60), toeplitz.square_root(series)):
        np.testing.assert_allclose(np.convolve(root, root)[:60], series)


def test_results_are_cached_by_workload(tmp_path):
    def make(workload):
        return noise.blt(40, 1, workload=workload, cache=tmp_path).parameters

    first = make(measured(0.9, 40))
    assert make(measured(0.9, 40)) == first
    assert len(list(tmp_path.iterdir())) == 1
    for workload in (measured(0.8, 40), workloads.momentum(0.9)):
        make(workload)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_workload_that_sums_nothing_gets_independent_noise():
    def series(n):
        return np.eye(n)[0]

    workload = noise.Workload(np.eye, {"name": "rounds"}, series)
    banded = noise.banded(20, 3, workload=workload).toeplitz(3)
    np.testing.assert_allclose(banded, [1, 0, 0], atol=1e-3)
    np.testing.assert_allclose(
        noise.blt(20, 1, workload=workload).toeplitz(3), [1, 0, 0], atol=1e-3
    )


class Deaf:
    def response(self, rounds):
        return np.zeros((rounds + 1, rounds))


class Short:
    def response(self, rounds):
        return np.zeros((rounds, rounds))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: workloads.momentum(1.0), r"decay must be in \[0, 1\), got 1.0"),
        (lambda: noise.blt(4, 1, workload=0.9), "must be a Workload.*got 0.9"),
        (lambda: noise.banded(4, 1, workload=0.9), "must be a Workload.*got 0.9"),
        (lambda: noise.banded_square_root(4, 0.9), "must be a Workload.*got 0.9"),
        (lambda: noise.dense(4, workload=0.9), "must be a Workload.*got 0.9"),
        (lambda: measured(0.5, 4).matrix(5), "rounds must be .* from 1 to 4, got 5"),
        (lambda: noise.blt(5, 1, workload=measured(0.5, 4)), "from 1 to 4, got 5"),
        (
            lambda: workloads.of_server(server.server_step(server.adam()), 4),
            "not linear",
        ),
        (lambda: workloads.of_server(Deaf(), 4), "to the first round at once"),
        (lambda: workloads.of_server(Short(), 4), r"\[5, 4\] shares"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
