"""The one call that sets TensorFlow up for lanes, and its parts: threads and memory."""

import contextlib
import ctypes
import logging
import os
import sys

from tff_agg import checks
from tff_agg.processes import usable_cores
from tff_agg.runtime import gpus
from tff_agg.runtime.quiet import quiet_tensorflow

_log = logging.getLogger(__name__)

_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
# Numbers of the parameters in glibc's malloc.h, and what they are set to here.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEEP_ALL = 2**31 - 1
_GROW_BY = 64 * 2**20
_LARGEST_KEPT = 32 * 2**20  # glibc takes no more
# Python's own are 5 ms.
_TURN_SECONDS = 0.0005


def set_up_tensorflow(
    *, intra_op: int | None = None, inter_op: int | None = None
) -> tuple[str, ...]:
    """Imports TensorFlow and TFF, and sets them up for the fastest rounds.

    Call it once, before anything else imports TensorFlow. It changes settings of the
    whole process (docs/performance.md has the figures):

    - oneDNN is on: products of thin matrices are a third faster. An environment with
      `TF_ENABLE_ONEDNN_OPTS` keeps its own choice.
    - One thread inside an operation: every core has a lane (`configure_threads`).
    - Python's threads change over every half millisecond (`shorten_turns`).
    - Freed memory is kept for the next round (`keep_memory`).
    - Memory of GPUs is taken as it is needed (`gpus.grow_as_needed`).
    - The import writes nothing to the terminal but errors (`quiet_tensorflow`).

    Args:
      intra_op: Threads inside one operation; 1 where None.
      inter_op: Operations at the same time; the number of cores where None.

    Returns:
      What could not be set, a sentence for each; empty if all of it was. They are
      logged as warnings, too.

    Example:
      from tff_agg import runtime
      runtime.set_up_tensorflow()  # ()
      runtime.use('local')
    """
    too_late = "tensorflow" in sys.modules
    if not too_late:
        os.environ.setdefault(_ONEDNN, "1")
    quiet_tensorflow()
    from tff_agg.runtime.compile import private_api

    missed = []
    wanted = os.environ.get(_ONEDNN) not in ("0", "false")
    if wanted and not private_api.onednn_is_on():
        missed.append(
            "oneDNN stays off: TensorFlow was imported before set_up_tensorflow was "
            f"called; call it first, or set {_ONEDNN}=1 in the environment"
            if too_late
            else "oneDNN stays off: this build of TensorFlow is without it"
        )
    if not configure_threads(intra_op=intra_op, inter_op=inter_op):
        missed.append(
            "TensorFlow keeps the sizes of its thread pools: it ran something before "
            "set_up_tensorflow was called; call it first"
        )
    shorten_turns()
    if not gpus.grow_as_needed():
        missed.append(
            "TensorFlow keeps the memory of the GPUs that it took: it ran something "
            "before set_up_tensorflow was called; call it first"
        )
    if not keep_memory():
        missed.append("freed memory goes back to the system: this is not glibc")
    for sentence in missed:
        _log.warning("%s", sentence)
    return tuple(missed)


def configure_threads(
    *, intra_op: int | None = None, inter_op: int | None = None
) -> bool:
    """Sets the sizes of TensorFlow's two thread pools, if that is still possible.

    TensorFlow fixes them when it first runs anything. Lanes already keep all cores
    busy, so the fastest for training is one thread inside an operation (see
    docs/performance.md for figures).

    Args:
      intra_op: Threads inside one operation; 1 where None.
      inter_op: Operations at the same time; the number of cores where None.

    Returns:
      Whether the sizes now are as asked for. False: TensorFlow was already running.

    Example:
      if not tff_agg.runtime.configure_threads(intra_op=1):
        logging.info('TensorFlow keeps its thread pools')
    """
    import tensorflow as tf

    given = {
        "intra_op": 1 if intra_op is None else intra_op,
        "inter_op": usable_cores() if inter_op is None else inter_op,
    }
    intra, inter = (checks.whole(name, n, least=0) for name, n in given.items())
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(intra)
        tf.config.threading.set_inter_op_parallelism_threads(inter)
    return (
        tf.config.threading.get_intra_op_parallelism_threads() == intra
        and tf.config.threading.get_inter_op_parallelism_threads() == inter
    )


def shorten_turns() -> None:
    """Lets a thread take its turn at Python's interpreter ten times as soon.

    Lanes need it for a moment between two calls of TensorFlow. Where another thread
    reads clients or saves a round in Python, they would wait 5 ms for it each time.
    """
    sys.setswitchinterval(_TURN_SECONDS)


def keep_memory() -> bool:
    """Tells the C library to keep freed memory instead of returning it.

    A round frees tensors of the model's size and asks for as many again. Handed back to
    the system in between, each of their pages costs a fault and a clearing when it is
    touched next, which takes longer than the arithmetic on it. The process's memory
    stays at its peak.

    Returns:
      Whether it worked; False where the C library is not glibc.

    Example:
      >>> keep_memory()  # doctest: +SKIP
      True
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    settings = (
        (_MMAP_THRESHOLD, _LARGEST_KEPT),
        (_TRIM_THRESHOLD, _KEEP_ALL),
        (_TOP_PAD, _GROW_BY),
    )
    return all([library.mallopt(name, value) == 1 for name, value in settings])
