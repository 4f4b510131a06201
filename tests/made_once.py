"""What tests share though different processes run them: made by the first that asks."""

import fcntl
import os
import pathlib
import pickle
from collections.abc import Callable
from typing import Any


def made_once(
    factory: Any, name: str, make: Callable[[pathlib.Path], Any]
) -> tuple[pathlib.Path, Any]:
    """Returns a folder, and what `make(folder)` has returned when it filled it.

    Args:
      factory: pytest's `tmp_path_factory`, whose folder belongs to this run of tests.
      name: The same folder for the same name.
      make: Called by one process; the others wait. Its result is pickled.
    """
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder, result = root / name, root / f"{name}.pickle"
    with open(root / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            folder.mkdir()
            result.write_bytes(pickle.dumps(make(folder)))
    return folder, pickle.loads(result.read_bytes())
