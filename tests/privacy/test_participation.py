"""What a schema enforces and what it checks, against all sets of rounds."""

import itertools
import json
import pathlib
import re
import sys

import numpy as np
import pytest

from pds import ParticipationLog
from pds.register import History, may_join
from tff_agg.privacy import AtMostOnce, FixedEpochOrder, MinSeparation
from tff_agg.privacy.cohorts import ParticipationError, check_cohorts, violation
from tff_agg.privacy.participation import from_json

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
        assert (violation(schema, rounds) is None) == expected, rounds
        history, enforced = History.empty(1), True
        for t in rounds:
            enforced &= bool(may_join(schema, t, history)[0])
            history.note(np.array([0]), t)
        assert enforced == expected, rounds


@pytest.mark.parametrize("schema", schemas(), ids=str)
def test_schemas_come_back_from_json(schema):
    back = from_json(json.loads(json.dumps(schema.to_json())))
    assert back.to_json() == schema.to_json()
    once = isinstance(schema, MinSeparation) and schema.is_once
    assert back == (AtMostOnce() if once else schema)


def test_once_is_a_separation_that_no_round_is_long_enough_for():
    assert AtMostOnce() == MinSeparation(1, 1)
    assert AtMostOnce().spacing(2000) == MinSeparation(7, 1).spacing(2000) == 2000
    assert AtMostOnce().to_json() == {"schema": "at_most_once"}
    assert AtMostOnce().describe() == "each user takes part in at most one round"
    assert MinSeparation(1, 2).spacing(2000) == 1


@pytest.mark.parametrize("module", ["pds.register", "tff_agg.privacy.cohorts"])
def test_what_enforces_and_what_checks_do_not_know_each_other(module):
    other = {"pds.register", "tff_agg.privacy.cohorts"} - {module}
    text = pathlib.Path(sys.modules[module].__file__).read_text("utf-8")
    assert not any(re.search(rf"import.*{name.split('.')[-1]}", text) for name in other)
    # Nor by way of what they both import: that declares, and does neither.
    declared = sys.modules["tff_agg.privacy.participation"]
    assert not {"may_join", "violation", "History"} & set(vars(declared))


@pytest.mark.parametrize("schema", schemas(), ids=str)
def test_a_log_lets_in_whom_the_definition_allows(schema):
    """All sets of rounds at once: every user is one, and the log is stored between."""
    names = [f"user {mask}" for mask in range(2**ROUNDS)]
    wants = [[m >> t & 1 for m in range(2**ROUNDS)] for t in range(ROUNDS)]
    log, kept = ParticipationLog(schema), np.ones(len(names), bool)
    for t in range(ROUNDS):
        allowed = log.may_join(t, names)
        joins = np.array(wants[t], bool) & kept
        kept &= ~joins | allowed
        log.record(t, [n for n, j in zip(names, joins & allowed, strict=True) if j])
        log = ParticipationLog.from_json(json.loads(json.dumps(log.to_json())))
    for mask, is_kept in enumerate(kept):
        rounds = [t for t in range(ROUNDS) if mask >> t & 1]
        assert is_kept == is_allowed(schema, rounds), rounds


def test_a_log_takes_any_id_and_all_or_nobody():
    log = ParticipationLog(MinSeparation(2))
    log.record(0, [LARGE, "anna", ("site", 3), -1])
    log.record(0, np.array([LARGE + 1], np.uint64))
    asked = [LARGE, LARGE + 1, LARGE + 2, "anna", "ben", ("site", 3)]
    assert log.may_join(1, asked).tolist() == [False, False, True, False, True, False]
    with pytest.raises(ValueError, match=r"'anna' may not take part in round 1: .* 0,"):
        log.record(1, ["ben", "anna"])
    with pytest.raises(ValueError, match="'carl' is in the cohort of round 1 twice"):
        log.record(1, ["carl", "ben", "carl"])
    # Nobody of these two cohorts was noted.
    assert len(log) == 5 and log.may_join(1, ["ben", "carl"]).all()
    assert log.may_join(2, asked).all()
    with pytest.raises(ValueError, match="ids must be whole numbers or text"):
        log.to_json()
    for bad in ("anna", [1.5]):
        with pytest.raises(ValueError, match="users must be"):
            log.may_join(1, bad)
    with pytest.raises(ValueError, match="t must be"):
        log.record(-1, [1])
    stored = ParticipationLog(AtMostOnce()).to_json()
    with pytest.raises(ValueError, match="one first, last and times"):
        ParticipationLog.from_json(stored | {"ids": [1]})
    with pytest.raises(ValueError, match="schema must be one of"):
        ParticipationLog.from_json(stored | {"schema": {"schema": "often"}})


@pytest.mark.parametrize("schema", schemas(), ids=str)
def test_nobody_joins_a_round_twice(schema):
    history = History.empty(2)
    history.note(np.array([1]), 3)
    assert may_join(schema, 3, history).tolist() == [True, False]
    assert violation(schema, [3, 3]) is not None
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
