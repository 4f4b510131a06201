"""The sizes of TensorFlow's thread pools, and turns at Python's interpreter."""

import contextlib
import sys

from tff_agg import checks
from tff_agg.processes import usable_cores

# Python's own are 5 ms.
_TURN_SECONDS = 0.0005


def shorten_turns() -> None:
    """Lets a thread take its turn at Python's interpreter ten times as soon.

    Lanes need it for a moment between two calls of TensorFlow. Where another thread
    reads clients or saves a round in Python, they would wait 5 ms for it each time.
    """
    sys.setswitchinterval(_TURN_SECONDS)


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
