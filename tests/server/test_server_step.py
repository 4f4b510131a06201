"""The server's step, against a second implementation, in every library."""

import itertools

import numpy as np
import pytest

from tests import oracles
from tff_agg import averaging
from tff_agg.server import Optimiser, momentum, server_step

ROUNDS, WIDTH = 7, 3
AVERAGERS = {
    "last": averaging.last(),
    "uta": averaging.uta(3),
    "ema": averaging.ema(decay=0.6),
    "late": averaging.starting_at(3, averaging.pda(2.0)),
}
MOMENTA = ((0.0, False), (0.9, False), (0.8, True))


@pytest.mark.parametrize("averager", AVERAGERS)
@pytest.mark.parametrize("step_from", ["aggregate", "iterate"])
@pytest.mark.parametrize(("decay", "nesterov"), MOMENTA)
def test_it_steps_as_the_formulas_say(averager, step_from, decay, nesterov, library):
    make, compiled = library
    rng = np.random.default_rng(1)
    start = rng.normal(size=WIDTH).astype(np.float32)
    means = rng.normal(size=(ROUNDS, WIDTH)).astype(np.float32)
    step = server_step(
        momentum(decay, nesterov),
        AVERAGERS[averager],
        learning_rate=0.3,
        step_from=step_from,
    )
    aggregate = {"w": make(start)}
    state, next_ = step.init(aggregate), compiled(step.next)
    thetas, aggregates = [start], [start]
    for t, mean in enumerate(means):
        state, aggregate = next_(state, aggregate, {"w": make(mean)}, make(t))
        thetas.append(np.asarray(state["iterate"]["w"]))
        aggregates.append(np.asarray(aggregate["w"]))
    wanted = oracles.trajectory(
        start,
        means,
        learning_rate=0.3,
        decay=decay,
        nesterov=nesterov,
        weights=AVERAGERS[averager].weights,
        step_from=step_from,
    )
    np.testing.assert_allclose(thetas, wanted[0], atol=3e-6)
    np.testing.assert_allclose(aggregates, wanted[1], atol=3e-6)


def test_the_response_says_how_much_of_each_round_is_in_each_checkpoint():
    rng = np.random.default_rng(2)
    means = rng.normal(size=(ROUNDS, WIDTH))
    for (decay, nesterov), step_from in itertools.product(
        MOMENTA, ("aggregate", "iterate")
    ):
        step = server_step(
            momentum(decay, nesterov),
            averaging.uta(2),
            learning_rate=0.7,
            step_from=step_from,
        )
        moved, _ = oracles.trajectory(
            np.zeros(WIDTH),
            means,
            learning_rate=0.7,
            decay=decay,
            nesterov=nesterov,
            weights=averaging.uta(2).weights,
            step_from=step_from,
        )
        np.testing.assert_allclose(step.response(ROUNDS) @ means, moved, atol=1e-12)
        np.testing.assert_allclose(step.run(np.zeros(WIDTH), means), moved, atol=1e-12)


def test_without_momentum_nothing_is_kept_for_it():
    assert server_step().init(np.zeros(3))["optimiser"] == ()
    held = server_step(momentum(0.5)).init(np.zeros(3, np.float32))["optimiser"]
    assert held.shape == (3,) and held.dtype == np.float32


def test_an_optimiser_that_is_not_linear_has_no_response():
    squared = Optimiser(
        init=lambda theta: (),
        next=lambda state, mean, round: (state, mean**2),
        linear=False,
        parameters={"optimiser": "squared"},
    )
    step = server_step(squared)
    _, theta = step.next(step.init(np.zeros(1)), np.zeros(1), np.full(1, 3.0), 0)
    assert theta == [-9.0]
    with pytest.raises(ValueError, match=r"'squared'.* is not linear"):
        step.response(3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: momentum(1.0), r"momentum must be in \[0, 1\), got 1.0"),
        (lambda: momentum(-0.1), r"momentum must be in \[0, 1\), got -0.1"),
        (lambda: momentum(nesterov=True), "nesterov=True needs a momentum"),
        (lambda: server_step(learning_rate=0.0), "learning_rate must be a positive"),
        (lambda: server_step(learning_rate=np.inf), "learning_rate must be a positive"),
        (lambda: server_step(step_from="average"), "step_from must be one of"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
