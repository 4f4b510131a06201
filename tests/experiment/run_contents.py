"""Reads a run folder back, to compare runs bit for bit."""

import pathlib

import tree

from tff_agg import checkpoints

TABLES = ("metrics.csv", "validation.csv", "test.csv")


def contents(folder):
    """Returns all that must not depend on where a run was interrupted."""
    folder = pathlib.Path(folder)
    store = checkpoints.CheckpointStore(folder / "checkpoints")
    found = {name: (folder / name).read_bytes() for name in TABLES}
    for path in (folder / "checkpoints").rglob("*"):
        if path.is_file():
            found[path.name] = path.read_bytes()
    for name in ("iterate", "aggregate", "state"):
        for number, value in store.iterate(name):
            leaves = tree.flatten(value)
            found[name, number] = [(x.dtype, x.shape, x.tobytes()) for x in leaves]
    return found
