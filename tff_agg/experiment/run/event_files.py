"""A run's numbers as event files, for TensorBoard."""

import contextlib
import functools
import glob
import itertools
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
from tensorboard.compat.proto import event_pb2
from tensorboard.plugins.scalar import summary_v2
from tensorboard.summary.writer import record_writer

_LARGEST = float(np.finfo(np.float32).max)
# TensorBoard tells files of one second and process apart by their last number.
_numbers = itertools.count()


class EventFiles:
    """Writes scalars to event files in a folder, each step and name once.

    A file is made when there is something to write.

    What earlier files in the folder hold already is not written again, so that a step
    that is reported twice is shown once. A step is one record: TensorFlow's own writer
    makes one of each number, and takes as long for a round as a small server step.

    Example:
      >>> events = EventFiles('run/tensorboard')
      >>> events.write(1, {'loss': 0.5})
      >>> events.close()
    """

    def __init__(self, folder: str | os.PathLike):
        """Names the folder; nothing is read or written yet."""
        self._folder = os.fspath(folder)
        self._file: BinaryIO | None = None
        self._records: Any = None

    @functools.cached_property
    def _written(self) -> set[tuple[int, str]]:
        """What the folder's event files hold already."""
        return _written(self._folder)

    def _begin(self) -> None:
        """Makes the folder and a file in it."""
        os.makedirs(self._folder, exist_ok=True)
        ending = f"{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        name = f"events.out.tfevents.{time.time():010.0f}.{ending}.v2"
        # Closed by `close`, rounds later.
        self._file = open(os.path.join(self._folder, name), "wb")  # noqa: SIM115
        self._records = record_writer.RecordWriter(self._file)
        self._add(event_pb2.Event(file_version="brain.Event:2"))

    def write(self, step: int, facts: Mapping[str, float]) -> None:
        """Writes a step's numbers out, so that an error is reported in its step."""
        event = event_pb2.Event(step=step)
        for name, value in facts.items():
            if (step, name) in self._written:
                continue
            # The perplexity of a run that diverged may be beyond a float.
            limited = min(max(value, -_LARGEST), _LARGEST)
            event.summary.MergeFrom(summary_v2.scalar_pb(name, limited))
            self._written.add((step, name))
        if event.summary.value:
            with _naming(self._folder):
                self._add(event)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            with _naming(self._folder):
                self._file.close()

    def _add(self, event: event_pb2.Event) -> None:
        if self._file is None:
            self._begin()
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
        self._records.flush()


def _written(folder: str) -> set[tuple[int, str]]:
    """Returns the steps and names that the folder's event files hold."""
    found: set[tuple[int, str]] = set()
    paths = sorted(glob.glob(os.path.join(glob.escape(folder), "events.*")))
    if not paths:
        return found
    import tensorflow as tf

    for path in paths:
        # A killed process leaves its last record half-written.
        with contextlib.suppress(tf.errors.DataLossError):
            for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
                event = event_pb2.Event.FromString(record)
                found.update((event.step, value.tag) for value in event.summary.value)
    return found


@contextlib.contextmanager
def _naming(folder: str) -> Iterator[None]:
    """Lets errors of the disk name the folder."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, folder) from error
