"""The closed forms, against 60 digits and against an accountant of others."""

import json
import math
import pathlib

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_agg.privacy import gaussian

EXACT = json.loads(
    (pathlib.Path(__file__).parents[1] / "golden/privacy.json").read_text("utf-8")
)["exact"]


@pytest.mark.parametrize(("given", "expected"), EXACT["epsilon"].items())
def test_epsilon_to_twelve_digits(given, expected):
    sigma, delta = map(float, given.split())
    found = gaussian.epsilon(1 / sigma, delta)
    assert found == pytest.approx(float(expected), rel=1e-12 if sigma < 100 else 1e-11)


@pytest.mark.parametrize(("given", "expected"), EXACT["sigma"].items())
def test_mu_to_twelve_digits_and_never_too_large(given, expected):
    epsilon, delta = map(float, given.split())
    found = gaussian.mu(epsilon, delta)
    assert 1 / found == pytest.approx(float(expected), rel=1e-11)
    assert gaussian.epsilon(found, delta) <= epsilon


@given(st.floats(1e-3, 100.0), st.floats(-15, -2))
@settings(deadline=None, max_examples=60)
def test_the_three_forms_are_inverse_to_each_other(mu, log_delta):
    delta = 10.0**log_delta
    epsilon = gaussian.epsilon(mu, delta)
    if epsilon > 0:
        assert gaussian.delta(mu, epsilon) == pytest.approx(delta, rel=1e-8)
        back = gaussian.mu(epsilon, delta)
        assert back == pytest.approx(mu, rel=1e-9)


@pytest.mark.parametrize("sigma", [0.341, 1.0, 10.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
def test_an_independent_accountant_agrees(sigma, delta):
    event = dp_accounting.GaussianDpEvent(sigma)
    found = gaussian.epsilon(1 / sigma, delta)
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    on_grid = accountant.compose(event).get_epsilon(delta)
    # A grid is on the safe side, and not far.
    assert found <= on_grid <= found * (1 + 1e-4)
    for orders in (gaussian.WHOLE_ORDERS, gaussian.FINE_ORDERS):
        renyi = rdp.RdpAccountant(orders.tolist()).compose(event).get_epsilon(delta)
        rho = 0.5 / sigma**2
        assert gaussian.by_renyi(rho, delta, orders) == pytest.approx(renyi, rel=1e-13)


@pytest.mark.parametrize("rho", [0.0, 1e-20, 1e-3])
def test_nearly_nothing_is_nothing(rho):
    orders = gaussian.FINE_ORDERS
    expected, _ = rdp.compute_epsilon(orders, rho * orders, 0.05)
    assert gaussian.by_renyi(rho, 0.05) == pytest.approx(expected, rel=1e-13)


def test_nothing_and_everything():
    assert gaussian.epsilon(0.0, 1e-6) == gaussian.epsilon(1e-7, 1e-6) == 0
    assert gaussian.epsilon(math.inf, 1e-6) == gaussian.epsilon(1e200, 1e-6) == math.inf
    assert gaussian.epsilon(1e3, 1e-6) == pytest.approx(5e5, rel=0.02)
    assert gaussian.delta(0.0, 1.0) == 0 and gaussian.delta(math.inf, 1.0) == 1
    assert gaussian.by_renyi(math.inf, 1e-6) == math.inf
    found = [gaussian.epsilon(mu, 1e-6) for mu in np.geomspace(1e-7, 1e-5, 200)]
    assert found == sorted(found) and found[0] == 0 < found[-1]
