"""A connection to Ray: to a cluster, or to one that is started here and ends with us.

What is started here listens on the loopback interface only, asks for a random token,
which other users of the machine do not have, sends no statistics of use, and keeps its
files in a folder that only its owner may enter. Ray's processes end when this one does,
however it ends.
"""

import contextlib
import fcntl
import glob
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from typing import Any

_log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
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
        ray.get(ray.remote(len).remote('four'))
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

        self._folder: _Folder | None = None
        self._owner = not ray.is_initialized()
        if not self._owner:
            return
        common = {"configure_logging": False, "log_to_driver": False}
        with _as_it_was():
            if address is not None:
                ray.init(address=address, **common)
                return
            self._folder = _Folder()
            try:
                ray.init(
                    address="local",
                    num_cpus=cpus or len(os.sched_getaffinity(0)),
                    include_dashboard=False,
                    object_store_memory=object_store_bytes,
                    _node_ip_address=_LOOPBACK,
                    _temp_dir=self._folder.path,
                    **common,
                )
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Leaves the cluster; one that was started here ends."""
        if self._owner:
            import ray

            self._owner = False
            ray.shutdown()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None


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


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Puts back what `ray.init` changes in this process, and keeps it quiet."""
    name = "RAY_USAGE_STATS_ENABLED"
    before = os.environ.get(name)
    os.environ.setdefault(name, "0")
    in_main = threading.current_thread() is threading.main_thread()
    handler: Any = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings():
            # A note about its own future.
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        if in_main and handler is not None:
            signal.signal(signal.SIGTERM, handler)
        if before is None:
            os.environ.pop(name, None)


class _Folder:
    """Where a Ray that was started here keeps its sockets and logs.

    It is locked while its process lives. Those that killed processes have left behind
    are found unlocked, and removed.
    """

    def __init__(self) -> None:
        for path in glob.glob(os.path.join(tempfile.gettempdir(), _PREFIX + "*")):
            with contextlib.suppress(OSError):
                lock = _lock(path)
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)
        self._outer = tempfile.mkdtemp(prefix=_PREFIX)
        self._lock = _lock(self._outer)
        # Ray opens its own folder to everybody; nobody gets through to it.
        self.path = os.path.join(self._outer, "r")

    def remove(self) -> None:
        shutil.rmtree(self._outer, ignore_errors=True)
        os.close(self._lock)


def _lock(path: str) -> int:
    """Locks a folder; raises OSError where somebody has."""
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle
