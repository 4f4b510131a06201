"""The next round's clients are read while this one is computed."""

import threading

import pytest

from tests.experiment.summing import ROUNDS, SEED, Process, cohort, sum_of, train
from tff_agg.experiment.run import ledger


def of_thread():
    return [t for t in threading.enumerate() if t.name.startswith("read-ahead")]


def test_a_round_is_computed_while_the_next_ones_clients_are_read(tmp_path):
    begun = [threading.Event() for _ in range(ROUNDS)]
    seeds = []

    def read(number, seed):
        seeds.append(seed)
        begun[number].set()
        return cohort(number)

    def wait_for_the_next(number):
        if number + 1 < ROUNDS:
            assert begun[number + 1].wait(20), "nobody reads them"

    state = train(tmp_path, Process(wait_for_the_next), read)
    assert sum_of(state) == 11111.0
    assert seeds == [SEED] * ROUNDS, "each round's once, and none after the last"
    assert not of_thread()


def test_clients_that_cannot_be_read_do_not_take_the_round_before_along(tmp_path):
    def read(number, seed):
        if number == 3:
            raise OSError("the disk is gone")
        return cohort(number)

    reported = []
    with pytest.raises(OSError, match="the disk is gone"):
        train(tmp_path, Process(), read, on_round=lambda r: reported.append(r.round))
    assert reported == [1, 2, 3]
    assert ledger.Ledger(tmp_path).read().last == 3
    assert not of_thread()
    assert sum_of(train(tmp_path, Process())) == 11111.0


def test_an_interrupted_round_leaves_no_thread_and_no_trace_of_the_next(tmp_path):
    def interrupted(number):
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, Process(interrupted))
    assert not of_thread()
    history = ledger.Ledger(tmp_path).read()
    assert history.last == 2
    assert sum_of(train(tmp_path, Process())) == 11111.0
