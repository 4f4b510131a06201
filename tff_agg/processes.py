"""Child processes that never outlive the process that started them, and its cores.

However that one ends: by returning, by an exception, by `os._exit`, by `SIGKILL`. The
child asks the kernel for a kill signal at its parent's death (`PR_SET_PDEATHSIG`) and
then looks whether the parent is still there: it may have died before. Both halves of
that are here, for programs (`start`, `run`) and for worker processes of a pool
(`end_with_parent`).

The parent, to the kernel, is the thread that made the child. `start` therefore uses a
thread that lives as long as the child does. A pool has to be used from one thread.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1
_WATCH_SECONDS = 0.5

# Runs between fork and the program, in a bare interpreter: a preexec_fn would run in a
# copy of this process, whose other threads may hold locks.
_BECOME = f"""
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
try:
    ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGKILL, 0, 0, 0)
except (AttributeError, OSError):
    pass
if os.getppid() != parent:
    sys.exit(1)
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(f"{{command[0]}}: {{error.strerror}}")
"""


def start(command: Sequence[str], **options: Any) -> subprocess.Popen:
    """Starts a program that ends with this process, and does not wait for it.

    Args:
      command: The program and its arguments.
      **options: As for `subprocess.Popen`; not `preexec_fn`.

    Returns:
      The process. Its id is that of the program itself.

    Example:
      >>> process = start([sys.executable, '-m', 'http.server'])
      >>> process.terminate()
    """
    started: list[subprocess.Popen | BaseException] = []
    ready = threading.Event()

    def keep() -> None:
        try:
            wrapper = [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid())]
            process = subprocess.Popen([*wrapper, *command], **options)
            started.append(process)
        except BaseException as error:
            started.append(error)
            return
        finally:
            ready.set()
        # Without reaping: whoever has the Popen reads the exit code, or has already.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    threading.Thread(target=keep, daemon=True, name="tff_agg-keeper").start()
    ready.wait()
    if isinstance(started[0], BaseException):
        raise started[0]
    return started[0]


def run(
    command: Sequence[str], *, check: bool = False, **options: Any
) -> subprocess.CompletedProcess:
    """Runs a program to its end; it ends with this process if that is earlier.

    Args:
      command: The program and its arguments.
      check: Whether an exit code other than 0 is an error.
      **options: As for `start`.

    Raises:
      subprocess.CalledProcessError: With `check`, if the program failed.

    Example:
      >>> run(['true']).returncode
      0
    """
    with start(command, **options) as process:
        try:
            stdout, stderr = process.communicate()
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
    if check:
        done.check_returncode()
    return done


def end_with_parent(parent: int) -> None:
    """Makes this process end when its parent does; called first thing in a child.

    Args:
      parent: The parent's process id, as the parent knows it.

    Example:
      concurrent.futures.ProcessPoolExecutor(
          2, multiprocessing.get_context('spawn'),
          initializer=end_with_parent, initargs=(os.getpid(),))
    """
    if not _ask_the_kernel():
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def usable_cores() -> int:
    """Counts the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _ask_the_kernel() -> bool:
    """Asks for a kill signal at the parent's death; False where there is no such."""
    try:
        kernel = ctypes.CDLL(None)
        return kernel.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0
    except (AttributeError, OSError):
        return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)
