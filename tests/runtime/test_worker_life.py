"""The worker ends when Python does, however it does."""

import signal
import subprocess
import textwrap

import pytest

from tests import forked
from tests.runtime.process_ends import assert_all_end, is_alive

START = """
import logging, os, signal
logging.basicConfig()
from tff_agg.runtime.worker import Worker
worker = Worker()
print(worker.start(), flush=True)
"""


def run(program: str) -> tuple[list[int], subprocess.CompletedProcess]:
    done = forked.run(program, timeout=300)
    assert done.stdout, done.stderr
    return [int(pid) for pid in done.stdout.split()], done


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("", 0),
        ("raise ValueError('over')", 1),
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
    ids=["normal", "exception", "os._exit", "SIGKILL"],
)
def test_no_worker_outlives_python(ending, code):
    (worker,), done = run(START + ending)
    assert done.returncode == code, done.stderr
    assert_all_end([worker])
    assert "all network interfaces without authentication" in done.stderr


@pytest.mark.slow
def test_closing_ends_it_and_the_thread_that_starts_it_may_end_first():
    (first, second), done = run(
        textwrap.dedent(
            """
            import os, threading, time
            from tff_agg.runtime.quiet import quiet_tensorflow
            quiet_tensorflow()
            import numpy as np, psutil, tensorflow_federated as tff
            from tff_agg import runtime

            @tff.tensorflow.computation(np.int32)
            def twice(x):
                return 2 * x

            results = []
            context = runtime.create("worker")
            def call():
                with tff.framework.get_context_stack().install(context):
                    results.append(twice(4))
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
            while os.path.exists(f"/proc/self/task/{thread.native_id}"):
                time.sleep(0.01)  # until the system, too, has seen it end
            with tff.framework.get_context_stack().install(context):
                results.append(twice(5))
            assert results == [8, 10], results
            (worker,) = psutil.Process().children()
            print(worker.pid, flush=True)
            context.close()
            assert not psutil.pid_exists(worker.pid)
            runtime.use("worker")
            assert twice(6) == 12
            print(*[child.pid for child in psutil.Process().children()], flush=True)
            """
        )
    )
    assert done.returncode == 0, done.stderr
    assert first != second
    assert not is_alive(first)
    assert not is_alive(second)
