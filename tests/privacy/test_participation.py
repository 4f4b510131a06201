"""What a schema enforces and what it checks, against all sets of rounds."""

import itertools

import numpy as np
import pytest

from tff_agg.privacy import AtMostOnce, FixedEpochOrder, MinSeparation
from tff_agg.privacy.cohorts import ParticipationError, check_cohorts
from tff_agg.privacy.user_rounds import History

ROUNDS = 8


def schemas():
    yield AtMostOnce()
    for b in range(1, ROUNDS + 1):
        for most in (None, 1, 2, 3):
            yield MinSeparation(b, most)
            yield FixedEpochOrder(b, most)


def is_allowed(schema, rounds):
    """The definition, written down a second time."""
    match schema:
        case AtMostOnce():
            return len(rounds) <= 1
        case MinSeparation(separation, most):
            pairs = itertools.combinations(rounds, 2)
            near = any(abs(a - b) < separation for a, b in pairs)
            return not near and len(rounds) <= (most or ROUNDS)
        case FixedEpochOrder(length, most):
            places = {i % length for i in rounds}
            return len(places) <= 1 and len(rounds) <= (most or ROUNDS)
    raise AssertionError(schema)


@pytest.mark.parametrize("schema", schemas(), ids=str)
def test_what_is_enforced_and_what_is_checked_are_the_definition(schema):
    """All sets of rounds, each walked through as a sampler would meet them."""
    for mask in range(2**ROUNDS):
        rounds = [i for i in range(ROUNDS) if mask >> i & 1]
        expected = is_allowed(schema, rounds)
        assert (schema.violation(rounds) is None) == expected, rounds
        history, enforced = History.empty(1), True
        for t in rounds:
            enforced &= bool(schema.may_join(t, history)[0])
            history.note(np.array([0]), t)
        assert enforced == expected, rounds


@pytest.mark.parametrize("schema", schemas(), ids=str)
def test_nobody_joins_a_round_twice(schema):
    history = History.empty(2)
    history.note(np.array([1]), 3)
    assert schema.may_join(3, history).tolist() == [True, False]
    assert schema.violation([3, 3]) is not None
    with pytest.raises(ParticipationError, match=r"user 7 .*twice"):
        check_cohorts(schema, [[7, 7]])


LARGE = 2**63 + 5


@pytest.mark.parametrize(
    "cohorts",
    [
        [[LARGE, 3], [LARGE]],
        [np.array([LARGE, 3], np.uint64), [LARGE]],
        [[np.uint64(LARGE), 3], np.array([LARGE], np.uint64)],
        [[2**200, -1], [2**200]],
        [["anna", "ben"], ["anna"]],
        [[("site", 3)], [("site", 3)]],
    ],
)
def test_users_are_told_apart_by_any_id(cohorts):
    with pytest.raises(ParticipationError, match="of round 0 takes part again"):
        check_cohorts(AtMostOnce(), cohorts)


def test_large_ids_next_to_each_other_are_two_users():
    near = [[LARGE, 3], [LARGE + 1], [2**53], [2**53 + 1]]
    assert len(check_cohorts(AtMostOnce(), near)) == 5


@pytest.mark.parametrize("users", [[1.5], np.array([2.0**63]), [[1, 2]], np.array(3)])
def test_what_may_have_been_rounded_is_refused(users):
    with pytest.raises(ValueError, match="users must be"):
        check_cohorts(AtMostOnce(), [users])


def test_cohorts_are_refused_by_user_rounds_and_promise():
    cohorts = [[1, 2], [2], [1], [2], [1, 3]]
    with pytest.raises(ParticipationError) as caught:
        check_cohorts(FixedEpochOrder(2, epochs=2), cohorts)
    for words in ("user 1 takes part 3 times", "0, 2, 4", "2)", "at most 2 of them"):
        assert words in str(caught.value), words
    taken = check_cohorts(FixedEpochOrder(1), cohorts)
    assert taken == {1: [0, 2, 4], 2: [0, 1, 3], 3: [4]}
