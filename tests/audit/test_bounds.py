"""What the bounds promise: coverage, agreement with each other, and closed forms."""

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from tff_agg.audit import bounds
from tff_agg.privacy import gaussian


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    inside, trials, mu = 0, 400, 1.3
    for _ in range(trials):
        included = rng.random(200) < 0.5
        shown = rng.uniform(0.5, 1.0, size=200)
        scores = 3.0 * (rng.normal(size=200) + mu * shown * included) + 1.0
        found = bounds.fit(scores, included, shown)
        inside += found.low <= mu * shown.max() <= found.high
    assert binom.isf(0.999, trials, 0.95) <= inside <= binom.isf(0.001, trials, 0.95)


def test_chances_of_unequal_events_add_up():
    chances = np.array([0.1, 0.5, 0.9])
    exact = [1.0, 1 - 0.9 * 0.5 * 0.1, 0.0, 0.1 * 0.5 * 0.9]
    exact[2] = 0.1 * 0.5 * 0.1 + 0.1 * 0.5 * 0.9 + 0.9 * 0.5 * 0.9 + exact[3]
    found = [bounds.chance_of_at_least(k, chances) for k in range(4)]
    np.testing.assert_allclose(found, exact, rtol=1e-12)
    many = np.full(300, 0.7)
    many[0] += 1e-9
    assert bounds.chance_of_at_least(230, many) == pytest.approx(
        binom.sf(229, 300, 0.7), rel=1e-6
    )


def test_equal_canaries_give_the_bound_of_clopper_and_pearson():
    mu = bounds.lower_bound(140, np.ones(200))
    assert binom.sf(139, 200, ndtr(mu / 2)) == pytest.approx(0.05, abs=1e-4)
    weak = bounds.lower_bound(140, np.full(200, 0.5))
    assert weak == pytest.approx(2 * mu, rel=1e-3)
    assert bounds.lower_bound(100, np.ones(200)) == 0
    assert bounds.lower_bound(200, np.ones(200)) > 4


def test_the_bound_for_dependent_canaries_survives_a_run_lucky_for_all_of_them():
    """A mechanism that, with some chance, shows every coin with few errors.

    With chance p each coin is shown, wrong with chance 1/(1 + e^ε); else nothing is.
    Its trade-off curve has corners at (x, y) = (p, pe^ε)/(1 + e^ε) and its mirror
    image, so that it is μ-GDP for the μ whose curve goes through them.
    """
    rng = np.random.default_rng(1)
    canaries, trials, p, odds = 100, 300, 0.2, math.exp(3.0)
    mu = ndtri(p * odds / (1 + odds)) - ndtri(p / (1 + odds))
    chances = np.where(rng.random(trials) < p, odds / (1 + odds), 0.5)
    counts = rng.binomial(canaries, chances)
    above = [
        bounds.lower_bound_if_dependent(c, canaries, canaries) > mu for c in counts
    ]
    assert sum(above) <= binom.isf(1e-3, trials, 0.05)
    # The bound for independent canaries is not made for such a mechanism.
    assert sum(bounds.lower_bound(c, np.ones(canaries)) > mu for c in counts) > 30


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_general_bounds_hold_for_gaussian_canaries_and_are_below_the_special_one(mu):
    rng = np.random.default_rng(2)
    canaries, delta = 400, 1e-5
    epsilon = gaussian.epsilon(mu, delta)
    above = 0
    for _ in range(60):
        included = rng.random(canaries) < 0.5
        scores = rng.normal(size=canaries) + mu * included - mu / 2
        right = (scores > 0) == included
        surest = np.argsort(-np.abs(scores))[:100]
        few = int(right[surest].sum())
        special = bounds.lower_bound(int(right.sum()), np.ones(canaries))
        dependent = bounds.lower_bound_if_dependent(few, 100, canaries)
        anything = bounds.epsilon_lower_bound(few, 100, canaries, delta)
        above += special > mu
        assert dependent <= mu
        assert anything <= epsilon
    assert above <= binom.isf(1e-3, 60, 0.05)


def test_without_delta_the_bound_for_any_mechanism_is_the_binomial_one():
    epsilon = bounds.epsilon_lower_bound(90, 100, 100, 1e-12)
    p = 1 / (1 + math.exp(-epsilon))
    assert binom.sf(89, 100, p) == pytest.approx(0.05, abs=1e-4)
    assert bounds.epsilon_lower_bound(90, 100, 100, 1e-3) < epsilon
    assert bounds.epsilon_lower_bound(50, 100, 100, 1e-6) == 0


def test_bad_counts_are_refused():
    with pytest.raises(ValueError, match="got 5, 4, 10"):
        bounds.lower_bound_if_dependent(5, 4, 10)
    with pytest.raises(ValueError, match="confidence must be in"):
        bounds.lower_bound(5, np.ones(10), confidence=1.0)
    with pytest.raises(ValueError, match=r"strengths must be in \(0, 1\]"):
        bounds.lower_bound(5, np.full(10, 1.5))
    with pytest.raises(ValueError, match="two canaries of either kind, got 1"):
        bounds.fit(np.ones(4), np.array([True, False, False, False]), np.ones(4))


def test_the_light_part_of_the_audit_needs_no_tensorflow():
    code = (
        "import sys, tff_agg.audit.findings, tff_agg.audit.simulation\n"
        "import tff_agg.audit.noise_check, tff_agg.audit.membership\n"
        "print(sorted({'tensorflow', 'jax', 'tensorflow_federated'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
