"""Independent jobs give the same results one by one, side by side and on Ray."""

import functools
import threading

import pytest

from tff_agg.runtime import jobs


def half(number):
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number // 2


def outcome(ended):
    return ended.position, ended.value, str(ended.error)


@pytest.mark.parametrize("at_once", [1, 3])
def test_every_job_ends_with_its_value_or_its_error(at_once):
    found = sorted(map(outcome, jobs.spread(half, [8, 3, 4], at_once=at_once)))
    assert found == [(0, 4, "None"), (1, None, "3 is odd"), (2, 2, "None")]


def test_jobs_run_side_by_side():
    both = threading.Barrier(2, timeout=30)
    waited = list(jobs.spread(lambda _: both.wait(), range(2), at_once=2))
    assert sorted(ended.result() for ended in waited) == [0, 1]


def test_results_come_as_jobs_end():
    first_may_end = threading.Event()

    def job(number):
        return number if number else first_may_end.wait(30)

    ended = jobs.spread(job, [0, 1], at_once=2)
    assert next(ended).position == 1
    first_may_end.set()
    assert next(ended).result() is True


def test_what_has_not_begun_is_dropped_with_the_iteration():
    begun = []
    for ended in jobs.spread(begun.append, range(5)):
        assert ended.error is None
        break
    assert begun == [0]


def test_results_raise_and_wrong_numbers_are_refused():
    (ended,) = jobs.spread(half, [1])
    with pytest.raises(ValueError, match="1 is odd"):
        ended.result()
    with pytest.raises(ValueError, match="at_once=0"):
        next(jobs.spread(half, [1], at_once=0))
    with pytest.raises(ValueError, match="processes=0"):
        next(jobs.spread(half, [1], processes=0))
    with pytest.raises(ValueError, match="give one of them"):
        next(jobs.spread(half, [1], processes=2, at_once=2))


def test_an_error_that_cannot_travel_is_told_in_words():
    class Local(Exception):
        pass

    def job(_):
        raise Local("far away")

    ended = jobs._portable(functools.partial(job), 0, None)
    assert isinstance(ended.error, RuntimeError)
    assert str(ended.error) == "Local: far away"
