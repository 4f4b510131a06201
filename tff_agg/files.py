"""Files that appear whole or not at all, and errors of the disk in plain words.

A file is written under another name beside its own, made durable, and renamed: whoever
reads sees the old content or the new one, whenever the writer dies. A disk that fills
tells only a number; here it is given the name of the file and what to do about it.
"""

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple


class Cause(NamedTuple):
    """Why a file cannot be written, and what helps."""

    reason: str
    remedy: str


_ACCESS = "make it writable or choose another folder"
_IN_THE_WAY = "move that file away or choose another folder"

#: By error number, what somebody at the terminal can mend.
CAUSES = {
    errno.ENOSPC: Cause("the disk is full", "free space"),
    errno.EDQUOT: Cause("the disk quota is used up", "free space"),
    errno.EFBIG: Cause("the file would be larger than allowed", "raise the limit"),
    errno.EROFS: Cause("the file system is read-only", _ACCESS),
    errno.EACCES: Cause("permission is denied", _ACCESS),
    errno.EPERM: Cause("permission is denied", _ACCESS),
    errno.ENOTDIR: Cause("a file is in the place of a folder", _IN_THE_WAY),
    errno.EEXIST: Cause("a file is in the place of a folder", _IN_THE_WAY),
}


def reason_of(error: OSError) -> str:
    """Returns why the disk refused, in plain words where they are known."""
    cause = CAUSES.get(error.errno or 0)
    return cause.reason if cause else error.strerror or str(error)


def explain(error: OSError) -> str:
    """Returns what happened to which file and what to do about it.

    Example:
      >>> explain(OSError(errno.ENOSPC, 'No space left on device', 'run/metrics.csv'))
      'run/metrics.csv: the disk is full. What was saved before is intact; free space
      and run the same command again.'
    """
    cause = CAUSES.get(error.errno or 0)
    if cause is None:
        return str(error)
    where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    return (
        f"{where}{cause.reason}. What was saved before is intact; {cause.remedy} and "
        "run the same command again."
    )


@contextlib.contextmanager
def path_in_errors(path: str | os.PathLike) -> Iterator[None]:
    """Puts the file's path into an OSError from inside the block that has none.

    Opening a file tells its name; writing to it, and making it durable, does not.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        raise


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike,
    *,
    mode: int | None = None,
    durable: bool = True,
    many_writers: bool = False,
) -> Iterator[BinaryIO]:
    """Opens a binary file that appears under `path` when the block ends without error.

    Args:
      path: The file to make or to replace; its folder must be there.
      mode: Its permissions; what the process's mask leaves by default.
      durable: Whether the content is on the disk before the file appears. Without it
        a power failure may leave an empty file.
      many_writers: Whether several processes may write this file at once. Each then
        has a temporary file of its own, which a kill leaves behind; otherwise the
        temporary file is `path` + '.new', which the next writer removes.

    Example:
      >>> with replacing('table.csv') as file:
      ...   file.write(b'a,b')
    """
    target = os.fspath(path)
    with path_in_errors(target):
        if many_writers:
            name = f".{os.path.basename(target)}.{uuid.uuid4().hex}.new"
            temporary = os.path.join(os.path.dirname(target), name)
        else:
            temporary = f"{target}.new"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        descriptor = os.open(
            temporary,
            os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC,
            0o666 if mode is None else mode,
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                if mode is not None:
                    os.fchmod(file.fileno(), mode)  # whatever the mask says
                yield file
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            # Best effort: the error under way tells more than one of the removal.
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def write_text(
    path: str | os.PathLike,
    text: str,
    *,
    mode: int | None = None,
    many_writers: bool = False,
) -> None:
    """Replaces a file by a text in UTF-8, as a whole; the rest as for `replacing`."""
    with replacing(path, mode=mode, many_writers=many_writers) as file:
        file.write(text.encode())
