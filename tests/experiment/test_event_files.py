"""Event files, and what is told when they cannot be written."""

import errno
import os
import resource

import pytest
import tensorflow as tf

from tff_agg.experiment import event_files


def scalars(folder):
    """Returns the (step, name, value) of all event files in a folder."""
    found = []
    for path in sorted(folder.glob("events.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                number = tf.make_ndarray(value.tensor).item()
                found.append((event.step, value.tag, number))
    return found


def test_numbers_are_on_the_disk_when_write_returns(tmp_path):
    events = event_files.EventFiles(tmp_path)
    events.write(1, {"loss": 0.5})
    assert scalars(tmp_path) == [(1, "loss", 0.5)]
    events.write(2, {"loss": 0.25, "perplexity": float("inf")})
    events.close()
    largest = tf.float32.max
    assert scalars(tmp_path)[1:] == [(2, "loss", 0.25), (2, "perplexity", largest)]


def test_a_file_in_the_place_of_the_folder_is_an_os_error(tmp_path):
    path = tmp_path / "file"
    path.write_text("in the way")
    with pytest.raises(OSError) as caught:
        event_files.EventFiles(path / "tensorboard").write(1, {"loss": 0.5})
    assert caught.value.errno == errno.ENOTDIR
    assert caught.value.filename == str(path / "tensorboard")


def test_a_file_that_cannot_grow_is_an_os_error(tmp_path):
    events = event_files.EventFiles(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        with pytest.raises(OSError) as caught:
            for step in range(100):
                events.write(step, {"loss": 0.5})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(tmp_path)


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EDQUOT]
)
def test_the_number_is_read_from_the_words(number):
    message = f"run/events.out; {os.strerror(number)}\n\tCould not flush events file."
    error = event_files._os_error(message, "run")
    assert (error.errno, error.filename) == (number, "run")


def test_other_errors_are_errors_of_the_disk_at_large():
    error = event_files._os_error("something odd", "run")
    assert error.errno == errno.EIO and "something odd" in str(error)
