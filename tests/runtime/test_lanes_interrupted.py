"""Lanes after Ctrl-C, after a signal's own exception, after an error in one of them."""

import signal
import threading

import pytest

from tff_agg.runtime.lanes.pool import Lane, LanePool, StepError

CLIENTS = 60
MANY = 600_000  # seconds of work: no lane is through before another has failed


class StoppedError(BaseException):
    """What a program's own handler of SIGTERM may raise."""


class Strike:
    """Interrupts the main thread from inside a client, and waits until it has struck.

    The client goes on only a while later: a call that did not wait for its lanes would
    have returned by then.
    """

    def __init__(self, number, error):
        self._number = number
        self._struck = threading.Event()
        self._returned = threading.Event()
        self.times = 0

        def handler(number, frame):
            self.times += 1
            self._struck.set()
            raise error

        self._before = signal.signal(number, handler)

    def __call__(self):
        self._struck.clear()
        signal.pthread_kill(threading.main_thread().ident, self._number)
        assert self._struck.wait(30)
        self._returned.wait(0.3)

    def end(self):
        self._returned.set()
        signal.signal(self._number, self._before)


@pytest.fixture(autouse=True)
def ctrl_c_raises():
    """Also where the tests were started with SIGINT ignored, as a background job is."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def strike_with():
    made = []

    def make(number=signal.SIGINT, error=KeyboardInterrupt):
        made.append(Strike(number, error))
        return made[-1]

    yield make
    for strike in made:
        strike.end()


class Counted:
    """A step that knows who is at work, and does something at some clients."""

    def __init__(self, at):
        self._at = at
        self._lock = threading.Lock()
        self.at_work: set[int] = set()
        self.begun: list[int] = []

    def __call__(self, lane, value, position):
        with self._lock:
            self.at_work.add(position)
            self.begun.append(position)
        try:
            if position in self._at:
                self._at[position]()
        finally:
            with self._lock:
                self.at_work.remove(position)
        return value + 1


@pytest.fixture
def pool():
    return LanePool([Lane(i, "CPU:0") for i in range(3)])


def assert_whole(pool):
    """The next run has all of its clients, each once, and no other's."""
    seen = Counted({})
    assert pool.run(7, lambda lane: 0, seen) == [3, 2, 2]
    assert sorted(seen.begun) == list(range(7))


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (signal.SIGINT, KeyboardInterrupt),
        (signal.SIGTERM, StoppedError),
        (signal.SIGTERM, SystemExit),
    ],
)
def test_an_interruption_ends_with_no_lane_at_work(pool, strike_with, number, error):
    step = Counted({4: strike_with(number, error)})
    with pytest.raises(error):
        pool.run(CLIENTS, lambda lane: 0, step)
    begun = list(step.begun)
    assert not step.at_work
    # Lane 1 was at its second client; the others may have been quicker, but each has
    # begun no other client after the interruption.
    assert [i for i in begun if i % 3 == 1] == [1, 4]
    assert_whole(pool)
    assert step.begun == begun


def test_lanes_stop_at_the_next_client_all_at_work(pool, strike_with):
    """All three are inside their first client when it strikes: 57 are never begun."""
    meeting = threading.Barrier(3, timeout=30)
    strike = strike_with()
    blocked = threading.Event()

    def wait():
        meeting.wait()
        blocked.wait(30)

    def interrupt():
        meeting.wait()
        strike()
        blocked.set()

    step = Counted({0: wait, 1: interrupt, 2: wait})
    with pytest.raises(KeyboardInterrupt):
        pool.run(CLIENTS, lambda lane: 0, step)
    assert sorted(step.begun) == [0, 1, 2]
    assert not step.at_work
    assert_whole(pool)


def test_a_second_and_a_third_interruption_change_nothing(pool, strike_with):
    strike = strike_with()

    def several():
        for _ in range(3):
            strike()

    step = Counted({1: several})
    with pytest.raises(KeyboardInterrupt):
        pool.run(CLIENTS, lambda lane: 0, step)
    assert strike.times == 3
    assert not step.at_work
    assert [i for i in step.begun if i % 3 == 1] == [1]
    assert_whole(pool)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, StoppedError])
def test_what_is_no_error_stops_all_lanes_and_comes_through(pool, error):
    """Raised by a client itself, in the lane's thread."""
    others = threading.Event()

    def fail():
        others.set()
        raise error

    step = Counted({0: lambda: others.wait(30), 1: fail, 2: lambda: others.wait(30)})
    with pytest.raises(error):
        pool.run(MANY, lambda lane: 0, step)
    assert not step.at_work
    assert [i for i in step.begun if i % 3 == 1] == [1]
    assert len(step.begun) < MANY / 3
    assert_whole(pool)


def test_an_error_before_the_first_client_stops_the_others(pool):
    step = Counted({})
    others = threading.Event()

    def start(lane):
        if lane.number == 1:
            others.set()
            raise MemoryError
        others.wait(30)
        return 0

    with pytest.raises(MemoryError):
        pool.run(MANY, start, step)
    assert len(step.begun) < MANY / 3
    assert_whole(pool)


def test_one_lane_runs_here_and_is_interrupted_between_clients(strike_with):
    pool = LanePool([Lane(0, "CPU:0")])

    def interrupt():
        signal.raise_signal(signal.SIGINT)

    step = Counted({3: interrupt})
    with pytest.raises(KeyboardInterrupt):
        pool.run(CLIENTS, lambda lane: 0, step)
    assert step.begun == [0, 1, 2, 3]
    assert pool.run(2, lambda lane: 0, Counted({})) == [2]


def test_an_error_is_the_first_clients(pool):
    def fail():
        raise OSError("broken")

    meeting = threading.Barrier(2, timeout=30)

    def fail_together():
        meeting.wait()
        fail()

    step = Counted({0: fail_together, 1: fail_together})
    with pytest.raises(StepError) as caught:
        pool.run(CLIENTS, lambda lane: 0, step)
    assert caught.value.position == 0
    assert_whole(pool)


def test_another_threads_run_goes_on(pool, strike_with):
    """Two rounds share the threads of a pool; only one of them is interrupted."""
    found = []
    begun = threading.Event()

    def slowly():
        begun.set()
        strike()

    strike = strike_with()
    other = threading.Thread(
        target=lambda: found.append(
            begun.wait(30) and pool.run(30, lambda lane: 0, Counted({}))
        )
    )
    other.start()
    with pytest.raises(KeyboardInterrupt):
        pool.run(CLIENTS, lambda lane: 0, Counted({0: slowly}))
    other.join(30)
    assert found == [[10, 10, 10]]
