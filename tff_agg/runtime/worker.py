"""TFF's own C++ worker, tied to the life of this process.

Stock TFF starts a program, `worker_binary`, and leaves it running when Python is
killed. Here the kernel ends it together with this process, however that ends: see
`tff_agg.processes`.
"""

import atexit
import importlib.util
import logging
import os
import pathlib
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from tff_agg import processes
from tff_agg.runtime import disclosure, errors

if TYPE_CHECKING:
    import tensorflow_federated as tff
    from google.protobuf.message import Message

_log = logging.getLogger(__name__)

_READY_SECONDS = 60.0
_POLL_SECONDS = 0.05
_MAX_MESSAGE_BYTES = 2 * 1000 * 1000 * 1000
# The operations of TensorFlow that call back into the process that made the graph.
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def create_worker_context(
    *,
    default_num_clients: int = 0,
    max_concurrent_computation_calls: int = -1,
    show_data_in_errors: bool = False,
) -> "tff.framework.SyncContext":
    """Starts TFF's C++ worker and returns the TFF context that runs on it.

    The worker ends with this process, or when the context is closed or collected. It
    listens on all network interfaces without authentication, as TFF made it; a warning
    says so in the log.

    Args:
      default_num_clients: How many clients a computation has whose arguments do not
        show it.
      max_concurrent_computation_calls: How many calls of one computation run at the
        same time; as many as come where not positive.
      show_data_in_errors: Whether errors and the worker's log quote what TensorFlow
        says, which may be values of a client's data.

    Returns:
      A `tff.framework.SyncContext` with a method `close`.

    Example:
      with tff_agg.runtime.running_on('worker'):
        output = process.next(state, datasets)
    """
    import grpc
    import tensorflow_federated as tff

    worker = Worker(
        lambda port: worker_command(port, max_concurrent_computation_calls),
        log_errors=show_data_in_errors,
    )

    def executor(cardinalities: dict) -> tff.framework.RemoteExecutor:
        cardinalities.setdefault(tff.CLIENTS, default_num_clients)
        remote = tff.framework.RemoteExecutor(worker.stub())
        remote.set_cardinalities(cardinalities)
        return remote

    class Context(tff.framework.SyncExecutionContext):
        """TFF's own, with errors that keep clients' data to themselves."""

        def invoke(self, comp: tff.Computation, arg: object) -> object:
            try:
                return super().invoke(comp, arg)
            except grpc.RpcError as error:
                if show_data_in_errors:
                    raise
                code = error.code()
            raise errors.server_error(
                "computation",
                f"TFF's worker answered {code.name} ({disclosure.HINT})",
            )

    def compiled(comp: tff.Computation) -> object:
        check_runs_elsewhere(type(comp).get_proto(comp))
        return tff.backends.native.desugar_and_transform_to_native(comp)

    context = Context(
        executor_fn=tff.framework.ResourceManagingExecutorFactory(executor),
        compiler_fn=compiled,
        transform_args=tff.tensorflow.transform_args,
        transform_result=tff.tensorflow.transform_result,
    )
    context.close = worker.close
    weakref.finalize(context, worker.close)
    return context


def check_runs_elsewhere(part: "Message") -> None:
    """Refuses a computation whose TensorFlow calls Python: another program has none.

    Args:
      part: The computation as a protocol buffer, or a part of it.

    Raises:
      RuntimeUnsupportedError: It does, as the noise of a seed of four words.
    """
    import tensorflow as tf

    if part.DESCRIPTOR.name == "TensorFlow":
        graph = tf.compat.v1.GraphDef()
        part.graph_def.Unpack(graph)
        functions = (f.node_def for f in graph.library.function)
        if any(
            node.op in _PYTHON for nodes in (graph.node, *functions) for node in nodes
        ):
            raise errors.RuntimeUnsupportedError(
                "TFF's worker cannot run this computation: it calls Python of this "
                "process, as noise from AES-256-CTR does. Build the DP-FTRL process "
                "with noise_words=2, or run it with tff_agg.runtime.use('local') or "
                "'ray'"
            )
        return
    for field, value in part.ListFields():
        if field.message_type is not None:
            for inner in value if field.label == field.LABEL_REPEATED else [value]:
                check_runs_elsewhere(inner)


def worker_command(port: int, max_concurrent_computation_calls: int = -1) -> list[str]:
    """Returns the command line of TFF's worker."""
    # Found without an import, which takes seconds.
    spec = importlib.util.find_spec("tensorflow_federated")
    if spec is None or spec.origin is None:
        raise RuntimeError("tensorflow-federated is not installed")
    path = pathlib.Path(spec.origin).parent / "data" / "worker_binary"
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


def why_missing() -> str | None:
    """Says why there is no worker; None if there is one."""
    try:
        worker_command(port=0)
    except RuntimeError as error:
        return str(error)
    return None


class Worker:
    """A worker process, started at the first use.

    Args:
      command: Gives the command line for a port.
      log_errors: Whether the worker's log shows errors, which quote data.
    """

    def __init__(
        self,
        command: Callable[[int], list[str]] = worker_command,
        log_errors: bool = False,
    ):
        self._command = command
        self._environment = dict(os.environ)
        if not log_errors:
            self._environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stub: tff.framework.RemoteExecutorGrpcStub | None = None
        self._port = 0
        atexit.register(self.close)

    def start(self) -> int:
        """Starts the worker unless it runs; returns its process id."""
        with self._lock:
            return self._running().pid

    def stub(self) -> "tff.framework.RemoteExecutorGrpcStub":
        """Returns TFF's connection to the running worker."""
        with self._lock:
            process = self._running()
            if self._stub is None:
                self._stub = _connect(process, self._port)
            return self._stub

    def close(self) -> None:
        """Ends the worker; does nothing where there is none."""
        with self._lock:
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
            self._process = processes.start(
                self._command(self._port), env=self._environment
            )
            _log.warning(
                "TFF's worker (process %d) listens on port %d of all network "
                "interfaces without authentication. On shared networks use the runtime "
                "'local', with worker=False where it has started this one.",
                self._process.pid,
                self._port,
            )
        return self._process


def _connect(
    process: subprocess.Popen[bytes], port: int
) -> "tff.framework.RemoteExecutorGrpcStub":
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
