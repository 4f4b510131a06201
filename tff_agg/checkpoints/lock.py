"""One process for each run folder.

The lock is the operating system's own: it ends with the process that holds it, however
that ends, and never has to be removed by hand.
"""

import contextlib
import os
import pathlib
import socket

import filelock

from tff_agg.checkpoints import blobs


class RunLockedError(RuntimeError):
    """Another process is using the folder."""


class RunLock:
    """Keeps a folder for one process; the lock ends with the process, however it ends.

    It ends with this object as well, so that its holder has to keep a reference to it.

    Example:
      >>> with RunLock(folder):
      ...   pass  # nobody else works in the folder meanwhile
    """

    #: The name of the file that is locked, which stays in the folder.
    FILE = ".lock"

    def __init__(self, folder: str | os.PathLike):
        self._path = pathlib.Path(folder) / self.FILE
        self._lock = filelock.FileLock(
            self._path, mode=0o600, thread_local=False, on_acquired=_sign
        )

    def acquire(self) -> "RunLock":
        """Takes the lock.

        Raises:
          RunLockedError: Another process has it; the message names its pid.
          StoreError: The folder cannot be written to.
        """
        with blobs.storing("take the run lock", self._path.parent):
            blobs.make_folder(self._path.parent)
            try:
                self._lock.acquire(blocking=False)
            except filelock.Timeout as error:
                holder = self._path.read_text("utf-8", errors="replace").strip()
                raise RunLockedError(
                    f"{self._path.parent} is in use by {holder or 'another process'}; "
                    "wait for it, end it, or choose another folder."
                ) from error
        return self

    def release(self) -> None:
        """Gives the lock back."""
        self._lock.release()

    def __enter__(self) -> "RunLock":
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


def _sign(descriptor: int) -> None:
    """Writes who has the lock, for the messages of others."""
    with contextlib.suppress(OSError):  # on a full disk it goes unsaid
        os.ftruncate(descriptor, 0)
        os.pwrite(
            descriptor, f"pid {os.getpid()} on {socket.gethostname()}".encode(), 0
        )
