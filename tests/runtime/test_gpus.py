"""Memory of GPUs and the server's device: on logical CPU devices, on GPUs made up."""

import textwrap
import types

import pytest
import tensorflow as tf

from tests import forked
from tff_agg.experiment.config import TrainConfig
from tff_agg.runtime import gpus


@pytest.fixture
def two_gpus(monkeypatch):
    """Two GPUs that TensorFlow is told of, and what it is told to do with them."""
    told = types.SimpleNamespace(growth={}, parts={})
    config = types.SimpleNamespace(
        list_physical_devices=lambda kind: ["gpu 0", "gpu 1"] if kind == "GPU" else [],
        get_logical_device_configuration=told.parts.get,
        set_logical_device_configuration=told.parts.__setitem__,
        LogicalDeviceConfiguration=tf.config.LogicalDeviceConfiguration,
        experimental=types.SimpleNamespace(set_memory_growth=told.growth.__setitem__),
    )
    monkeypatch.setattr(tf, "config", config)
    return told


def test_memory_of_gpus_grows_unless_it_is_shared_out(two_gpus):
    assert gpus.grow_as_needed()
    assert two_gpus.growth == {"gpu 0": True, "gpu 1": True}
    gpus.share(1, None)
    assert two_gpus.parts == {}
    gpus.share(0.5, 3000)
    half = tf.config.LogicalDeviceConfiguration(memory_limit=3000)
    assert two_gpus.parts == {"gpu 0": [half, half], "gpu 1": [half, half]}
    assert two_gpus.growth == {"gpu 0": False, "gpu 1": False}
    gpus.share(0.5, 3000)
    # Growth and limits exclude each other.
    assert gpus.grow_as_needed()
    assert two_gpus.growth == {"gpu 0": False, "gpu 1": False}


def test_it_is_said_that_tensorflow_was_running_already(two_gpus, monkeypatch):
    def refuse(*_):
        raise RuntimeError("Physical devices cannot be modified after")

    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", refuse)
    assert not gpus.grow_as_needed()
    with pytest.raises(RuntimeError, match="gpu_memory_mb=100: TensorFlow has run"):
        gpus.share(1, 100)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((0.5, None), "gpus_per_lane=0.5 lets 2 lanes share a GPU: gpu_memory_mb must"),
        ((0.4, 100), "gpus_per_lane=0.4 must be 1, 1/2, 1/3"),
        ((2, None), "gpus_per_lane=2 must be 1, 1/2, 1/3"),
        ((0, None), r"gpus_per_lane must be a positive finite number, got 0"),
        ((1, -3), r"gpu_memory_mb must be a positive finite number, got -3"),
        ((1, 100), "TensorFlow sees no GPU"),
    ],
)
def test_parts_that_cannot_be_are_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        gpus.share(*arguments)


def test_flags_reach_the_runtime_that_they_are_for():
    config = TrainConfig(noise_multiplier=1.0, gpus_per_lane=0.5, gpu_memory_mb=900.0)
    assert config.runtime_options() == {"gpus_per_lane": 0.5, "gpu_memory_mb": 900.0}
    assert TrainConfig(noise_multiplier=1.0).runtime_options() == {}


@pytest.mark.slow
def test_the_server_runs_on_the_device_it_is_given_to_the_same_bits():
    program = """
        from tff_agg.runtime.quiet import quiet_tensorflow
        quiet_tensorflow()
        import tensorflow as tf
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration() for _ in range(3)]
        tf.config.set_logical_device_configuration(cpu, parts)
        from tests.experiment import tiny_runs
        from tff_agg import noise, runtime
        from tff_agg.server import state as states
        import numpy as np, tree

        process = tiny_runs.build(rounds=2, mechanism=noise.tree())
        reader = tiny_runs.cohort_reader()
        found = []
        for server, lanes in ((None, ["CPU:0"]), ("CPU:2", ["CPU:0", "CPU:1"])):
            options = {"lanes": 2, "devices": lanes, "server_device": server}
            with runtime.running_on("local", **options) as context:
                state = states.with_noise_seed(process.initialize(), (1, 2, 3, 4))
                state, _ = process.next(state, reader(0).data)
            print(context.server_device[-5:], sorted({
                t.device[-5:] for t in tree.flatten(state)
                if tf.is_tensor(t) and t.dtype.is_floating}))
            found.append([np.asarray(t) for t in tree.flatten(state)])
        for a, b in zip(*found, strict=True):
            assert a.tobytes() == b.tobytes()
        """
    done = forked.run(textwrap.dedent(program), timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["CPU:0 ['CPU:0']", "CPU:2 ['CPU:2']"]


CHECK = """
import runpy, sys
runpy.run_module("benchmarks.check_gpu", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_without_a_gpu_the_check_says_that_it_has_checked_nothing():
    done = forked.run(CHECK, timeout=300)
    assert done.returncode == 2, done.stderr
    assert done.stdout.splitlines()[-1] == "no GPU found; nothing was checked"


@pytest.mark.slow
def test_the_check_passes_where_a_logical_cpu_stands_for_the_gpu():
    small = ("--rehearse", "--task=lstm", "--users=4", "--sentences=4", "--rounds=2")
    done = forked.run(CHECK, *small, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "server on /device:CPU:1" in done.stdout
    assert done.stdout.splitlines()[-1] == "all that was checked is right"
