"""What is kept does not grow with rounds or with changing cohort sizes."""

import gc

import pytest
from tensorflow.python.eager import context

from benchmarks import runtime_memory


def things_kept() -> int:
    """Counts Python's objects and the functions that TensorFlow holds."""
    gc.collect()
    return len(gc.get_objects()) + len(context.context().list_function_names())


@pytest.mark.slow
def test_nothing_is_kept_of_a_round():
    # What other tests have left behind is neither counted nor gone through each round.
    gc.collect()
    gc.freeze()
    found = runtime_memory.measure(
        rounds=18,
        largest_cohort=8,
        width=20,
        runtime_name="local",
        observe=things_kept,
    )
    assert len({row["clients"] for row in found}) > 5
    # Less than one thing per round: a leak would keep several. Python's own caches may
    # take in an object now and then.
    kept = [row["memory"] for row in found[5:]]
    assert max(kept) - kept[0] < len(kept) - 1
