"""Accounting: closed forms, conversions, inversion, bad input."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from tff_agg.privacy import (
    AtMostOnce,
    MinSeparation,
    calibrate,
    checks,
    gaussian_epsilon,
    gaussian_epsilons,
    guarantees,
    noise_multiplier_from_per_node,
    per_node_from_noise_multiplier,
    rho,
    rho_of_per_node,
)


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
    assert rho(sigma) == pytest.approx(expected_rho, abs=0.005)
    by = gaussian_epsilons(sigma, 1e-6)
    assert by.rdp_whole_orders == pytest.approx(paper, abs=0.06)
    assert by.zcdp > by.rdp_whole_orders > by.rdp > by.pld
    assert rho_of_per_node(sigma, 2000) == pytest.approx(per_node_rho, abs=0.06)


@pytest.mark.parametrize("sigma", [0.1, 0.341, 0.682, 2.0, 30.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_pld_is_the_closed_form_and_on_the_safe_side(sigma, delta):
    epsilon = gaussian_epsilon(sigma, delta)
    assert exact_delta(sigma, epsilon) <= delta * (1 + 1e-9)
    assert exact_delta(sigma, epsilon * (1 - 1e-4)) > delta


@given(st.floats(0.05, 60.0), st.floats(-12, -2))
@example(1.9375, -3.75)
@settings(deadline=None, max_examples=12)
def test_conversions_keep_their_order(sigma, log_delta):
    delta = 10.0**log_delta
    by = gaussian_epsilons(sigma, delta)
    assert by.pld <= by.rdp + 1e-6
    assert by.rdp <= by.rdp_whole_orders + 1e-9
    assert gaussian_epsilon(sigma * 1.1, delta) < by.pld + 1e-12


@pytest.mark.parametrize("delta", [1e-10, 1e-6, 1e-3])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.2, 60.0])
def test_calibration_is_on_the_safe_side_and_tight(epsilon, delta):
    sigma = calibrate(epsilon, delta)
    # Not by the accountant's grid, nor by the closed form, is ε exceeded.
    assert gaussian_epsilon(sigma, delta) <= epsilon
    assert exact_delta(sigma, epsilon) <= delta
    assert exact_delta(sigma * (1 - 2e-6) - 1e-7, epsilon) > delta


@pytest.mark.parametrize(
    ("delta", "population", "warns"),
    [(1e-6, 342_477, False), (1e-3, 1000, True), (0.5, 10, True), (0.09, 10, False)],
)
def test_a_delta_of_one_user_is_warned_of(delta, population, warns):
    text = guarantees.delta_warning(delta, population)
    assert (text is not None) == warns
    if text:
        assert f"delta={delta:g} is not below 1/{population}" in text


@given(st.floats(0.01, 10), st.integers(1, 3000), st.integers(1, 400))
@settings(deadline=None, max_examples=40)
def test_per_node_multipliers_convert_forth_and_back(value, rounds, separation):
    schema = MinSeparation(separation, 3).cut(rounds)
    per_node = per_node_from_noise_multiplier(value, rounds, schema)
    back = noise_multiplier_from_per_node(per_node, rounds, schema)
    assert back == pytest.approx(value)
    assert per_node >= value


def test_no_noise_is_no_privacy():
    assert rho(0.0) == math.inf
    assert gaussian_epsilons(0.0, 1e-6) == (math.inf,) * 4


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: rho(-1.0), "noise_multiplier"),
        (lambda: rho(math.nan), "noise_multiplier"),
        (lambda: rho(math.inf), "noise_multiplier"),
        (lambda: rho("0.3"), "noise_multiplier"),
        (lambda: gaussian_epsilon(1.0, 0.0), "delta"),
        (lambda: gaussian_epsilon(1.0, 1.0), "delta"),
        (lambda: gaussian_epsilon(1.0, math.nan), "delta"),
        (lambda: gaussian_epsilon(1.0, 1e-6, "moments"), "method"),
        (lambda: calibrate(0.0, 1e-6), "epsilon"),
        (lambda: calibrate(math.inf, 1e-6), "epsilon"),
        (lambda: calibrate(1.0, 2.0), "delta"),
        (lambda: guarantees.delta_warning(1.0, 10), "delta"),
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
        checks.check_delta(1.5)
