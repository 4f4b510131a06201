"""No process outlives the one that started it, however that one is killed."""

import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap

import pytest

from tests.runtime.process_ends import assert_all_end
from tff_agg import processes

ROOT = pathlib.Path(__file__).parents[2]


def killed(program: str, *arguments: str) -> list[int]:
    """Runs a program that kills itself; returns the process ids that it printed."""
    # Not a pipe, which would stay open as long as a child does.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        code = subprocess.call(
            [sys.executable, "-c", textwrap.dedent(program), *arguments],
            cwd=ROOT,
            stdout=out,
            stderr=err,
            timeout=300,
        )
        out.seek(0)
        err.seek(0)
        assert code == -signal.SIGKILL, err.read()
        return [int(pid) for pid in out.read().split()]


POOL = """
import os, signal, sys, psutil
from tff_agg.runtime.spread import spread

def die():
    family = psutil.Process().children(recursive=True)
    print(*[child.pid for child in family], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def items():
    yield from range(int(sys.argv[1]))
    die()

for done in spread(abs, items(), processes=2):
    if len(sys.argv) > 2:
        die()
"""


def test_workers_end_that_had_not_even_begun():
    """Killed as soon as they are made: they find that they have no parent any more."""
    family = killed(POOL, "1")
    assert len(family) >= 2
    assert_all_end(family)


def test_workers_end_in_the_middle_of_their_work():
    assert_all_end(killed(POOL, "1000", "at the first result"))


CHILD = """
import os, sys, time
from tff_agg import processes
if sys.argv[2] == "watching":
    processes._ask_the_kernel = lambda: False
processes.end_with_parent(int(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(600)
"""

PARENT = f"""
import os, signal, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", {CHILD!r}, str(os.getpid()), sys.argv[1]],
    stdout=subprocess.PIPE,
)
print(int(child.stdout.readline()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["kernel", "watching"])
def test_a_child_ends_by_the_kernel_or_by_watching(how):
    assert_all_end(killed(PARENT, how))


def test_a_child_that_has_lost_its_parent_already_ends_at_once():
    done = subprocess.run(
        [sys.executable, "-c", CHILD, "1", "kernel"], cwd=ROOT, timeout=60
    )
    assert done.returncode == 1


STARTED = """
import os, signal, sys
from tff_agg import processes
program = "import os; os.read(0, 1)"
child = processes.start([sys.executable, "-c", program])
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_started_program_ends():
    assert_all_end(killed(STARTED))


def test_a_started_program_is_an_ordinary_process():
    made = processes.run(
        [sys.executable, "-c", "import os; print(os.getpid(), os.environ['HERE'])"],
        stdout=subprocess.PIPE,
        text=True,
        env={"HERE": "yes"},
    )
    assert made.returncode == 0 and made.stdout.endswith(" yes\n")
    with pytest.raises(subprocess.CalledProcessError):
        processes.run([sys.executable, "-c", "raise SystemExit(3)"], check=True)
    with pytest.raises(FileNotFoundError):
        processes.start(["true"], cwd="/nowhere")
    missing = processes.run(["no-such-program"], stderr=subprocess.PIPE, text=True)
    assert missing.returncode == 1 and "No such file" in missing.stderr


def test_the_thread_that_starts_a_program_may_end_before_it():
    import threading

    made: list[subprocess.Popen] = []
    program = "print('there', flush=True); import sys; sys.stdin.readline()"
    thread = threading.Thread(
        target=lambda: made.append(
            processes.start(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    )
    thread.start()
    thread.join()
    out, _ = made[0].communicate("end\n", timeout=60)
    assert out == "there\n" and made[0].returncode == 0
