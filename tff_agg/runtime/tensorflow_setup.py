"""The one call that sets TensorFlow up for lanes."""

import logging
import os
import sys

from tff_agg.runtime import gpus
from tff_agg.runtime.memory import keep_memory
from tff_agg.runtime.quiet import quiet_tensorflow
from tff_agg.runtime.threads import configure_threads, shorten_turns

_log = logging.getLogger(__name__)

_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"


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
