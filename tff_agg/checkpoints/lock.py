"""One process for each run folder.

The lock is the operating system's own (`flock`): it ends with the process that holds
it, however that ends, and never has to be removed by hand.
"""

import contextlib
import fcntl
import os
import pathlib
import socket

from tff_agg.checkpoints import blobs


class RunLockedError(RuntimeError):
    """Another process is using the folder."""


class RunLock:
    """Keeps a folder for one process; the lock ends with the process, however it ends.

    Example:
      >>> with RunLock('run'):
      ...   train()
    """

    def __init__(self, folder: str | os.PathLike):
        self._path = pathlib.Path(folder) / ".lock"
        self._descriptor: int | None = None

    def acquire(self) -> "RunLock":
        """Takes the lock.

        Raises:
          RunLockedError: Another process has it; the message names its pid.
          StoreError: The folder cannot be written to.
        """
        with blobs.storing("take the run lock", self._path.parent):
            blobs.make_folder(self._path.parent)
            descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise RunLockedError(
                f"{self._path.parent} is in use by {holder or 'another process'}; wait "
                "for it, end it, or choose another folder."
            ) from error
        # Who has the lock is for others' messages only: on a full disk it goes unsaid.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(
                descriptor, f"pid {os.getpid()} on {socket.gethostname()}".encode(), 0
            )
        self._descriptor = descriptor
        return self

    def release(self) -> None:
        """Gives the lock back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> "RunLock":
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()
