"""`python -m stackoverflow train` on Ctrl-C, SIGTERM and kill -9: nothing is lost."""

import signal
import subprocess
import sys

import pytest

from stackoverflow.data.token_store import TokenStore
from tests import forked
from tests.experiment.run_contents import contents
from tests.experiment.train_binary import KILLED, ROOT, flags, run_forked
from tests.runtime.process_ends import assert_all_end
from tff_agg.experiment.run.ledger import Ledger

# The binary as it is, with a client that sends a signal and waits until it arrives.
PROGRAM = """
import os, runpy, signal, sys, threading
from tff_agg.experiment.commands import interruption
from tff_agg import runtime

at, number = int(sys.argv.pop(1)), int(sys.argv.pop(1))
arrived, worked = threading.Event(), []
install, create = interruption.install, runtime.create

def install_and_note():
    install()
    inner = signal.getsignal(number)
    def handle(*arguments):
        arrived.set()
        inner(*arguments)
    signal.signal(number, handle)

def on_client(run):
    worked.append(run.position)
    if len(worked) == at:
        os.kill(os.getpid(), number)
        assert arrived.wait(60)

interruption.install = install_and_note
runtime.create = lambda name, **options: create(
    name, **options | {"on_client": on_client}
)
try:
    sys.argv.insert(1, "train")
    runpy.run_module("stackoverflow", run_name="__main__", alter_sys=True)
finally:
    print("clients that worked:", len(worked), flush=True)
"""


def interrupted(store, out, *, at, number):
    return forked.run(PROGRAM, str(at), str(int(number)), *flags(store, out))


def killed(store, out, *, calls):
    """Kills it before so many calls that make something durable."""
    done = forked.run(KILLED, str(calls), *flags(store, out))
    assert done.returncode == -signal.SIGKILL, done.stderr
    found = Ledger(out).read()
    return 0 if found is None else found.last


@pytest.mark.slow
def test_stopped_and_killed_it_says_how_to_go_on_and_goes_on_to_the_same_bits(
    finished, token_store, tmp_path
):
    """One run, broken off four times: in its beginning, between rounds and in them."""
    out = tmp_path / "run"
    assert killed(token_store, out, calls=9) == 0
    # Four clients in each of eight rounds; the state is saved every second round.
    first = interrupted(token_store, out, at=9, number=signal.SIGINT)
    assert first.returncode == 128 + signal.SIGINT, first.stderr
    assert "Traceback" not in first.stderr
    assert first.stderr.splitlines()[-1] == (
        f"Stopped by SIGINT. 2 of 8 rounds are done and saved in {out}; run the same "
        "command again to go on."
    )
    # In the third round, one client was done; each lane ended the one it was at.
    assert int(first.stdout.split()[-1]) <= 11

    second = interrupted(token_store, out, at=14, number=signal.SIGTERM)
    assert second.returncode == 128 + signal.SIGTERM, second.stderr
    assert "Traceback" not in second.stderr
    assert "Stopped by SIGTERM. 5 of 8 rounds are done" in second.stderr

    assert 5 <= killed(token_store, out, calls=7) < 8

    last = run_forked(token_store, out)
    assert last.returncode == 0, last.stderr
    assert contents(out) == contents(finished[0])


PREPARE = """
import os, runpy, signal, sys, psutil
from tff_agg.experiment import progress
number, stage = int(sys.argv.pop(1)), sys.argv.pop(1)

class Strike(progress.StageBar):
    def __call__(self, now, done, total):
        if now == stage and done:
            print(*[child.pid for child in psutil.Process().children()], flush=True)
            os.kill(os.getpid(), number)

progress.StageBar = Strike
sys.argv.insert(1, "prepare")
runpy.run_module("stackoverflow", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("number", "stage"), [(signal.SIGINT, "read"), (signal.SIGTERM, "write")]
)
def test_an_interrupted_preparation_says_how_to_go_on(tmp_path, number, stage):
    flags = ["--users=300", "--words=40", "--workers=2", f"--out={tmp_path / 'store'}"]
    done = subprocess.run(
        [sys.executable, "-c", PREPARE, str(int(number)), stage, *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 128 + number, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"Stopped by {signal.Signals(number).name}. Run the same command again to go "
        "on where it stopped."
    )
    workers = [int(pid) for pid in done.stdout.split()]
    assert len(workers) >= 2
    assert_all_end(workers)
    prepare = [sys.executable, "-m", "stackoverflow", "prepare", *flags]
    subprocess.run(prepare, cwd=ROOT, check=True, capture_output=True, timeout=300)
    assert TokenStore.open(tmp_path / "store", verify=True).users("train").size
