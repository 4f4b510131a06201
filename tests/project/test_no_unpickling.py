"""Files are data: nothing that a folder holds is ever run."""

import ast
import os
import pathlib
import pickle

import numpy as np
import pytest

from tests.checkpoints import test_damaged_store as stores
from tests.data import test_damaged_token_store as token_stores
from tests.experiment import test_damaged_run_folder as runs

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ("tff_agg", "stackoverflow", "cifar", "pcvr", "pds", "examples")
# Modules that make objects of bytes by running what the bytes say.
PICKLES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
PICKLES |= {"pandas", "torch", "yaml"}
ALLOWED = (
    "cifar/data.py",  # the published layout; reads arrays and nothing else
    "tff_agg/runtime/",  # between processes of our own
)


def sources():
    return [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_nothing_is_imported_that_unpickles():
    found = {
        path.relative_to(ROOT).as_posix()
        for path in sources()
        for name in imported(ast.parse(path.read_text()))
        if name.partition(".")[0] in PICKLES
    }
    assert len(sources()) > 100
    assert [name for name in sorted(found) if not name.startswith(ALLOWED)] == []


def test_numpy_is_never_asked_to_unpickle():
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant) and not node.value.value


class Bomb:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.mark.parametrize("kind", ["pickle", "npy"])
@pytest.mark.parametrize(
    "module, check",
    [
        (stores, stores.check_readers),
        (token_stores, token_stores.check),
        (runs, lambda folder: runs.check(folder, None, same_only=False)),
    ],
    ids=["checkpoints", "token store", "run folder"],
)
def test_a_pickle_in_place_of_any_file_is_not_run(tmp_path, module, check, kind):
    mark = tmp_path / "mark"
    bomb = Bomb(os.fspath(mark))
    content = pickle.dumps(bomb)
    if kind == "npy":
        np.save(tmp_path / "x.npy", np.array([bomb], object), allow_pickle=True)
        content = (tmp_path / "x.npy").read_bytes()
    pickle.loads(content[content.index(b"\x80") :] if kind == "npy" else content)
    mark.rmdir()  # it works
    folder = module.write_whole(tmp_path / "folder")
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        before = path.read_bytes()
        path.write_bytes(content)
        check(folder)
        path.write_bytes(before)
    assert not mark.exists()
