"""The order of the suite: quick tests, the longest files, then short files again."""

import atexit
import collections
import gc
import os
import pathlib
import shutil
import tempfile

_HERE = pathlib.Path(__file__).parent
# Many short files without TensorFlow.
_LAST = (_HERE / "privacy", _HERE / "pds")


def _keep_what_jax_compiles():
    """Lets this process and those that it starts compile the same program once.

    Every run makes its functions anew, and JAX compiles a function that it does not
    know. What takes longer than a tenth of a second is read back from a folder instead,
    in an eighth of the time.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker:
        # In the folder of the process that has started it, and removes it.
        folder = os.path.join(os.environ["JAX_COMPILATION_CACHE_DIR"], worker)
    else:
        folder = tempfile.mkdtemp(prefix="compiled_by_jax_")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


# Before anything imports JAX.
_keep_what_jax_compiles()


def pytest_collection_modifyitems(items):
    """Puts files with slow tests late, those with the most of them before the others.

    Failures of most quick tests show in the first minutes. The processes that share the
    suite take the next file whenever they are done with one, in this order; the short
    files at its end make them end at about the same time.
    """
    slow = collections.Counter(
        item.path for item in items if item.get_closest_marker("slow")
    )

    def place(item):
        if item.path.is_relative_to(_HERE) and item.path.parent in _LAST:
            return 2, 0
        return int(slow[item.path] > 0), -slow[item.path]

    items.sort(key=place)


def pytest_collection_finish():
    """Leaves what collecting has imported out of every later garbage collection.

    That is a million objects of TensorFlow, TFF and JAX, which all stay.
    """
    gc.collect()
    gc.freeze()
