"""A round is saved, entered and reported while the next one is computed."""

import contextvars
import threading
import time

import pytest

from tests.experiment.summing import ROUNDS, Process, sum_of, train
from tff_agg import checkpoints
from tff_agg.experiment.run import ledger
from tff_agg.experiment.run.background import Background
from tff_agg.experiment.run.resume import ReleasedRoundError


class Events:
    """Things that happen once for each round, to be waited for."""

    def __init__(self):
        self._events = [threading.Event() for _ in range(ROUNDS + 1)]

    def set(self, number):
        self._events[number].set()

    def wait(self, number):
        assert self._events[number].wait(20), f"round {number} does not come"


def store_of(folder):
    return checkpoints.CheckpointStore(folder / "checkpoints")


def breaking(monkeypatch, error, at):
    """Makes saving fail in a round."""
    commit = checkpoints.CheckpointStore.commit

    def failing(self, number, prepared):
        if number == at:
            raise error
        commit(self, number, prepared)

    monkeypatch.setattr(checkpoints.CheckpointStore, "commit", failing)


def threads():
    return [t for t in threading.enumerate() if t.name == "background"]


# --- order -------------------------------------------------------------------------


def test_a_round_is_reported_while_the_next_is_computed_and_after_it_is_saved(tmp_path):
    reported, here = Events(), []

    def on_round(report):
        number = report.round
        assert store_of(tmp_path).rounds("state")[-1] == number
        history = ledger.Ledger(tmp_path).read()
        assert history.last == number and number not in history.reported
        here.append((number, threading.current_thread() is threading.main_thread()))
        reported.set(number)
        return {"heard": number}

    def wait_for_the_one_before(number):
        if number:
            reported.wait(number)

    state = train(tmp_path, Process(wait_for_the_one_before), on_round=on_round)
    assert sum_of(state) == 11111.0
    assert here == [(number, False) for number in range(1, ROUNDS + 1)]
    assert list(ledger.Ledger(tmp_path).read().reported) == list(range(1, ROUNDS + 1))
    assert store_of(tmp_path).load(ROUNDS, "iterate")["sum"] == sum_of(state)
    assert not threads()


def test_no_round_is_begun_while_the_one_before_the_last_is_not_yet_reported(tmp_path):
    begun, computing = Events(), []

    def before(number):
        computing.append(number)
        begun.set(number)

    def on_round(report):
        if report.round < ROUNDS:
            begun.wait(report.round)
        # Time enough for one that does not wait.
        time.sleep(0.02)
        assert max(computing) <= report.round

    train(tmp_path, Process(before), on_round=on_round)


# --- what goes wrong ---------------------------------------------------------------


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("error", [OSError("the disk is full"), Killed()])
def test_a_round_that_cannot_be_saved_ends_the_run_before_anything_later_is_released(
    tmp_path, monkeypatch, error
):
    """The round after it was computed already: from the same state it is the same."""
    process, reported = Process(noise=1.0), []
    with monkeypatch.context() as broken, pytest.raises(type(error)):
        breaking(broken, error, at=3)
        train(tmp_path, process, on_round=lambda r: reported.append(r.round))
    assert not threads()
    assert list(process.computed) == [1, 2, 3, 4]
    assert reported == [1, 2] and store_of(tmp_path).rounds() == [0, 1, 2]
    assert ledger.Ledger(tmp_path).read().last == 2
    again = Process(noise=1.0)
    train(tmp_path, again, on_round=lambda r: reported.append(r.round))
    assert list(again.computed) == [3, 4, 5] and reported == [1, 2, 3, 4, 5]
    assert [again.computed[n] for n in (3, 4)] == [process.computed[n] for n in (3, 4)]
    assert store_of(tmp_path).load(3, "iterate")["sum"] == process.computed[3][0]


def test_what_an_observer_raises_ends_the_run_with_its_round_saved(tmp_path):
    def on_round(report):
        if report.round == 2:
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        train(tmp_path, Process(), on_round=on_round)
    history = ledger.Ledger(tmp_path).read()
    assert history.last == 2 and list(history.reported) == [1]


def test_a_round_computed_again_is_compared_before_the_next_begins(tmp_path):
    train(tmp_path, Process(), rounds=4)
    path = tmp_path / "checkpoints" / "manifests" / "000000004.json"
    damaged = path.read_bytes()[:-1] + b"?"
    path.write_bytes(damaged)
    other = Process(added=1.0)
    with pytest.raises(ReleasedRoundError, match=r"Round 4 .* other released, metrics"):
        train(tmp_path, other)
    assert list(other.computed) == [4]
    assert path.read_bytes() == damaged


def test_an_interruption_waits_until_the_round_before_is_reported(tmp_path):
    interrupted, reported = threading.Event(), []

    def before(number):
        if number == 2:
            interrupted.set()
            raise KeyboardInterrupt

    def on_round(report):
        if report.round == 2:
            assert interrupted.wait(20)
        time.sleep(0.02)
        reported.append(report.round)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, Process(before), on_round=on_round)
    assert reported == [1, 2] and not threads()
    assert 2 in ledger.Ledger(tmp_path).read().reported


def test_a_second_interruption_does_not_let_go_of_the_thread(monkeypatch):
    done, join, calls = [], threading.Thread.join, []

    def impatient(self, timeout=None):
        calls.append(timeout)
        if len(calls) == 1:
            raise KeyboardInterrupt
        join(self, timeout)

    def slow():
        time.sleep(0.05)
        done.append(1)

    monkeypatch.setattr(threading.Thread, "join", impatient)
    with pytest.raises(KeyboardInterrupt), Background() as background:
        background.do(slow)
    assert done == [1] and not threads()


def test_what_is_done_in_the_thread_sees_the_callers_context():
    found, listening = [], contextvars.ContextVar("listening")
    with Background() as background:
        listening.set("here")
        background.do(lambda: found.append(listening.get()))
        background.wait()
    assert found == ["here"]


def test_of_two_errors_that_of_the_thread_is_raised():
    def fail():
        raise OSError("first")

    with pytest.raises(OSError, match="first"), Background() as background:
        background.do(fail)
        raise ValueError("second")
    with pytest.raises(KeyboardInterrupt), Background() as background:
        background.do(fail)
        raise KeyboardInterrupt
