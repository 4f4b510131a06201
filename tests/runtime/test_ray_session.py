"""How a session on Ray begins where the machine is slow."""

import os

import pytest

from tff_agg.runtime.ray import session as ray_session

SLOW = Exception("The current node timed out during startup. This could happen …")
NO_ANSWER = FileNotFoundError(2, "No such file", "/tmp/x/logs/gcs_server.err")


@pytest.fixture
def starts(monkeypatch):
    """The folders of `ray.init`'s calls, of which none starts anything."""
    # Before Ray is imported: it reads its variables then, for all tests of a process.
    ray_session._ask_for_a_token()
    import ray

    folders: list[str] = []
    errors: list[Exception] = []

    def init(**arguments):
        folders.append(arguments["_temp_dir"])
        os.makedirs(folders[-1], exist_ok=True)
        if errors:
            raise errors.pop(0)

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    return folders, errors


def test_a_start_that_took_too_long_is_tried_again(starts):
    folders, errors = starts
    errors += [SLOW, NO_ANSWER]
    session = ray_session.RaySession()
    assert len(set(folders)) == 3
    assert [os.path.exists(path) for path in folders] == [False, False, True]
    session.close()
    assert not os.path.exists(folders[-1])


def test_it_is_not_tried_for_ever(starts):
    folders, errors = starts
    errors += [SLOW] * 4
    with pytest.raises(RuntimeError, match=r"in 3 attempts.*timed out during startup"):
        ray_session.RaySession()
    assert len(folders) == 3
    assert not any(map(os.path.exists, folders))


def test_other_errors_are_reported_at_once(starts):
    folders, errors = starts
    errors.append(ValueError("no such resource"))
    with pytest.raises(ValueError, match="no such resource"):
        ray_session.RaySession()
    assert len(folders) == 1
