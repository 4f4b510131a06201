"""A run's numbers as event files, for TensorBoard."""

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_LARGEST = float(np.finfo(np.float32).max)


class EventFiles:
    """Writes scalars to a new event file in a folder.

    TensorFlow tells of a full disk by an error of its own; here it is an OSError, like
    that of every other file.

    Example:
      >>> events = EventFiles('run/tensorboard')
      >>> events.write(1, {'loss': 0.5})
      >>> events.close()
    """

    def __init__(self, folder: str | os.PathLike):
        """Makes the folder and a file in it."""
        import tensorflow as tf

        self._folder = os.fspath(folder)
        with _as_os_error(self._folder):
            self._writer: Any = tf.summary.create_file_writer(self._folder)

    def write(self, step: int, facts: Mapping[str, float]) -> None:
        """Writes the numbers of a step out, so that an error is told in its step."""
        import tensorflow as tf

        with _as_os_error(self._folder):
            with self._writer.as_default():
                for name, value in facts.items():
                    # The perplexity of a run that diverged may be beyond a float.
                    limited = min(max(value, -_LARGEST), _LARGEST)
                    tf.summary.scalar(name, limited, step=step)
            self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        with _as_os_error(self._folder):
            self._writer.close()


@contextlib.contextmanager
def _as_os_error(folder: str) -> Iterator[None]:
    """Turns an error of TensorFlow's file system into the OSError that caused it."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        number = _error_number(error.message)
        raise OSError(number, os.strerror(number), folder) from error


def _error_number(message: str) -> int:
    """Returns the number of the system's error that a message quotes.

    TensorFlow keeps the system's words only; its own codes are coarser. The longest
    words win: some errors' words are part of others'.
    """
    quoted = [n for n in errno.errorcode if os.strerror(n) in message]
    return max(quoted, key=lambda n: len(os.strerror(n)), default=errno.EIO)
