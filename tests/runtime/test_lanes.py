"""Who works on whom."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tff_agg.runtime.lanes.pool import Lane, LanePool, StepError, assign

COSTS = st.lists(st.integers(0, 1000), max_size=40)


@given(COSTS, st.integers(1, 8), st.booleans())
def test_every_client_has_one_lane(costs, lanes, known):
    shares = assign(len(costs), lanes, costs if known else None)
    assert len(shares) == lanes
    assert sorted(i for share in shares for i in share) == list(range(len(costs)))
    assert all(share == sorted(share) for share in shares)


@given(COSTS, st.integers(1, 8))
def test_known_costs_even_out(costs, lanes):
    loads = [sum(costs[i] for i in share) for share in assign(len(costs), lanes, costs)]
    # No lane is more than one client ahead of another.
    assert max(loads) - min(loads) <= max(costs, default=0)
    assert max(loads) <= sum(costs) / lanes + max(costs, default=0)


def test_one_long_client_does_not_share_its_lane():
    assert assign(5, 2, [1, 1, 100, 1, 1]) == [[2], [0, 1, 3, 4]]


@pytest.mark.parametrize("clients", [0, 1, 3, 11])
def test_lanes_fold_their_clients_in_order(clients):
    pool = LanePool([Lane(i, "CPU:0") for i in range(3)])
    found = pool.run(clients, lambda lane: [], lambda lane, seen, i: [*seen, i])
    assert found == [s for s in assign(clients, 3) if s] or (found == [[]])
    pool.close()
    assert pool.run(2, lambda lane: 0, lambda lane, n, i: n + 1) == [1, 1]


def test_lanes_run_at_the_same_time():
    meeting = threading.Barrier(3, timeout=30)
    pool = LanePool([Lane(i, "CPU:0") for i in range(3)])
    pool.run(3, lambda lane: None, lambda lane, value, i: meeting.wait())


def test_a_failure_stops_the_others_and_keeps_its_cause():
    pool = LanePool([Lane(i, "CPU:0") for i in range(2)])
    done = []

    def step(lane, value, position):
        if position == 4:
            raise OSError("broken")
        done.append(position)

    with pytest.raises(StepError) as caught:
        pool.run(1000, lambda lane: None, step)
    assert caught.value.position == 4
    assert isinstance(caught.value.__cause__, OSError)
    assert {0, 2} <= set(done)
    assert not {6, 8} & set(done)
