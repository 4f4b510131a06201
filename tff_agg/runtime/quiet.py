"""Importing TensorFlow and TFF without their chatter.

TensorFlow's C++ code writes to file descriptor 2 while it is imported: lines about
CUDA libraries that are registered twice or not there, about CPU features and TensorRT,
some of them at the level of errors. Hiding that level would hide real errors as well.
So the descriptor is caught for the length of the import, known lines are dropped, and
the rest is passed on.
"""

import contextlib
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator

#: A line that matches one of these is of no use to anybody.
CHATTER = (
    r"Unable to register cu(DNN|FFT|BLAS) factory",
    r"computation placer already registered",
    r"Could not find cuda drivers",
    r"Could not find TensorRT|TF-TRT Warning",
    r"optimized to use available CPU instructions",
    r"enable the following instructions",
    r"oneDNN custom operations are on",
    r"Could not load dynamic library '?lib(cu|nv)",
    r"cudart.*(dlerror|not have a GPU)",
    r"failed call to cuInit|Cannot dlopen some GPU libraries|Skipping registering GPU",
    r"All log messages before absl::InitializeLog\(\) is called",
    r"Set ray log level from environment variable",
)

_chatter = re.compile("|".join(f"(?:{pattern})" for pattern in CHATTER))

# Of third parties, at import; all of them end once the import does.
_IMPORT_WARNINGS = (DeprecationWarning, FutureWarning, UserWarning)


def quiet_tensorflow() -> None:
    """Imports TensorFlow and TFF; what they say on the way, bar errors, is not shown.

    Call it first in a program. Errors, warnings and logs after it come through as ever,
    but for warnings of TensorFlow's C++ code. Among them is a line for each operation
    that fails, with the values it was given: a client's data. Where the environment
    sets `TF_CPP_MIN_LOG_LEVEL`, that is kept: 1 shows these warnings.

    Example:
      >>> from tff_agg.runtime.quiet import quiet_tensorflow
      >>> quiet_tensorflow()
      >>> import tensorflow as tf  # nothing on the terminal
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with without_chatter(), warnings.catch_warnings():
        for category in _IMPORT_WARNINGS:
            warnings.simplefilter("ignore", category)
        import tensorflow  # noqa: F401
        import tensorflow_federated  # noqa: F401


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """Holds back what is written to file descriptor 2 and drops known chatter.

    The rest is written when the block ends, also when it ends with an error. A process
    that dies inside the block takes what was held back with it.

    Yields:
      Nothing.
    """
    _flush(sys.stderr)
    try:
        original = os.dup(2)
    except OSError:  # No standard error at all: nothing to keep quiet.
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            _flush(sys.stderr)
            os.dup2(original, 2)
            os.close(original)
            held.seek(0)
            for line in held:
                if not _chatter.search(line.decode(errors="replace")):
                    os.write(2, line)


def _flush(stream: object) -> None:
    flush = getattr(stream, "flush", None)
    if flush is not None:
        with contextlib.suppress(ValueError, OSError):
            flush()
