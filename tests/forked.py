"""Programs that start with TensorFlow loaded already.

Importing TensorFlow and TFF takes five seconds of processor time, which is more than
many a program of the tests takes for all else. Here one process imports them, set up as
by the binaries, and every program runs in a fork of it: a process of its own, with its
own arguments, output, signals and exit status. Nothing of TensorFlow has run by then,
so that its threads are the program's own. Not for programs that call TFF's default
context: its executor was seen to hang in a fork. How a binary starts from nothing is
shown by other tests: the undisturbed run, `--help`, the wheel.
"""

import atexit
import functools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]

_SERVER = """
import gc, json, os, socket, sys
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
from tff_agg.runtime import quiet
quiet.quiet_tensorflow()
import stackoverflow.task, tff_agg.experiment.commands.train, tff_agg.federated.process
tests = socket.socket(fileno=int(sys.argv[1]))
# A million objects that stay: a fork need not look through them, nor copy their pages,
# whenever it collects garbage and when it ends.
gc.collect()
for thing in gc.get_objects():
    # Of TFF's default context, which no program here uses. Frozen, it would go after
    # the modules that it asks when it goes, and complain.
    if type(thing).__name__ == "ServiceManager":
        type(thing).__del__ = lambda self: None
gc.freeze()
while True:
    message, streams, _, _ = socket.recv_fds(tests, 1 << 20, 2)
    if not message:
        sys.exit()
    child = os.fork()
    if not child:
        break
    for stream in streams:
        os.close(stream)
    status = os.waitpid(child, 0)[1]
    tests.send(str(os.waitstatus_to_exitcode(status)).encode())
tests.close()
for place, stream in enumerate((os.open(os.devnull, os.O_RDONLY), *streams)):
    os.dup2(stream, place)
    os.close(stream)
job = json.loads(message)
sys.argv = job["arguments"]
exec(compile(job["program"], sys.argv[0], "exec"), {"__name__": "__main__"})
"""


@functools.cache
def _server() -> tuple[socket.socket, subprocess.Popen]:
    """Starts the process that is forked; it ends when this one does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # JAX, which TFF imports, has set it in this process: it would show warnings.
    environment = dict(os.environ)
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-B", "-c", _SERVER, str(theirs.fileno())],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            process_group=0,
        )
    atexit.register(_end, process)
    return ours, process


def _end(process: subprocess.Popen) -> None:
    """Ends the process that is forked, and a program that may still run."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(
    program: str, *arguments: str | os.PathLike, timeout: float = 600
) -> subprocess.CompletedProcess:
    """Runs a program as `python -c` in the root of the checkout would.

    Args:
      program: The text of the program.
      *arguments: What it finds in `sys.argv[1:]`.
      timeout: After how many seconds it fails.

    Returns:
      The exit status (negative: the signal), and what it wrote.
    """
    server, process = _server()
    job = {"program": program, "arguments": ["-c", *map(str, arguments)]}
    # Not pipes, which would stay open as long as a child of the program does.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        socket.send_fds(
            server, [json.dumps(job).encode()], [out.fileno(), err.fileno()]
        )
        server.settimeout(timeout)
        try:
            code = server.recv(100)
        except TimeoutError:
            _end(process)
            _server.cache_clear()
            raise
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess(arguments, int(code), out.read(), err.read())
