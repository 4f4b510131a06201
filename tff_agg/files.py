"""Files that appear whole or not at all, and errors of the disk in plain words.

A file is written under another name beside its own, made durable, and renamed: whoever
reads sees the old content or the new one, whenever the writer dies. A disk that fills
reports only a number; here it gets the name of the file and what to do about it.
"""

import contextlib
import errno
import os
import pathlib
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_TEMPORARY = ".new"


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

    Opening a file reports its name; writing to it, and making it durable, does not.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        raise


def write_bytes(
    path: str | os.PathLike,
    *parts: "ReadableBuffer",
    mode: int | None = None,
    many_writers: bool = False,
    sync_folder: bool = True,
) -> None:
    """Replaces a file by the parts (bytes, arrays).

    With `sync_folder=False` a power failure may bring the old file back, whole, until
    its folder is made durable. The rest is as for `replacing`.

    Example:
      >>> write_bytes(folder / 'table.csv', b'name,value', b'a,1')
    """
    with path_in_errors(path):
        temporary = stage(path, *parts, mode=mode, many_writers=many_writers)
        with _removed_on_error(temporary):
            publish([(temporary, path)], folders=sync_folder)


def write_text(
    path: str | os.PathLike,
    text: str,
    *,
    mode: int | None = None,
    many_writers: bool = False,
) -> None:
    """Replaces a file by a text in UTF-8, as a whole; the rest as for `replacing`."""
    write_bytes(path, text.encode(), mode=mode, many_writers=many_writers)


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
      durable: Whether the content is on the disk before the file appears, and its name
        before this returns. Without it a power failure may leave an empty file.
      many_writers: Whether several processes may write this file at once. Each then
        has a temporary file of its own, which a kill leaves behind; otherwise the
        temporary file is `path` + '.new', which the next writer removes.

    Example:
      >>> with replacing(folder / 'table.csv') as file:
      ...   _ = file.write(b'a,b')
    """
    with path_in_errors(path):
        temporary, descriptor = _open_temporary(path, mode, many_writers)
        with _removed_on_error(temporary):
            with os.fdopen(descriptor, "wb") as file:
                yield file
            publish([(temporary, path)], durable=durable)


def stage(
    path: str | os.PathLike,
    *parts: "ReadableBuffer",
    mode: int | None = None,
    many_writers: bool = False,
) -> str:
    """Writes what is to become a file under a temporary name, which it returns.

    `publish` makes it durable and visible: several files can be written in parallel
    first and go to the disk together.
    """
    temporary, descriptor = _open_temporary(path, mode, many_writers)
    with _removed_on_error(temporary):
        try:
            for part in parts:
                rest = memoryview(part).cast("B")
                while rest.nbytes:
                    rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)
    return temporary


def publish(
    staged: Sequence[tuple[str, str | os.PathLike]],
    *,
    durable: bool = True,
    folders: bool = True,
) -> None:
    """Gives staged files their names, in order.

    Args:
      staged: (temporary, path) each.
      durable: Whether their content is on the disk before they get their names.
      folders: Whether their names are, too, before this returns.
    """
    if durable:
        for temporary, _ in staged:
            sync(temporary)
    for temporary, path in staged:
        os.replace(temporary, path)
    if durable and folders:
        for folder in dict.fromkeys(os.path.dirname(path) for _, path in staged):
            sync_folder(folder or ".")


def sync(path: str | os.PathLike, flags: int = 0) -> None:
    """Waits until a file's bytes, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: str | os.PathLike) -> None:
    """Makes renames and removals inside a folder durable."""
    sync(path, os.O_DIRECTORY)


def remove_temporaries(folder: str | os.PathLike) -> None:
    """Removes what interrupted writers left; only for who writes there alone."""
    for name in os.listdir(folder):
        # '.tmp-' is how temporary files of checkpoints once began.
        if name.startswith(".tmp-") or name.endswith(_TEMPORARY):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))


def _open_temporary(
    path: str | os.PathLike, mode: int | None, many_writers: bool
) -> tuple[str, int]:
    """Makes the file that is to become `path`; returns its name and a descriptor."""
    folder, name = os.path.split(os.fspath(path))
    if many_writers:
        temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}{_TEMPORARY}")
    else:
        temporary = os.path.join(folder, name + _TEMPORARY)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
    if mode is not None:
        os.fchmod(descriptor, mode)  # whatever the mask says
    return temporary, descriptor


@contextlib.contextmanager
def _removed_on_error(temporary: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        # Best effort: the error under way says more than one of the removal.
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def results_folder(out: str) -> pathlib.Path:
    """Makes the folder for results where there is none.

    Raises:
      ValueError: No folder is named; the results would end up wherever one stands.
    """
    if not out:
        raise ValueError("--out must name a folder for the results; it is empty")
    folder = pathlib.Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
