"""A tiny data set and a tiny scale that the studies' tests share."""

import pytest

from stackoverflow.studies.scales import SCALES
from tests import tiny_stores
from tests.studies import tiny


@pytest.fixture(scope="session")
def token_store(tmp_path_factory):
    return tiny_stores.shared_store(tmp_path_factory, users=250, words=40)


@pytest.fixture
def tiny_scale(monkeypatch):
    """Makes the scale 'tiny' one of seconds."""
    monkeypatch.setitem(SCALES, "tiny", tiny.scale())
