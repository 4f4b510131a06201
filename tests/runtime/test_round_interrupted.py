"""A round that was interrupted leaves nothing behind for the next one."""

import signal
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime import runtime_examples as examples
from tff_agg import runtime

CLIENTS = 60
LANES = 3


@pytest.fixture(autouse=True)
def ctrl_c_raises():
    """Also where the tests were started with SIGINT ignored, as a background job is."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def fed_avg():
    return examples.weighted_fed_avg()


@pytest.fixture(scope="module")
def seen():
    """Clients that have come to their end, by round, and those at work."""
    return {"done": [], "at work": set()}


@pytest.fixture(scope="module")
def context(seen):
    return runtime.create(
        "local", lanes=LANES, on_client=lambda run: seen["done"].append(run.position)
    )


@pytest.fixture
def running(context, seen):
    seen["done"].clear()
    with tff.framework.get_context_stack().install(context):
        yield


@pytest.fixture(scope="module")
def undisturbed(fed_avg, context):
    with tff.framework.get_context_stack().install(context):
        return rounds(fed_avg, [1, 2])


def interrupting(data, seen, position, act):
    """The same data; on the way the client does something, once it has begun."""
    spec = data.element_spec

    def elements():
        seen["at work"].add(position)
        act()
        yield from data.as_numpy_iterator()
        seen["at work"].discard(position)

    return tf.data.Dataset.from_generator(elements, output_signature=spec)


def cohort(seed):
    return examples.datasets(CLIENTS, seed=seed)


def rounds(process, seeds):
    state = process.initialize()
    found = []
    for seed in seeds:
        state, metrics = process.next(state, cohort(seed))
        found.append((examples.weights(state), metrics))
    return found


def assert_same_bits(one, other):
    for (a, m), (b, n) in zip(one, other, strict=True):
        for left, right in zip(a, b, strict=True):
            np.testing.assert_array_equal(left, right)
        tf.nest.map_structure(np.testing.assert_array_equal, m, n)


class Struck(BaseException):
    """Raised by this test's signal handler."""


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Struck)]
)
def test_the_round_after_an_interrupted_one_is_exact(
    fed_avg, undisturbed, running, seen, number, error
):
    struck, returned = threading.Event(), threading.Event()

    def handler(number, frame):
        struck.set()
        raise error

    def interrupt():
        signal.pthread_kill(threading.main_thread().ident, number)
        assert struck.wait(60)
        # Long enough for a round that lets go of its lanes to be gone.
        returned.wait(1)

    state = fed_avg.initialize()
    data = cohort(seed=9)
    data[4] = interrupting(data[4], seen, 4, interrupt)
    before = signal.signal(number, handler)
    seen["done"].clear()
    try:
        with pytest.raises(error):
            fed_avg.next(state, data)
    finally:
        signal.signal(number, before)
        returned.set()
    assert not seen["at work"]
    # Lane 1 ended the client it was at, and took no other.
    assert [i for i in seen["done"] if i % LANES == 1] == [1, 4]
    done = len(seen["done"])
    after = rounds(fed_avg, [1, 2])
    assert len(seen["done"]) == done + 2 * CLIENTS
    assert_same_bits(after, undisturbed)


def test_the_round_after_a_failed_one_is_exact(fed_avg, undisturbed, running, seen):
    def fail():
        seen["at work"].discard(7)
        raise OSError("gone")

    data = cohort(seed=9)
    data[7] = interrupting(data[7], seen, 7, fail)
    with pytest.raises(runtime.ClientError, match="position 7"):
        fed_avg.next(fed_avg.initialize(), data)
    assert_same_bits(rounds(fed_avg, [1, 2]), undisturbed)


def test_a_lane_that_was_let_go_touches_nothing_of_the_next_round(
    fed_avg, undisturbed, running, seen, context, monkeypatch
):
    """Even if a call did not wait: variables belong to one round.

    `break_off` is left out here, as if an interruption had struck inside of it.
    """
    from tff_agg.runtime.lanes import pool

    monkeypatch.setattr(pool._Fold, "break_off", lambda self: None)
    returned = threading.Event()

    def interrupt():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert returned.wait(60)

    data = cohort(seed=9)
    data[4] = interrupting(data[4], seen, 4, interrupt)
    with pytest.raises(KeyboardInterrupt):
        fed_avg.next(fed_avg.initialize(), data)
    assert 4 in seen["at work"]
    returned.set()  # Its lane goes on with 19 clients while the next rounds run.
    assert_same_bits(rounds(fed_avg, [1, 2]), undisturbed)
