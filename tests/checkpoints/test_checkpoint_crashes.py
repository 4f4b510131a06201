"""Kills, full disks and folders that cannot be written to."""

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tree

from tff_agg import checkpoints
from tff_agg.checkpoints import CheckpointStore, RunLock

# Saves rounds until it kills itself before its n-th system call of those that matter.
_LOOP = textwrap.dedent(
    """
    import os, signal, sys, numpy as np
    from tff_agg.checkpoints import CheckpointStore

    left = int(sys.argv[2])

    def before(real):
        def call(*arguments, **options):
            global left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)
        return call

    for name in ('write', 'fsync', 'replace', 'unlink'):
        setattr(os, name, before(getattr(os, name)))

    def state(t):
        rng = np.random.default_rng(t)
        return [rng.standard_normal(n).astype(np.float32) for n in (100, 40_000, 5000)]

    store = CheckpointStore(
        sys.argv[1], keep_last={'state': 2}, keep_every={'x': 5}, threads=1
    )
    restored = store.latest_valid('state')
    t = restored.round + 1 if restored else 0
    while True:
        window = [state(i) for i in range(max(t - 2, 0), t + 1)]
        store.save(t, {'x': state(t), 'state': {'t': np.array(t), 'window': window}})
        t += 1
    """
)


def expected(t):
    """The second is a blob, the others stand in the manifest."""
    rng = np.random.default_rng(t)
    return [rng.standard_normal(n).astype(np.float32) for n in (100, 40_000, 5000)]


def assert_equal(found, wanted):
    tree.map_structure(np.testing.assert_array_equal, found, wanted)


