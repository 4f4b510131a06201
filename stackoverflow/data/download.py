"""Fetching the published StackOverflow file into TFF's own cache.

TFF's downloader writes straight into its cache, so a broken download would be taken for
the data ever after. Here the compressed file is fetched first, picking up where an
earlier try stopped, checked against the checksum that the server states, unpacked, and
renamed to the place where `tff.simulation.datasets.stackoverflow.load_data` looks.
"""

import base64
import email.message
import hashlib
import lzma
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable

from tff_agg import files

#: Called with the stage and how many bytes are done, of how many.
Progress = Callable[[str, int, int], None]

ORIGIN = "https://storage.googleapis.com/tff-datasets-public/stackoverflow.sqlite.lzma"
_CHUNK = 1 << 20


def download(
    cache_dir: str | None = None,
    *,
    origin: str = ORIGIN,
    progress: Progress | None = None,
) -> str:
    """Returns the path of the SQLite file, fetching it if it is not there yet.

    Args:
      cache_dir: Where to put it; TFF's own cache by default.
      origin: The address of the compressed file.
      progress: Called with (stage, bytes done, bytes in all).

    Returns:
      The path of the unpacked file.

    Raises:
      ConnectionError: If the server cannot be reached or the connection breaks; what
        has arrived is kept and the next call goes on from there.
      ValueError: If what arrived is not what the server has.

    Example:
      source = OfficialSource(download())
    """
    folder = cache_dir or os.path.join(os.path.expanduser("~"), ".tff")
    os.makedirs(folder, exist_ok=True)
    packed = os.path.join(folder, os.path.basename(origin))
    target = os.path.splitext(packed)[0]
    if os.path.exists(target):
        return target
    part = packed + ".part"
    try:
        _fetch(origin, part, progress)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise ConnectionError(
            f"{origin}: cannot be fetched ({error}). Run again to go on from the "
            f"{_size(part)} bytes that are here; or fetch the file on another machine, "
            "unpack it and give its path; or use the synthetic source"
        ) from error
    _unpack(part, target, progress)
    os.unlink(part)
    return target


def _size(path: str) -> int:
    """Returns the size of a file, 0 if there is none."""
    return os.path.getsize(path) if os.path.exists(path) else 0


def _fetch(origin: str, part: str, progress: Progress | None) -> None:
    """Fetches what is missing of `part` and checks the whole."""
    have = _size(part)
    request = urllib.request.Request(origin)
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: there is nothing after what we have
            raise
        response, total, md5 = None, have, _stated_md5(error.headers)
    if response is not None:
        with response:
            md5 = _stated_md5(response.headers)
            if have and response.status != 206:  # the server starts over
                have = 0
            total = have + int(response.headers.get("Content-Length") or 0)
            with open(part, "ab" if have else "wb") as file:
                while chunk := response.read(_CHUNK):
                    file.write(chunk)
                    have += len(chunk)
                    if progress is not None:
                        progress("download", have, total)
                file.flush()
                os.fsync(file.fileno())
    if have < total:
        raise ConnectionError(f"the connection broke after {have} of {total} bytes")
    if md5 is not None:
        with open(part, "rb") as file:
            digest = hashlib.file_digest(file, "md5").digest()
        if digest != md5:
            os.unlink(part)
            raise ValueError(f"{origin}: the checksum is wrong; fetch it again")


def _stated_md5(headers: email.message.Message) -> bytes | None:
    """Returns the MD5 that the storage server states for the file."""
    for value in headers.get_all("x-goog-hash") or []:
        for entry in value.split(","):
            kind, _, digest = entry.strip().partition("=")
            if kind == "md5":
                return base64.b64decode(digest)
    return None


def _unpack(packed: str, target: str, progress: Progress | None) -> None:
    """Decompresses a file; the result appears under its name when complete."""
    try:
        with lzma.open(packed) as source, files.replacing(target) as file:
            shutil.copyfileobj(source, file, _CHUNK)
    except (lzma.LZMAError, EOFError) as error:
        os.unlink(packed)
        raise ValueError(f"{packed}: damaged ({error}); fetch it again") from error
    if progress is not None:
        progress("unpack", os.path.getsize(target), os.path.getsize(target))
