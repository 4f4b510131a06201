"""A connection to Ray: to a cluster, or to one that is started here and ends with us.

What is started here listens on the loopback interface only, asks for a random token,
which other users of the machine do not have, sends no statistics of use, and keeps its
files in a folder that only its owner may enter. Ray's processes end when this one does,
however it ends.
"""

import contextlib
import logging
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator

from tff_agg.processes import usable_cores
from tff_agg.runtime import quiet

_log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
# Ray gives its processes 20 to 30 seconds to start, whatever else the machine does. The
# first start on a machine, with nothing of Ray in memory, may take longer. It reports
# the one by this text, the other by the lack of a log file that it does not write.
_STARTS = 3
_TOO_SLOW = ("timed out during startup", "gcs_server.err")
_PREFIX = "tff_agg_ray_"
_AUTH_MODE, _AUTH_TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"


class RaySession:
    """Ray, ready for use until `close`.

    Ray knows one connection in a process. Where there is one already, it is used as it
    is and left alone by `close`.

    Args:
      address: The cluster, as for `ray.init`; None starts one in this machine.
      cpus: How many CPUs one that is started here offers; those usable where None.
      object_store_bytes: The size of its object store; Ray's own choice where None.

    Example:
      with contextlib.closing(RaySession()):
        ray.get(ray.remote(lambda: 4).remote())
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        cpus: float | None = None,
        object_store_bytes: int | None = None,
    ):
        if address is None:
            _ask_for_a_token()
        import ray

        self._watched: _Watched | None = None
        self._owner = not ray.is_initialized()
        if not self._owner:
            return
        common = {"configure_logging": False, "log_to_driver": False}
        with _as_it_was():
            if address is not None:
                ray.init(address=address, **common)
                return
            for starts_left in reversed(range(_STARTS)):
                self._watched = _Watched()
                try:
                    ray.init(
                        address="local",
                        num_cpus=cpus or usable_cores(),
                        include_dashboard=False,
                        object_store_memory=object_store_bytes,
                        _node_ip_address=_LOOPBACK,
                        _temp_dir=self._watched.path,
                        **common,
                    )
                    return
                except BaseException as error:
                    self.close()
                    if not any(text in str(error) for text in _TOO_SLOW):
                        raise
                    if not starts_left:
                        raise RuntimeError(
                            f"Ray did not start in {_STARTS} attempts, for its "
                            f"processes did not answer in time; it says: {error}"
                        ) from error
                    self._owner = True

    def close(self) -> None:
        """Leaves the cluster; one that was started here ends."""
        if self._owner:
            import ray

            self._owner = False
            ray.shutdown()
        if self._watched is not None:
            self._watched.end()
            self._watched = None


def _ask_for_a_token() -> None:
    """Makes Ray refuse whoever does not know a word of this process.

    Ray reads these variables when it is imported.
    """
    if _AUTH_MODE in os.environ:
        return
    if "ray" in sys.modules:
        _log.warning(
            "Ray was imported before, without %s: other users of this machine can use "
            "what is started here",
            _AUTH_MODE,
        )
        return
    os.environ[_AUTH_MODE] = "token"
    os.environ.setdefault(_AUTH_TOKEN, secrets.token_hex(32))


# What Ray reads while it starts; what the environment sets is kept. Half a minute later
# it would write to the terminal that there is no exporter of metrics, which is as it
# should be; that line has the level of errors. Real ones are raised as well.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Puts back what `ray.init` changes in this process, and keeps it quiet."""
    added = [name for name in _QUIET if name not in os.environ]
    os.environ.update({name: _QUIET[name] for name in added})
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with quiet.without_chatter(), warnings.catch_warnings():
            # A note about its own future.
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        if in_main and handler is not None:
            signal.signal(signal.SIGTERM, handler)
        for name in added:
            os.environ.pop(name, None)


# Runs in a bare interpreter. It ends what is left of a Ray by the name of its folder,
# which is in the command of each of its processes but the workers; those end by
# themselves without the others.
_WATCH = """
import os, shutil, signal, sys, time
folder = sys.argv[1]
sys.stdin.read()
for _ in range(100):
    left = False
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if folder.encode() in file.read():
                        left = True
                        os.kill(int(name), signal.SIGKILL)
            except OSError:
                pass
    if not left:
        break
    time.sleep(0.05)
shutil.rmtree(folder, ignore_errors=True)
"""


class _Watched:
    """Where a Ray that was started here keeps its sockets and logs, and its end.

    Some of Ray's own processes outlive a driver that was killed, by minutes. A process
    of ours waits for the end of this one, however it ends, and then ends those and
    removes the folder.
    """

    def __init__(self) -> None:
        outer = tempfile.mkdtemp(prefix=_PREFIX)
        # Ray opens its own folder to everybody; nobody gets through to it.
        self.path = os.path.join(outer, "r")
        self._watch = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCH, outer],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Signals that a terminal sends to all are not for it.
            start_new_session=True,
        )

    def end(self) -> None:
        assert self._watch.stdin is not None
        self._watch.stdin.close()
        self._watch.wait()
