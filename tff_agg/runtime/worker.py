"""TFF's own C++ worker, tied to the life of this process.

Stock TFF starts a program, `worker_binary`, and leaves it running when Python is
killed. Here the kernel ends it together with this process, however that ends: the
worker asks for a kill signal at its parent's death before it becomes the worker. The
parent, to the kernel, is the thread that started it, so one thread does only that.
"""

import atexit
import importlib.util
import logging
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(__name__)

_READY_SECONDS = 60.0
_POLL_SECONDS = 0.05
_MAX_MESSAGE_BYTES = 2 * 1000 * 1000 * 1000

# Runs between fork and the worker, in a bare interpreter: a preexec_fn would run in a
# copy of this process, whose other threads may hold locks. 1 is PR_SET_PDEATHSIG; the
# parent may have died before it was set, hence the check.
_BECOME_WORKER = """
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
try:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
except (AttributeError, OSError):
    pass
if os.getppid() != parent:
    sys.exit(1)
os.execv(command[0], command)
"""


def create_worker_context(
    *, default_num_clients: int = 0, max_concurrent_computation_calls: int = -1
) -> Any:
    """Starts TFF's C++ worker and returns the TFF context that runs on it.

    The worker ends with this process, or when the context is closed or collected. It
    listens on all network interfaces without authentication, as TFF made it; a warning
    says so in the log.

    Args:
      default_num_clients: How many clients a computation has whose arguments do not
        tell.
      max_concurrent_computation_calls: How many calls of one computation run at the
        same time; as many as come where not positive.

    Returns:
      A `tff.framework.SyncContext` with a method `close`.

    Example:
      >>> with tff_agg.runtime.running_on('worker'):
      ...   output = process.next(state, datasets)
    """
    import tensorflow_federated as tff

    worker = Worker(lambda port: worker_command(port, max_concurrent_computation_calls))

    def executor(cardinalities: Any) -> Any:
        cardinalities.setdefault(tff.CLIENTS, default_num_clients)
        made = tff.framework.RemoteExecutor(worker.stub())
        made.set_cardinalities(cardinalities)
        return made

    context = tff.framework.SyncExecutionContext(
        executor_fn=tff.framework.ResourceManagingExecutorFactory(executor),
        compiler_fn=tff.backends.native.desugar_and_transform_to_native,
        transform_args=tff.tensorflow.transform_args,
        transform_result=tff.tensorflow.transform_result,
    )
    context.close = worker.close
    weakref.finalize(context, worker.close)
    return context


def worker_command(port: int, max_concurrent_computation_calls: int = -1) -> list[str]:
    """Returns the command line of TFF's worker."""
    # Found without an import, which takes seconds.
    found = importlib.util.find_spec("tensorflow_federated")
    if found is None or found.origin is None:
        raise RuntimeError("tensorflow-federated is not installed")
    path = pathlib.Path(found.origin).parent / "data" / "worker_binary"
    if not path.is_file():
        raise RuntimeError(
            f"TFF's worker is not at {path}; this installation of tensorflow-federated "
            "has none, use tff_agg.runtime.use('local')"
        )
    return [
        str(path),
        f"--port={port}",
        f"--max_concurrent_computation_calls={max_concurrent_computation_calls}",
    ]


class Worker:
    """A worker process, started at the first use.

    Args:
      command: Gives the command line for a port.
    """

    def __init__(self, command: Callable[[int], list[str]] = worker_command):
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stub: Any = None
        self._port = 0
        self._end = threading.Event()
        atexit.register(self.close)

    def start(self) -> int:
        """Starts the worker unless it runs; returns its process id."""
        with self._lock:
            return self._running().pid

    def stub(self) -> Any:
        """Returns TFF's connection to the running worker."""
        with self._lock:
            process = self._running()
            if self._stub is None:
                self._stub = _connect(process, self._port)
            return self._stub

    def close(self) -> None:
        """Ends the worker; does nothing where there is none."""
        with self._lock:
            self._end.set()
            process, self._process, self._stub = self._process, None, None
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
        atexit.unregister(self.close)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            import portpicker

            self._stub = None
            self._port = portpicker.pick_unused_port()
            self._end.set()
            self._end = threading.Event()
            self._process = _start_from_own_thread(self._command(self._port), self._end)
            _log.warning(
                "TFF's worker (process %d) listens on port %d of all network "
                "interfaces without authentication. Use the runtime 'local' on shared "
                "networks.",
                self._process.pid,
                self._port,
            )
        return self._process


def _connect(process: subprocess.Popen[bytes], port: int) -> Any:
    """Returns TFF's stub for a worker once it answers."""
    import grpc
    import tensorflow_federated as tff

    sizes = (
        "max_message_length",
        "max_receive_message_length",
        "max_send_message_length",
    )
    options = [(f"grpc.{name}", _MAX_MESSAGE_BYTES) for name in sizes]
    channel = grpc.insecure_channel(f"localhost:{port}", options)
    stub = tff.framework.RemoteExecutorGrpcStub(channel)
    deadline = time.monotonic() + _READY_SECONDS
    while not stub.is_ready:
        code = process.poll()
        if code is not None:
            raise RuntimeError(f"TFF's worker ended at once with exit code {code}")
        if time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(
                f"TFF's worker did not answer within {_READY_SECONDS:.0f} s"
            )
        time.sleep(_POLL_SECONDS)
    return stub


def _start_from_own_thread(
    command: list[str], end: threading.Event
) -> subprocess.Popen[bytes]:
    """Starts a process from a thread that lives until `end` or the end of Python."""
    started: list[Any] = []
    ready = threading.Event()

    def keep() -> None:
        try:
            wrapper = [sys.executable, "-I", "-S", "-c", _BECOME_WORKER]
            started.append(subprocess.Popen([*wrapper, str(os.getpid()), *command]))
        except OSError as error:
            started.append(error)
        finally:
            ready.set()
        end.wait()

    threading.Thread(target=keep, daemon=True, name="tff_agg-worker-keeper").start()
    ready.wait()
    if isinstance(started[0], OSError):
        raise started[0]
    return started[0]
