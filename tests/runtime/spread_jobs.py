"""Jobs of the tests, apart from them: a process that runs one has less to import."""

import os
import signal
import sys
import time

from tff_agg.runtime.spread import tell


def half(number):
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number // 2


def meet(folder, number):
    """Ends when another job of the folder has begun, too."""
    (folder / str(number)).touch()
    deadline = time.monotonic() + 60
    while len(list(folder.iterdir())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return os.getpid()


def wait_for(path, number):
    while number == 0 and not path.exists():
        time.sleep(0.01)
    return number


def die(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 2:
        os._exit(3)
    return number


def sleep_for_ever(folder, number):
    (folder / str(os.getpid())).touch()
    if number:
        time.sleep(600)


def process_of(item):
    return item, os.getpid()


def tell_and_halve(number):
    tell(("half of", number))
    return half(number)


def raise_what_cannot_travel(_):
    class Local(Exception):
        pass

    raise Local("far away")


def return_what_cannot_travel(_):
    return lambda: 1


def either(number):
    jobs = (raise_what_cannot_travel, return_what_cannot_travel)
    return jobs[number](number)


def is_loaded(module):
    os.environ["WAS_LOADED"] = str(module in sys.modules)


def what_set_up_saw(function, _):
    del function
    return os.environ["WAS_LOADED"]


def refuse():
    raise OSError("no room")


def kind(item):
    return item[0]
