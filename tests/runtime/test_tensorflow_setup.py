"""One call sets TensorFlow up; each test has a process of its own, like TensorFlow."""

import os
import pathlib
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).parents[2]
REPORT = """
def report():
    import sys
    import tensorflow as tf
    from tff_agg.runtime.compile import private_api
    threading = tf.config.threading
    print(private_api.onednn_is_on(),
          threading.get_intra_op_parallelism_threads(),
          threading.get_inter_op_parallelism_threads(),
          1000 * sys.getswitchinterval())
"""


def run(program: str, **environment: str) -> tuple[list[str], str]:
    inherited = {k: v for k, v in os.environ.items() if k != "TF_ENABLE_ONEDNN_OPTS"}
    done = subprocess.run(
        [sys.executable, "-c", REPORT + textwrap.dedent(program)],
        cwd=ROOT,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_a_script_that_calls_it_first_gets_all_of_it_in_silence():
    out, shown = run(
        """
        import tff_agg
        print(tff_agg.runtime.set_up_tensorflow(inter_op=3))
        tff_agg.runtime.use("local")
        report()
        """
    )
    assert out == ["()", "True 1 3 0.5"]
    assert shown == ""


def test_binaries_make_the_same_call():
    out, _ = run(
        """
        from tff_agg.experiment import commands
        commands.run("program", "", commands.Command(report), [])
        """
    )
    assert out == [f"True 1 {len(os.sched_getaffinity(0))} 0.5"]


def test_what_comes_too_late_is_returned_and_what_the_environment_wants_is_kept():
    """Two programs: forks of one process that has loaded TensorFlow and run nothing."""
    out, shown = run(
        """
        import os
        # Loaded with oneDNN off, as TensorFlow does on processors without AVX-512.
        import tensorflow as tf
        from tff_agg import runtime
        if os.fork():
            assert os.wait()[1] == 0
            report()
            del os.environ["TF_ENABLE_ONEDNN_OPTS"]
            tf.constant(1) + 1
            for sentence in runtime.set_up_tensorflow(intra_op=7):
                print(sentence.partition(":")[0])
        else:
            # The environment may turn oneDNN off: that is not too late.
            print(runtime.set_up_tensorflow(inter_op=2))
            report()
        """,
        TF_ENABLE_ONEDNN_OPTS="0",
    )
    assert out == [
        "()",
        "False 1 2 0.5",
        "False 0 0 5.0",
        "oneDNN stays off",
        "TensorFlow keeps the sizes of its thread pools",
    ]
    assert shown.count("call it first") == 2


def test_memory_is_kept_where_the_c_library_can():
    out, _ = run("from tff_agg import runtime; print(runtime.keep_memory())")
    assert out == [str(sys.platform == "linux")]
