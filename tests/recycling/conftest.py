"""The data and the runs that the tests of the binaries share."""

import pytest

from stackoverflow.data import prepared as stores
from tests.recycling.written_runs import write_run


@pytest.fixture(scope="session")
def token_store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return stores.ensure_store("synthetic", None, folder, users=40, words=40, workers=1)


@pytest.fixture(scope="session")
def runs(token_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return tuple(write_run(folder / f"seed{s}", token_store, s) for s in range(4))