def files(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_whole_latest_checkpoint(tmp_path, caplog):
    moments = random.Random(0)
    latest = -1
    for _ in range(8):
        # A save is some dozens of system calls: up to a few rounds before the kill.
        died = subprocess.run(
            [sys.executable, "-c", _LOOP, tmp_path, str(moments.randrange(1, 120))],
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
        assert died.returncode == -signal.SIGKILL
        store = CheckpointStore(tmp_path)
        restored = store.latest_valid("state")
        if restored is None:
            assert latest == -1
            continue
        assert restored.round >= latest
        latest = restored.round
        assert restored.value["t"] == latest
        window = [expected(i) for i in range(max(latest - 2, 0), latest + 1)]
        assert_equal(restored.value["window"], window)
        for t, value in store.iterate("x"):
            assert_equal(value, expected(t))
        every_fifth = set(range(0, latest + 1, 5))
        assert every_fifth <= set(store.rounds("x"))
    assert latest > 5
    assert not caplog.messages  # nothing was damaged and skipped
    store = CheckpointStore(tmp_path, keep_last={"state": 2}, keep_every={"x": 5})
    store.save(latest + 1, {"x": expected(latest + 1), "state": "last"})
    assert not [p for p in files(tmp_path) if p.name.endswith(".new")]


class Killed(BaseException):
    """Stands for the end of the process."""


_SYSCALLS = ["write", "fsync", "replace", "unlink"]


def count_calls(monkeypatch, fail_at=None, error=None):
    """Counts the store's system calls; raises before number `fail_at`."""
    calls = [0]

    def wrap(name):
        real = getattr(os, name)

        def call(*args, **kwargs):
            if fail_at is not None and calls[0] == fail_at:
                calls[0] += 1
                raise error
            calls[0] += 1
            # Once a process is dead it does nothing any more, not even tidy up.
            if isinstance(error, Killed) and fail_at is not None and calls[0] > fail_at:
                raise error
            return real(*args, **kwargs)

        return call

    for name in _SYSCALLS:
        monkeypatch.setattr(os, name, wrap(name))
    return calls


def scenario(folder):
    """Saves rounds 3 and 4 over a store that holds 1 and 2 and keeps two."""
    store = CheckpointStore(folder, keep_last=2, threads=1)
    for t in (3, 4):
        store.save(t, {"state": [expected(t), expected(t - 1)]})


@pytest.mark.parametrize(
    "error",
    [
        Killed(),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EIO, "Input/output error"),
    ],
    ids=["killed", "full disk", "broken disk"],
)
def test_a_failure_at_each_system_call_leaves_a_good_state(
    tmp_path, monkeypatch, error, caplog
):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # Slow, counted below.

    def prepare(folder):
        store = CheckpointStore(folder, keep_last=2)
        for t in (1, 2):
            store.save(t, {"state": [expected(t), expected(t - 1)]})

    prepare(tmp_path / "count")
    with monkeypatch.context() as patch:
        calls = count_calls(patch)
        scenario(tmp_path / "count")
    assert calls[0] > 20
    for fail_at in range(calls[0]):
        folder = tmp_path / str(fail_at)
        prepare(folder)
        with monkeypatch.context() as patch:
            count_calls(patch, fail_at, error)
            kind = Killed if isinstance(error, Killed) else checkpoints.StoreError
            with pytest.raises(kind):
                scenario(folder)
        store = CheckpointStore(folder)
        restored = store.latest_valid("state")
        assert restored is not None and restored.round in (2, 3, 4)
        assert not caplog.messages
        for t, value in store.iterate("state"):
            assert_equal(value, [expected(t), expected(t - 1)])
        # The next process carries on as if nothing had happened.
        writer = CheckpointStore(folder, keep_last=2)
        for t in range(restored.round + 1, 6):
            writer.save(t, {"state": [expected(t), expected(t - 1)]})
        assert writer.rounds() == [4, 5]
        assert len(list((folder / "blobs").iterdir())) == 3
        assert len(list((folder / "manifests").iterdir())) == 2


def test_a_full_disk_is_named_and_changes_nothing(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(0, {"x": expected(0)})
    before = files(tmp_path)
    real, room = os.write, [100_000]

    def write(descriptor, data):
        room[0] -= len(data)
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(checkpoints.StoreError, match="disk is full"):
        store.save(1, {"x": expected(1)})
    assert files(tmp_path) == before
    monkeypatch.undo()
    store.save(1, {"x": expected(1)})
    assert_equal(store.load(1, "x"), expected(1))


def test_a_file_size_limit_is_a_store_error_too(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(0, {"x": np.zeros(100)})
    before = files(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(checkpoints.StoreError, match="larger than allowed"):
            store.save(1, {"x": expected(1)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(tmp_path) == before


def test_a_read_only_file_system_is_named(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    store.save(0, {"x": expected(0)})
    before = files(tmp_path)
    real = os.open

    def open_(path, flags, *args, **kwargs):
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", open_)
    with pytest.raises(checkpoints.StoreError, match="read-only"):
        store.save(1, {"x": expected(1)})
    with pytest.raises(checkpoints.StoreError, match="read-only"):
        RunLock(tmp_path).acquire()
    monkeypatch.undo()
    assert files(tmp_path) == before


@pytest.mark.parametrize("blocked", ["store", "store/blobs", "store/manifests"])
def test_a_file_in_the_place_of_a_folder_is_named(tmp_path, blocked):
    path = tmp_path / blocked
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("in the way")
    with pytest.raises(checkpoints.StoreError, match="in the place of a folder"):
        CheckpointStore(tmp_path / "store").save(0, {"x": expected(0)})
    assert path.read_text() == "in the way"


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:9000]))
    CheckpointStore(tmp_path).save(0, {"x": expected(0)})
    assert_equal(CheckpointStore(tmp_path).load(0, "x"), expected(0))


_HOLD = """
import signal, sys
from tff_agg.checkpoints import RunLock
lock = RunLock(sys.argv[1]).acquire()
print('locked', flush=True)
signal.pause()
"""


def test_a_second_process_is_refused_by_pid_until_the_first_ends(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"locked\n"
        with pytest.raises(checkpoints.RunLockedError, match=f"pid {child.pid} "):
            RunLock(tmp_path / "run").acquire()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    # The same process, too, holds it only once.
    here = f"pid {os.getpid()} "
    with (
        RunLock(tmp_path / "run"),
        pytest.raises(checkpoints.RunLockedError, match=here),
    ):
        RunLock(tmp_path / "run").acquire()
    with RunLock(tmp_path / "run"):
        pass


def test_a_child_does_not_inherit_the_lock(tmp_path):
    with RunLock(tmp_path / "run"):
        child = os.fork()
        if not child:
            signal.pause()  # as a worker that outlives the run would
    try:
        with RunLock(tmp_path / "run"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_what_killed_writers_left_is_removed(tmp_path):
    CheckpointStore(tmp_path).save(0, {"x": expected(0)})
    before = files(tmp_path)
    for name in ("blobs/.tmp-17-0", "blobs/.ab.cd.new", "manifests/000000001.json.new"):
        (tmp_path / name).write_bytes(b"half")
    store = CheckpointStore(tmp_path)
    assert store.rounds() == [0]
    store.collect_garbage()
    assert files(tmp_path) == before
