"""The data and the runs that the tests of the binaries share."""

import pathlib
import shutil

import pytest

from tests import tiny_stores
from tests.recycling.written_runs import write_run


@pytest.fixture(scope="session")
def token_store(tmp_path_factory):
    return tiny_stores.shared_store(tmp_path_factory, users=40, words=40)


@pytest.fixture(scope="session")
def runs(token_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return tuple(write_run(folder / f"seed{s}", token_store, s) for s in range(4))


@pytest.fixture(scope="session")
def long_run(token_store, tmp_path_factory):
    """A run that is long enough to tell how long it remembers its noise."""
    folder = tmp_path_factory.mktemp("long") / "run"
    return write_run(folder, token_store, 0, rounds=48)


@pytest.fixture
def own_runs(runs, tmp_path):
    """Copies of two runs, whose reports a test may have changed."""
    folders = [tmp_path / "runs" / pathlib.Path(run).name for run in runs[:2]]
    for run, folder in zip(runs, folders, strict=False):
        shutil.copytree(run, folder)
    return tuple(map(str, folders))
