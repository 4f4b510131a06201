"""Losses: closed forms, conversions, sums, inversion, bad input."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from tff_agg import checks
from tff_agg.privacy import (
    METHODS,
    AtMostOnce,
    Loss,
    delta_warning,
    losses,
    noise_for,
    rho_of_per_node,
)
from tff_agg.privacy.losses import of_noise


def exact_delta(sigma, epsilon):
    """The closed form of the Gaussian mechanism, with no accounting library."""
    return ndtr(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * ndtr(
        -0.5 / sigma - epsilon * sigma
    )


@pytest.mark.parametrize(
    ("sigma", "expected_rho", "paper", "per_node_rho"),
    [(0.341, 4.30, 18.9, 47.3), (0.682, 1.075, 8.2, 11.8)],
)
def test_the_papers_figures_and_the_other_reading(
    sigma, expected_rho, paper, per_node_rho
):
    assert of_noise(sigma).rho == pytest.approx(expected_rho, abs=0.005)
    by = of_noise(sigma).epsilons(1e-6)
    assert by["rdp_whole_orders"] == pytest.approx(paper, abs=0.06)
    assert tuple(by) == METHODS and sorted(by.values(), reverse=True) == [*by.values()]
    assert rho_of_per_node(sigma, 2000) == pytest.approx(per_node_rho, abs=0.06)


@pytest.mark.parametrize("sigma", [0.1, 0.341, 0.682, 2.0, 30.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_tight_is_the_closed_form(sigma, delta):
    epsilon = of_noise(sigma).epsilon(delta)
    assert exact_delta(sigma, epsilon) <= delta * (1 + 1e-9)
    assert exact_delta(sigma, epsilon * (1 - 1e-4)) > delta


@given(st.floats(0.05, 60.0), st.floats(-12, -2))
@example(1.9375, -3.75)
@settings(deadline=None, max_examples=12)
def test_conversions_keep_their_order(sigma, log_delta):
    delta = 10.0**log_delta
    by = of_noise(sigma).epsilons(delta)
    assert by["tight"] <= by["rdp"] <= by["rdp_whole_orders"]
    assert of_noise(sigma * 1.1).epsilon(delta) < by["tight"] + 1e-12


@pytest.mark.parametrize("delta", [1e-10, 1e-6, 1e-3])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.2, 60.0])
def test_calibration_is_on_the_safe_side_and_tight(epsilon, delta):
    sigma = noise_for(epsilon, delta)
    assert of_noise(sigma).epsilon(delta) <= epsilon
    assert exact_delta(sigma, epsilon) <= delta * (1 + 1e-9)
    assert exact_delta(sigma * (1 - 1e-9), epsilon) > delta * (1 - 1e-10)
    assert of_noise(sigma * (1 - 1e-11)).epsilon(delta) > epsilon


@pytest.mark.parametrize(
    ("delta", "population", "warns"),
    [(1e-6, 342_477, False), (1e-3, 1000, True), (0.5, 10, True), (0.09, 10, False)],
)
def test_a_delta_of_one_user_is_warned_of(delta, population, warns):
    text = delta_warning(delta, population)
    assert (text is not None) == warns
    if text:
        assert f"delta={delta:g} is not below 1/{population}" in text


@given(st.floats(0, 5), st.floats(0, 5), st.floats(0, 3), st.floats(0, 3))
@settings(deadline=None, max_examples=40)
def test_losses_add_up(mu, other_mu, rho, other_rho):
    one, two = Loss(mu, rho), Loss(other_mu, other_rho)
    both = one + two
    assert both.rho == pytest.approx(one.rho + two.rho)
    assert one + Loss() == one and both == two + one
    assert both.epsilon(1e-6) >= max(one.epsilon(1e-6), two.epsilon(1e-6)) - 1e-9
    for order, value in both.renyi((2, 8)).items():
        assert value == pytest.approx(order * both.rho)


def test_sampled_steps_and_other_losses_add_up():
    from tff_agg.privacy.sampled import steps_of

    certain = Loss(kinds=(steps_of(8.0, 1.0, 16),))
    as_one = Loss(mu=math.sqrt(16) / 8.0)
    assert certain.epsilon(1e-5) == pytest.approx(as_one.epsilon(1e-5), rel=1e-3)
    together = certain + Loss(mu=0.5)
    assert together.rho == pytest.approx((as_one + Loss(mu=0.5)).rho)
    expected = (as_one + Loss(mu=0.5)).epsilon(1e-5)
    assert together.epsilon(1e-5) == pytest.approx(expected, rel=1e-3)
    other = certain + Loss(other_rho=0.125)
    assert together.epsilon(1e-5) < other.epsilon(1e-5)
    assert other.epsilon(1e-5) == other.epsilon(1e-5, "rdp")
    with pytest.raises(ValueError, match="method"):
        certain.epsilon(1e-5, "zcdp")


def test_no_noise_is_no_privacy():
    assert of_noise(0.0).rho == math.inf
    assert [*of_noise(0.0).epsilons(1e-6).values()] == [math.inf] * 4
    assert (of_noise(0.0) + Loss(other_rho=1.0)).epsilon(1e-6) == math.inf
    assert Loss().rho == Loss().epsilon(1e-6) == 0.0


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: of_noise(-1.0), "noise_multiplier"),
        (lambda: of_noise(math.nan), "noise_multiplier"),
        (lambda: of_noise(math.inf), "noise_multiplier"),
        (lambda: of_noise("0.3"), "noise_multiplier"),
        (lambda: of_noise(1.0).epsilon(0.0), "delta"),
        (lambda: of_noise(1.0).epsilon(1.0), "delta"),
        (lambda: of_noise(1.0).epsilon(math.nan), "delta"),
        (lambda: of_noise(1.0).epsilon(1e-6, "moments"), "method"),
        (lambda: noise_for(0.0, 1e-6), "epsilon"),
        (lambda: noise_for(math.inf, 1e-6), "epsilon"),
        (lambda: noise_for(1.0, 2.0), "delta"),
        (lambda: noise_for(1.0, 1e-6, Loss(mu=1.0)), "is spent"),
        (lambda: losses.of_rho(-1.0), "rho"),
        (lambda: delta_warning(1.0, 10), "delta"),
        (lambda: rho_of_per_node(-0.1, 2000), "noise_multiplier"),
        (lambda: rho_of_per_node(0.1, 0), "rounds"),
        (lambda: rho_of_per_node(0.1, 10, AtMostOnce(), 0), "restart_every"),
    ],
)
def test_bad_input_is_named(make, name):
    with pytest.raises(ValueError, match=name):
        make()


def test_messages_name_the_value():
    with pytest.raises(ValueError, match=r"strictly between 0 and 1, got 1\.5"):
        checks.delta(1.5)
