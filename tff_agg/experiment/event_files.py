"""A run's numbers as event files, for TensorBoard."""

import contextlib
import errno
import glob
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_LARGEST = float(np.finfo(np.float32).max)


class EventFiles:
    """Writes scalars to a new event file in a folder, each step and name once.

    What earlier files in the folder hold already is not written again, so that a step
    that is reported twice is shown once.

    TensorFlow reports a full disk by an error of its own; here it is an OSError, like
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
        os.makedirs(self._folder, exist_ok=True)
        self._written = _written(self._folder)
        with _as_os_error(self._folder):
            self._writer: Any = tf.summary.create_file_writer(self._folder)

    def write(self, step: int, facts: Mapping[str, float]) -> None:
        """Writes a step's numbers out, so that an error is reported in its step."""
        import tensorflow as tf

        with _as_os_error(self._folder):
            with self._writer.as_default():
                for name, value in facts.items():
                    if (step, name) in self._written:
                        continue
                    # The perplexity of a run that diverged may be beyond a float.
                    limited = min(max(value, -_LARGEST), _LARGEST)
                    tf.summary.scalar(name, limited, step=step)
                    self._written.add((step, name))
            self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        with _as_os_error(self._folder):
            self._writer.close()


def _written(folder: str) -> set[tuple[int, str]]:
    """Returns the steps and names that the folder's event files hold."""
    import tensorflow as tf

    found: set[tuple[int, str]] = set()
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "events.*"))):
        # A killed process leaves its last record half-written.
        with contextlib.suppress(tf.errors.DataLossError):
            for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
                event = tf.compat.v1.Event.FromString(record)
                found.update((event.step, value.tag) for value in event.summary.value)
    return found


@contextlib.contextmanager
def _as_os_error(folder: str) -> Iterator[None]:
    """Turns an error of TensorFlow's file system into the OSError that caused it."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        raise _os_error(error.message, folder) from error


def _os_error(message: str, folder: str) -> OSError:
    """Returns the system's error that a message of TensorFlow quotes.

    TensorFlow keeps the system's words only; its own codes are coarser. The longest
    words win: some errors' words are part of others'.
    """
    quoted = [n for n in errno.errorcode if os.strerror(n) in message]
    if not quoted:
        return OSError(errno.EIO, message, folder)
    number = max(quoted, key=lambda n: len(os.strerror(n)))
    return OSError(number, os.strerror(number), folder)
