"""A disk that fills, and folders that cannot be written to, in the middle of a run."""

import pathlib
import resource
import subprocess

import pytest

from tests import forked
from tests.experiment import train_binary
from tests.experiment.run_contents import contents
from tff_agg import checkpoints
from tff_agg.experiment import terminal
from tff_agg.experiment.run import run as training

# The binary as it is. Root writes wherever it likes; without its capabilities it is
# like everybody else.
AS_EVERYBODY = """
import ctypes, os, runpy, sys
version_3, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
if os.geteuid() == 0:
    assert ctypes.CDLL(None).capset(version_3, nothing) == 0
sys.argv.insert(1, "train")
runpy.run_module("stackoverflow", run_name="__main__", alter_sys=True)
"""


class Disk:
    """A file system in memory."""

    def __init__(self, path):
        self.path = path

    def mount(self, *options):
        line = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", self.path]
        return subprocess.run(line, capture_output=True).returncode == 0

    def unmount(self):
        # Lazily: TensorFlow lets go of an event file in its own time.
        subprocess.run(["umount", "-l", self.path], check=True)


@pytest.fixture
def disk(tmp_path):
    made = Disk(tmp_path / "disk")
    made.path.mkdir()
    if not made.mount("size=20m"):
        pytest.skip("mounting takes rights that this process does not have")
    yield made
    made.unmount()


def left_over(folder):
    """Returns the files that a broken write has left behind."""
    names = (".tmp", ".new", ".writing")
    return [p for p in folder.rglob("*") if any(name in p.name for name in names)]


def assert_reported(process, *words):
    """Asserts that an error was reported in one message with these words."""
    assert process.returncode == 2, process.stderr
    assert "Traceback" not in process.stderr
    message = process.stderr.rstrip().splitlines()[-1]
    assert message.startswith("error: ")
    for word in (*words, "intact", "run"):
        assert str(word) in message
    return message


def newest_state(out):
    return checkpoints.CheckpointStore(out / "checkpoints").rounds("state")[-1]


# The binary as it is, which may write short files only from its third round on.
LIMITED = """
import resource, runpy, sys
from tff_agg.experiment import terminal

on_round = terminal.TrainingBar.on_round

def limit(self, done, facts):
    on_round(self, done, facts)
    if done >= 3:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_200, 10_200))

terminal.TrainingBar.on_round = limit
sys.argv.insert(1, "train")
runpy.run_module("stackoverflow", run_name="__main__", alter_sys=True)
"""

# The binary as it is, on a disk that others fill from its third round on.
FILLED = """
import contextlib, runpy, sys
from tff_agg.experiment import terminal

path, on_round = sys.argv.pop(1), terminal.TrainingBar.on_round

def fill(self, done, facts):
    on_round(self, done, facts)
    if done >= 3:
        with contextlib.suppress(OSError), open(path, "ab", buffering=0) as filler:
            while True:
                filler.write(bytes(1 << 12))

terminal.TrainingBar.on_round = fill
sys.argv.insert(1, "train")
runpy.run_module("stackoverflow", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_a_disk_that_fills_and_then_is_read_only(finished, token_store, disk):
    out = disk.path / "run"
    flags = train_binary.flags(token_store, out)
    done = forked.run(FILLED, disk.path / "filler", *flags)
    assert_reported(done, out, "the disk is full", "free space")
    assert not left_over(out)
    state = newest_state(out)
    assert 2 <= state < 8

    assert disk.mount("remount", "ro")
    try:
        again = train_binary.run_forked(token_store, out)
    finally:
        assert disk.mount("remount", "rw")
    assert_reported(again, out, "read-only", "writable")
    assert newest_state(out) == state

    (disk.path / "filler").unlink()
    last = train_binary.run_forked(token_store, out)
    assert last.returncode == 0, last.stderr
    assert f"Going on after round {state}." in last.stdout
    assert contents(out) == contents(finished[0])
    assert not left_over(out)


@pytest.mark.slow
def test_a_limit_on_files_and_then_a_folder_without_permission(token_store, tmp_path):
    out = tmp_path / "run"
    limited = forked.run(LIMITED, *train_binary.flags(token_store, out))
    assert_reported(limited, out, "larger than allowed", "raise the limit")
    assert not left_over(out)
    state = newest_state(out)
    assert 2 <= state < 8

    out.chmod(0o500)
    try:
        refused = forked.run(AS_EVERYBODY, *train_binary.flags(token_store, out))
    finally:
        out.chmod(0o700)
    assert_reported(refused, out, "permission is denied", "writable")
    # Whence it goes on as after a full disk.
    assert newest_state(out) == state


@pytest.mark.slow
def test_a_file_in_the_place_of_the_folder(token_store, tmp_path):
    (tmp_path / "file").write_text("in the way")
    refused = train_binary.run_forked(token_store, tmp_path / "file" / "run")
    assert_reported(refused, tmp_path / "file", "a file is in the place of a folder")
    assert (tmp_path / "file").read_text() == "in the way"


def test_full_at_one_write_after_another(disk, make_task, cache, tmp_path, capsys):
    """The disk grows by little, so that it is full at many different writes."""
    config, whole = make_task(rounds=4), tmp_path / "whole"
    training.run(config, whole, compiled=cache)
    out, page = disk.path / "run", resource.getpagesize()
    needed = sum(1 + path.stat().st_size // page for path in whole.rglob("*"))
    # The first files one at a time; the arrays, which are alike, in larger steps.
    sizes = [*range(1, 12), *range(12, 2 * needed + 24, 24)]
    places = set()
    for size in sizes:
        assert disk.mount("remount", f"size={size * page}")
        try:
            with terminal.plain_errors():
                training.run(config, out, compiled=cache)
            break
        except SystemExit as ended:
            assert ended.code == 2
        message = capsys.readouterr().err
        assert "the disk is full" in message and str(out) in message
        assert not left_over(out)
        places.add(place(message, out))
    else:
        pytest.fail("the run did not end on the largest disk")
    assert {"privacy_report.json", "config.json", "checkpoints"} <= places
    assert contents(out) == contents(whole)


def place(message, out):
    """Returns the file or folder of the run that a message names."""
    rest = message[message.index(str(out)) + len(str(out)) :]
    return pathlib.PurePath(rest.split(":")[0].strip("/")).parts[0]
