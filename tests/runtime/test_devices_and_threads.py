"""Devices and thread pools, which TensorFlow fixes for a whole process."""

import subprocess
import sys
import textwrap

import pytest

from tests import forked


def run(program: str) -> str:
    """Runs a program in a process of its own, in which TensorFlow has run nothing."""
    done = forked.run(textwrap.dedent(program), timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_lanes_run_on_the_devices_they_are_given():
    out = run(
        """
        from tff_agg.runtime.quiet import quiet_tensorflow
        quiet_tensorflow()
        import tensorflow as tf
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration() for _ in range(3)]
        tf.config.set_logical_device_configuration(cpu, parts)
        from tests.runtime import runtime_examples as examples
        from tff_agg import runtime
        from tff_agg.runtime.lanes import pool

        process = examples.weighted_fed_avg()
        data = examples.datasets(7)
        results, where = {}, {}
        for devices in (["CPU:0"], ["CPU:1", "CPU:2"]):
            sums = []
            run = pool.LanePool.run

            def spy(self, *args):
                sums.extend(found := run(self, *args))
                return found

            pool.LanePool.run = spy
            runs = []
            with runtime.running_on(
                "local", lanes=2, devices=devices, on_client=runs.append
            ) as context:
                names = [lane.device for lane in context.lanes]
                state = process.initialize()
                sums.clear()
                state, metrics = process.next(state, data)
            pool.LanePool.run = run
            where[len(devices)] = [
                sorted({t.device[-5:] for t in lane if t.dtype.is_floating})
                for lane in sums
            ]
            results[len(devices)] = examples.weights(state)
            assert metrics["client_work"]["train"]["num_examples"] == 63
            assert len(runs) == 14 - 7
        print(where[1], where[2])
        for a, b in zip(results[1], results[2]):
            assert (a == b).all()
        """
    )
    assert out.strip() == "[['CPU:0'], ['CPU:0']] [['CPU:1'], ['CPU:2']]"


def test_thread_pools_are_set_before_tensorflow_runs_and_not_after():
    out = run(
        """
        import tensorflow as tf
        from tff_agg import runtime
        print(runtime.configure_threads(intra_op=1, inter_op=3))
        print(tf.config.threading.get_intra_op_parallelism_threads(),
              tf.config.threading.get_inter_op_parallelism_threads())
        tf.constant(1) + 1
        print(runtime.configure_threads(intra_op=1, inter_op=3))
        print(runtime.configure_threads(intra_op=2))
        try:
            runtime.configure_threads(intra_op=-2)
        except ValueError as error:
            print(error)
        """
    )
    assert out.splitlines() == [
        "True",
        "1 3",
        "True",
        "False",
        "intra_op must be a whole number of at least 0, got -2",
    ]


def test_the_package_is_light():
    program = """
        import sys
        import tff_agg.runtime, tff_agg.runtime.quiet
        print(sorted(m for m in sys.modules if m.split(".")[0] in
                     ("tensorflow", "tensorflow_federated", "jax", "numpy")))
        """
    out = subprocess.check_output(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=forked.ROOT, text=True
    )
    assert out.strip() == "[]"
