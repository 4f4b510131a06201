"""Waits for processes to end."""

import time

import psutil


def children() -> set[int]:
    """Returns all processes that this one has started, and theirs."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def is_alive(pid: int) -> bool:
    """Returns whether a process runs; one that nobody has read the end of does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_all_end(pids: list[int]) -> None:
    """Fails, and kills them, if any of the processes has not ended in a while."""
    assert pids
    deadline = time.monotonic() + 30
    while (left := [pid for pid in pids if is_alive(pid)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    for pid in left:
        psutil.Process(pid).kill()
    assert not left
