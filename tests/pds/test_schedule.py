"""What the shift schedules promise."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pds import Schedule, constant, cosine, linear, step

PERIODIC = [linear, cosine, step]


@given(st.integers(0, 10_000), st.integers(2, 500))
def test_linear_is_the_formula_of_the_paper(t, period):
    assert linear(period).share(t) == abs(2 * (t % period) / period - 1)


def test_linear_goes_from_one_to_zero_and_back():
    assert [linear(4).share(t) for t in range(6)] == [1.0, 0.5, 0.0, 0.5, 1.0, 0.5]


@given(st.integers(0, 1000), st.integers(2, 300))
def test_cosine_is_the_cosine(t, period):
    expected = (1 + math.cos(2 * math.pi * t / period)) / 2
    assert cosine(period).share(t) == pytest.approx(expected, abs=1e-9)


def test_step_is_all_or_nothing():
    assert [step(4).share(t) for t in range(8)] == [1, 1, 0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize("make", PERIODIC)
@given(st.integers(0, 5000), st.integers(2, 300))
def test_periodic_shares_are_probabilities_that_repeat(make, t, period):
    schedule = make(period)
    assert 0.0 <= schedule.share(t) <= 1.0
    assert schedule.share(t) == schedule.share(t + period)


@pytest.mark.parametrize("make", PERIODIC)
def test_periodic_shares_average_one_half(make):
    shares = [make(200).share(t) for t in range(200)]
    assert sum(shares) / 200 == pytest.approx(0.5, abs=1e-9)
    assert shares[0] == 1.0
    assert shares[100] == pytest.approx(0.0, abs=1e-12)


def test_constant_never_moves():
    assert {constant(0.3).share(t) for t in range(100)} == {0.3}


def test_schedules_can_be_compared_and_described():
    assert linear(200) == linear(200)
    assert linear(200) != cosine(200)
    assert linear(200).describe() == "linear shift with a period of 200 rounds"
    assert constant(0.25).describe() == "constant share 0.25"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: linear(1), r"period .* at least 2, got 1"),
        (lambda: linear(2.5), r"period .* got 2.5"),
        (lambda: Schedule("linear"), r"period .* got None"),
        (lambda: Schedule("sawtooth", period=3), r"shape .* got 'sawtooth'"),
        (lambda: Schedule("linear", period=3, value=0.5), "value=0.5"),
        (lambda: Schedule("constant", period=3, value=0.5), "period=3"),
        (lambda: constant(1.5), r"value .* got 1.5"),
        (lambda: linear(5).share(-1), "t=-1"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
