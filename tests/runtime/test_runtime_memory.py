"""Memory does not grow with rounds or with changing cohort sizes."""

import pytest

from benchmarks import runtime_memory


@pytest.mark.slow
def test_resident_memory_settles():
    found = runtime_memory.measure(
        rounds=60, largest_cohort=10, width=200, runtime_name="local"
    )
    assert len({row["clients"] for row in found}) > 5
    reference = found[19]["megabytes"]
    assert max(row["megabytes"] for row in found[20:]) < 1.05 * reference
