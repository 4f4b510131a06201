"""Starting TensorFlow without its chatter, and without losing anything else."""

import pathlib
import subprocess
import sys
import textwrap

import pytest

from tff_agg.runtime import quiet

ROOT = pathlib.Path(__file__).parents[2]


def stderr_of(program: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stderr


def test_start_up_shows_nothing_and_what_comes_after_everything():
    code, shown = stderr_of(
        """
        import os, warnings
        from tff_agg.runtime.quiet import quiet_tensorflow
        quiet_tensorflow()
        import tensorflow as tf, tensorflow_federated as tff
        assert float(tf.constant(1.0) + 1.0) == 2.0
        os.write(2, b"started\\n")
        warnings.warn("watch out")
        raise ValueError("too late")
        """
    )
    assert code == 1
    before, _, after = shown.partition("started\n")
    assert before == ""
    assert "UserWarning: watch out" in after
    assert "ValueError: too late" in after


def test_unknown_lines_during_the_import_are_passed_on():
    code, shown = stderr_of(
        """
        import os
        from tff_agg.runtime.quiet import without_chatter
        with without_chatter():
            os.write(2, b"E x.cc:1] Unable to register cuDNN factory: twice\\n")
            os.write(2, b"E x.cc:2] out of memory\\n")
            raise SystemExit(7)
        """
    )
    assert (code, shown) == (7, "E x.cc:2] out of memory\n")


@pytest.mark.parametrize(
    "line",
    [
        "E cuda_fft.cc:609] Unable to register cuFFT factory: already registered",
        "I cudart_stub.cc:28] Could not find cuda drivers on your machine, GPU will",
        "W py_utils.cc:38] TF-TRT Warning: Could not find TensorRT",
        "I cpu_feature_guard.cc:182] This TensorFlow binary is optimized to use "
        "available CPU instructions in performance-critical operations.",
    ],
)
def test_known_lines_are_chatter(line):
    assert quiet._chatter.search(line)


def test_real_errors_are_not_chatter():
    assert not quiet._chatter.search("E gpu.cc:1] CUDA_ERROR_OUT_OF_MEMORY")


def test_a_benchmark_does_not_list_the_devices_that_jax_has_not_found():
    code, shown = stderr_of(
        """
        import importlib.machinery
        from benchmarks import programs

        def main():
            import jax
            assert jax.devices()

        programs.start(importlib.machinery.ModuleSpec("a", None), "", main)
        """
    )
    assert (code, shown) == (0, "")
