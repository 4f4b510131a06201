"""Event files, and what is told when they cannot be written."""

import errno
import math
import resource

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from tff_agg.experiment.run import event_files


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


def test_a_step_is_one_record_that_tensorboard_reads(tmp_path):
    events = event_files.EventFiles(tmp_path)
    events.write(1, {"loss": 0.5, "accuracy": 0.25})
    events.write(1, {"loss": 0.75})
    events.write(2, {"loss": float("nan"), "accuracy": True})
    events.close()
    (path,) = tmp_path.glob("events.*")
    assert len(list(tf.data.TFRecordDataset(str(path)))) == 3
    shown = event_accumulator.EventAccumulator(str(tmp_path)).Reload()
    found = {
        tag: [
            (e.step, tf.make_ndarray(e.tensor_proto).item()) for e in shown.Tensors(tag)
        ]
        for tag in shown.Tags()["tensors"]
    }
    assert found["accuracy"] == [(1, 0.25), (2, 1.0)]
    assert found["loss"][0] == (1, 0.5) and math.isnan(found["loss"][1][1])


def test_files_of_one_second_have_names_of_their_own(tmp_path):
    for step in range(3):
        events = event_files.EventFiles(tmp_path)
        events.write(step, {"loss": 0.5})
        events.close()
    assert len(list(tmp_path.glob("events.*"))) == 3
    assert sorted(scalars(tmp_path)) == [(step, "loss", 0.5) for step in range(3)]
