"""Noisy votes and a threshold: the noise, the failure probability, the guarantee."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tff_agg import backends
from tff_agg.noise import generators, seeds
from tff_agg.privacy import KeySelection, gaussian

KEY = (1, -2, 3, 2**64 - 4)
SELECTION = KeySelection(cap=9, noise_multiplier=2.0, delta=1e-3)


def test_rho_and_stddev_are_those_of_the_gaussian_mechanism():
    assert SELECTION.stddev == 6.0 and SELECTION.rho == 0.125
    release = SELECTION.release("vocabulary")
    assert (release.name, release.rho, release.delta) == ("vocabulary", 0.125, 1e-3)
    assert "at most 9 keys" in release.method and "6" in release.method


def noise_p_value(draws, stddev):
    """How likely draws are if they are normal with this standard deviation."""
    return stats.kstest(draws / stddev, "norm").pvalue


def test_the_noise_is_normal_and_of_the_right_size():
    votes = np.arange(50_000)
    draws = SELECTION.noisy(votes, KEY) - votes
    assert noise_p_value(draws, 6.0) > 1e-3
    # √cap was not forgotten, and neither was it squared.
    for wrong in (2.0, 18.0, 6.0 * 2 / 3, 6.0 * 3 / 2):
        assert noise_p_value(draws, wrong) < 1e-9
    # Independent from key to key, from part to part and from secret to secret.
    assert abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) < 0.02
    for others in (
        SELECTION.noisy(votes, KEY, part=1),
        SELECTION.noisy(votes, (*KEY[:3], 0)),
    ):
        assert abs(np.corrcoef(others - votes, draws)[0, 1]) < 0.02
    # It is the words of AES that decide.
    key = seeds.seed_in(backends.NUMPY, KEY)
    unit = generators.normals(backends.NUMPY, key, 0, np.zeros(50_000))
    np.testing.assert_array_equal(SELECTION.noisy(votes, KEY), votes + 6.0 * unit)


@pytest.mark.parametrize("cap", [1, 4, 100])
@pytest.mark.parametrize("delta", [0.3, 0.02])
def test_keys_of_one_user_alone_are_published_with_probability_delta(cap, delta):
    """The worst user names `cap` keys that nobody else names."""
    selection = KeySelection(cap, 1.5, delta)
    trials = 40_000 if cap < 100 else 8_000
    noisy = selection.noisy(np.ones(trials * cap), (cap, 1, 2, 3))
    noisy = noisy.reshape(trials, cap)
    failures = int((noisy > selection.threshold).any(axis=1).sum())
    low, high = stats.binom.ppf([1e-5, 1 - 1e-5], trials, delta)
    assert low <= failures <= high


@pytest.mark.parametrize("delta", [1e-3, 1e-7, 1e-15])
@pytest.mark.parametrize("cap", [1, 10, 1000])
def test_the_failure_probability_is_exact_where_no_trial_reaches(cap, delta):
    selection = KeySelection(cap, 0.7, delta)
    one = stats.norm.logsf((selection.threshold - 1) / selection.stddev)
    all_below = cap * math.log1p(-math.exp(one))
    assert -math.expm1(all_below) == pytest.approx(delta, rel=1e-6)


def passes(selection, votes):
    """The chance of each key to be published."""
    return stats.norm.sf((selection.threshold - np.asarray(votes)) / selection.stddev)


def outcomes(selection, votes):
    """The probability of every set of published keys."""
    chances = passes(selection, votes)
    return {
        chosen: math.prod(
            p if inside else 1 - p for p, inside in zip(chances, chosen, strict=True)
        )
        for chosen in itertools.product((True, False), repeat=len(votes))
    }


@pytest.mark.parametrize("shared", [0, 1, 2, 3])
@pytest.mark.parametrize("level", [-3.0, -1.0, 0.0, 1.0])
def test_the_published_sets_of_neighbours_are_as_close_as_promised(shared, level):
    """All sets of keys, exactly: a user with keys of its own and keys of others.

    Votes of the shared keys lie around the threshold, where a vote matters the most.
    A key without votes is never published.
    """
    selection = KeySelection(cap=3, noise_multiplier=1.2, delta=1e-2)
    others = [selection.threshold + level * selection.stddev] * shared
    alone = 3 - shared
    with_user = outcomes(selection, [v + 1 for v in others] + [1] * alone)
    without = outcomes(selection, others)
    without = {
        key: without[key[:shared]] if not any(key[shared:]) else 0.0
        for key in with_user
    }
    for epsilon_delta in (1e-6, 1e-3, 0.05):
        epsilon = gaussian.epsilon(1 / selection.noise_multiplier, epsilon_delta)
        total = epsilon_delta + selection.delta
        for one, other in ((with_user, without), (without, with_user)):
            # The worst event is the set of all outcomes with an excess.
            excess = sum(
                max(0.0, one[key] - math.exp(epsilon) * other[key]) for key in one
            )
            assert excess <= total + 1e-12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cap": 0}, "cap"),
        ({"cap": 2.5}, "cap"),
        ({"noise_multiplier": 0.0}, "no noise, no privacy"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
    ],
)
def test_bad_input_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        KeySelection(**({"cap": 3, "noise_multiplier": 1.0, "delta": 0.1} | changes))
