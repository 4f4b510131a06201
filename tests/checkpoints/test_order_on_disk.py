"""In which order the checkpoint store writes to the disk, and how often it waits."""

import os

import pytest

from tests.checkpoints.test_checkpoint_store import weights
from tff_agg.checkpoints import CheckpointStore


@pytest.mark.parametrize(
    ("size", "syncs"), [(100, 4), (20_000, 8)], ids=["in the manifest", "blobs"]
)
def test_how_often_a_round_waits_for_the_disk(tmp_path, monkeypatch, size, syncs):
    """Two new blobs and their folder; the manifest and its folder; the manifest that
    loses its iterate; the one that loses its state, and the folder if a blob goes."""
    store = CheckpointStore(tmp_path, keep_last={"iterate": 3})
    synced: list[int] = []
    fsync = os.fsync
    for number in range(6):
        synced.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda f: (synced.append(f), fsync(f)))
            iterate, buffers = weights(number, size), weights(number + 50, size)
            state = [*iterate, *buffers]
            store.save(
                number, {"iterate": iterate, "aggregate": iterate, "state": state}
            )
            store.discard({"state": 2}, durable=False)
    assert store.rounds("state") == [4, 5]
    assert len(synced) == syncs


def test_nothing_goes_before_what_names_it_is_gone_for_good(tmp_path, monkeypatch):
    """The order of steps on the disk when a round loses a blob."""
    store = CheckpointStore(tmp_path)
    for number in range(2):
        store.save(number, {"state": weights(number)})
    steps: list[str] = []
    for step in ("fsync", "replace", "unlink"):
        real = getattr(os, step)

        def noted(*args, step=step, real=real):
            steps.append(step)
            return real(*args)

        monkeypatch.setattr(os, step, noted)
    store.discard({"state": 1}, durable=False)
    assert steps[0] == "unlink", "the manifest, which held nothing else"
    assert steps[1:] == ["fsync", "unlink"], "its folder, and then the blob"
