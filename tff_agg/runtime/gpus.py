"""The memory of GPUs: taken as it is needed, or shared out between lanes.

Both have to be set before TensorFlow runs anything: it then takes nearly all memory of
every GPU that it sees, unless it was told otherwise.
"""

import math

from tff_agg import checks

_TOO_LATE = (
    "TensorFlow has run something already, and took the GPUs as they are: create the "
    "runtime before"
)


def grow_as_needed() -> bool:
    """Takes memory of GPUs as it is needed; without a GPU it does nothing.

    Returns:
      Whether that is so now. False: TensorFlow was already running.

    Example:
      >>> grow_as_needed()  # doctest: +SKIP
      True
    """
    import tensorflow as tf

    try:
        for gpu in tf.config.list_physical_devices("GPU"):
            if tf.config.get_logical_device_configuration(gpu) is None:
                tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:
        return False
    return True


def share(gpus_per_lane: float, memory_mb: float | None) -> None:
    """Makes of each GPU as many logical ones as lanes are to share it.

    Args:
      gpus_per_lane: The part of a GPU that a lane has: 1, 1/2, 1/3, …
      memory_mb: The memory of each, in MB; None lets a whole GPU grow as needed.

    Raises:
      ValueError: The part is none, lanes share a GPU without a limit of memory, or
        there is no GPU.
      RuntimeError: TensorFlow has run something already.
    """
    import tensorflow as tf

    parts = parts_of(gpus_per_lane)
    if memory_mb is None:
        if parts > 1:
            raise ValueError(
                f"gpus_per_lane={gpus_per_lane:g} lets {parts} lanes share a GPU: "
                "gpu_memory_mb must say how much of its memory each may take"
            )
        return
    checks.number("gpu_memory_mb", memory_mb, "(0, inf)")
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise ValueError(
            f"gpu_memory_mb={memory_mb:g}: TensorFlow sees no GPU whose memory could "
            "be shared out"
        )
    wanted = [tf.config.LogicalDeviceConfiguration(memory_limit=memory_mb)] * parts
    for gpu in gpus:
        if tf.config.get_logical_device_configuration(gpu) == wanted:
            continue
        try:
            tf.config.experimental.set_memory_growth(gpu, False)
            tf.config.set_logical_device_configuration(gpu, wanted)
        except (RuntimeError, ValueError) as error:
            raise RuntimeError(f"gpu_memory_mb={memory_mb:g}: {_TOO_LATE}") from error


def parts_of(gpus_per_lane: float) -> int:
    """Returns how many lanes share a GPU.

    Example:
      >>> parts_of(0.25), parts_of(1.0)
      (4, 1)
    """
    checks.number("gpus_per_lane", gpus_per_lane, "(0, inf)")
    parts = round(1 / gpus_per_lane)
    if gpus_per_lane > 1 or not math.isclose(parts * gpus_per_lane, 1, rel_tol=0.02):
        raise ValueError(
            f"gpus_per_lane={gpus_per_lane:g} must be 1, 1/2, 1/3, …: a lane of this "
            "process has one GPU at most, or shares one with others"
        )
    return parts
