"""A tiny data set and a tiny run that all training tests share."""

import pytest

from stackoverflow.task import StackOverflow
from tests import tiny_stores
from tests.experiment import train_binary
from tests.made_once import made_once
from tff_agg.experiment.build import Compiled


@pytest.fixture(scope="session")
def token_store(tmp_path_factory):
    return tiny_stores.shared_store(tmp_path_factory, users=250, words=40)


@pytest.fixture(scope="session")
def finished(token_store, tmp_path_factory):
    """The folder of a run of the binary that nothing broke, and what it showed."""
    folder, done = made_once(
        tmp_path_factory,
        "finished",
        lambda folder: train_binary.run(token_store, folder / "run"),
    )
    assert done.returncode == 0, done.stderr
    return folder / "run", done


@pytest.fixture
def make_config(token_store):
    def make(**changes):
        values = {"store": token_store, "insecure_noise_seed": 7} | changes
        return train_binary.tiny_config(**values)

    return make


@pytest.fixture
def make_task(make_config):
    return lambda **changes: StackOverflow(make_config(**changes))


@pytest.fixture(scope="session")
def cache():
    """Shared by all runs here, to save time; each run's state is its own."""
    with Compiled() as made:
        yield made
