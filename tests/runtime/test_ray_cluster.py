"""Several machines, here nodes of Ray on one: real kills of a node and a driver."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.runtime.process_ends import assert_all_end, children

ROOT = pathlib.Path(__file__).parents[2]

# Prints the lanes' processes, then waits inside a round, in both lanes, for a sign.
# Prints whether the round came out as on local lanes; then begins one that never ends.
DRIVER = """
import os, pathlib, sys, time
address, signs = sys.argv[1], pathlib.Path(sys.argv[2])
from tff_agg import runtime
runtime.set_up_tensorflow()
import numpy as np, tensorflow as tf, tensorflow_federated as tff
from tests.runtime import runtime_examples as examples

def read(key):
    # Each lane is known by its first client; it stays there until the node is killed.
    position, wait_for = key
    if wait_for:
        (signs / f"in_{os.getpid()}").touch()
        while not (signs / wait_for).exists():
            time.sleep(0.05)
    return examples.datasets(4)[position]

def clients(wait_for):
    return [runtime.LaneData(read, (i, wait_for)) for i in range(4)]

process = examples.weighted_fed_avg()
with runtime.running_on("local", lanes=2):
    state = process.initialize()
    expected = examples.weights(process.next(state, examples.datasets(4)).state)
runtime.use("ray", address=address, lanes=2)
import ray
(signs / "driver_node").write_text(ray.get_runtime_context().get_node_id())
found = process.next(state, clients("node_killed")).state
same = [np.array_equal(*pair) for pair in zip(expected, examples.weights(found))]
for sign in signs.glob("in_*"):
    sign.unlink()
print("same bits" if all(same) else "other bits", flush=True)
process.next(state, clients("never"))
"""


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.1)
    return found


@pytest.mark.slow
def test_a_killed_node_is_made_up_for_and_a_killed_driver_takes_its_lanes_along(
    tmp_path,
):
    from ray import cluster_utils

    # Other tests of this process may have children of their own.
    others = children()
    # A dead node is noticed after seconds, not after half a minute.
    notice = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    head = {
        "num_cpus": 0,
        "object_store_memory": 100 << 20,
        "include_dashboard": False,
        "_system_config": notice,
    }
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    nodes = [
        cluster.add_node(num_cpus=1, object_store_memory=100 << 20) for _ in range(3)
    ]
    family = sorted(children() - others)

    def lanes_at_work():
        return {int(p.name[3:]) for p in tmp_path.glob("in_*")}

    def node_of(pid):
        raylets = {p.pid for p in psutil.Process(pid).parents()}
        (found,) = [
            node
            for node in nodes
            if node.all_processes["raylet"][0].process.pid in raylets
        ]
        return found

    driver = None
    try:
        with open(tmp_path / "stderr", "w+") as stderr:
            driver = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    DRIVER,
                    cluster.address,
                    tmp_path,
                ],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        first = wait_for(lambda: len(found := lanes_at_work()) == 2 and found)
        # On one machine the driver may have joined any of the nodes: not that one.
        own = (tmp_path / "driver_node").read_text()
        victim = next(pid for pid in sorted(first) if node_of(pid).node_id != own)
        cluster.remove_node(node_of(victim), allow_graceful=False)
        (tmp_path / "node_killed").touch()
        # Ray tells of the node's death in between.
        told = next((line for line in driver.stdout if line.endswith("bits\n")), "")
        assert told == "same bits\n", (tmp_path / "stderr").read_text()[-2000:]
        assert_all_end([victim])
        # In the next round the lost lane has another process, on another node.
        second = wait_for(lambda: len(found := lanes_at_work()) == 2 and found)
        assert len(second - first) == 1 and victim not in second
        os.kill(driver.pid, signal.SIGKILL)
        assert driver.wait() == -signal.SIGKILL
        assert_all_end(sorted(second))
    finally:
        if driver is not None and driver.poll() is None:
            driver.kill()
        cluster.shutdown()
    assert_all_end(family)
