"""Checks of arguments: what they take, what they give back, what they refuse."""

import json
import math

import numpy as np
import pytest

from tff_agg import checks
from tff_agg.privacy import FixedEpochOrder, MinSeparation


@pytest.mark.parametrize("kind", [int, np.int32, np.int64, np.uint64])
def test_whole_numbers_of_any_kind_become_pythons_own(kind):
    found = checks.whole("n", kind(7))
    assert found == 7 and type(found) is int


@pytest.mark.parametrize(
    "value", [0, -1, 1.0, np.float64(2), True, "1", None, math.nan]
)
def test_what_is_no_count_is_refused_by_name(value):
    with pytest.raises(ValueError, match="n must be a whole number of at least 1, got"):
        checks.whole("n", value)


def test_a_range_of_whole_numbers_has_both_ends():
    assert [checks.whole("n", n, least=2, most=3) for n in (2, 3)] == [2, 3]
    for n in (1, 4):
        with pytest.raises(ValueError, match=f"n must .* from 2 to 3, got {n}"):
            checks.whole("n", n, least=2, most=3)


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("(0, 1)", [0.5], [0, 1]),
        ("[0, 1)", [0, 0.5], [1, -0.1]),
        ("(0, 1]", [1, 0.5], [0, 1.1]),
        ("[0, inf)", [0, 1e300], [-1e-300]),
        ("(-inf, inf)", [-1e300, 0], []),
    ],
)
def test_intervals_are_those_of_mathematics(interval, inside, outside):
    for value in inside:
        for kind in (float, np.float64):
            assert type(checks.number("x", kind(value), interval)) is float
    for value in (*outside, math.nan, math.inf, -math.inf, True, "0.5", None, 0.5j):
        with pytest.raises(ValueError, match=r"x must be .*, got"):
            checks.number("x", value, interval)


def test_choices_are_named():
    assert checks.choice("metric", "max", ("mean", "max")) == "max"
    with pytest.raises(ValueError, match="metric must be one of 'mean', 'max', got 3"):
        checks.choice("metric", 3, ("mean", "max"))


def test_schemas_of_numpys_numbers_are_those_of_pythons():
    for made, same in (
        (MinSeparation(np.int64(3), np.int64(2)), MinSeparation(3, 2)),
        (FixedEpochOrder(np.int64(3)), FixedEpochOrder(3)),
    ):
        assert made == same and json.dumps(made.to_json()) == json.dumps(same.to_json())
