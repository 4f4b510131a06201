"""A run can be stopped anywhere and goes on to the very same bits."""

import functools
import json
import logging
import os

import numpy as np
import pytest

from tests.experiment.run_contents import contents
from tff_agg import checkpoints
from tff_agg.experiment.run import loop
from tff_agg.experiment.run import run as training

SAVES = checkpoints.CheckpointStore


class Interrupted(BaseException):
    """What no handler of the code under test may swallow."""


_unbroken: dict[str, tuple] = {}


@pytest.fixture
def run(cache):
    return functools.partial(training.run, compiled=cache)


@pytest.fixture
def unbroken(tmp_path_factory, run):
    made = _unbroken

    def get(config):
        key = json.dumps(config.config.to_json(), sort_keys=True)
        if key not in made:
            folder = tmp_path_factory.mktemp("unbroken") / "run"
            outcome = run(config, folder)
            made[key] = (contents(folder), outcome)
        return made[key]

    return get


def run_until(run, monkeypatch, target, name, calls, config, folder):
    """Runs until the given call of a function, which then breaks off."""
    original, count = getattr(target, name), 0

    def breaking(*arguments, **named):
        nonlocal count
        count += 1
        if count == calls:
            raise Interrupted
        return original(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(target, name, breaking)
        with pytest.raises(Interrupted):
            run(config, folder)


@pytest.mark.parametrize("save", [1, 4, 7])
def test_interrupted_between_rounds(
    run, monkeypatch, tmp_path, make_task, unbroken, save
):
    config = make_task()
    run_until(
        run,
        monkeypatch,
        checkpoints.CheckpointStore,
        "commit",
        save,
        config,
        tmp_path / "run",
    )
    outcome = run(config, tmp_path / "run")
    expected, first_outcome = unbroken(config)
    assert contents(tmp_path / "run") == expected
    assert outcome.test == first_outcome.test


@pytest.mark.parametrize("group_users", [1, 3])
def test_groups_of_users_resume_alike(
    run, monkeypatch, tmp_path, make_task, unbroken, group_users
):
    config, folder = make_task(group_users=group_users), tmp_path / "run"
    run_until(
        run, monkeypatch, checkpoints.CheckpointStore, "commit", 4, config, folder
    )
    with pytest.raises(
        loop.IdentityError,
        match=rf"group_users: was {group_users}, is now 2",
    ):
        run(make_task(group_users=2), folder)
    run(config, folder)
    assert contents(folder) == unbroken(config)[0]


def test_how_users_are_grouped_changes_the_last_bits_at_most(run, tmp_path, make_task):
    def last_iterate(group_users):
        folder = tmp_path / str(group_users)
        run(make_task(group_users=group_users), folder)
        store = checkpoints.CheckpointStore(folder / "checkpoints")
        return store.load(6, "iterate")

    first, second = last_iterate(1), last_iterate(3)
    for one, other in zip(first.values(), second.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def test_interrupted_in_the_middle_of_saves(
    run, monkeypatch, tmp_path, make_task, unbroken
):
    config = make_task()
    for renames in (3, 8, 11):
        run_until(run, monkeypatch, os, "replace", renames, config, tmp_path / "run")
    run(config, tmp_path / "run")
    assert contents(tmp_path / "run") == unbroken(config)[0]


def test_interrupted_before_the_last_save_has_tidied_up(
    run, monkeypatch, tmp_path, make_task, unbroken
):
    config, folder = make_task(), tmp_path / "run"
    run_until(run, monkeypatch, SAVES, "_apply_policies", 7, config, folder)
    store = checkpoints.CheckpointStore(folder / "checkpoints")
    assert store.rounds("state") == [4, 5, 6], "two more than are kept"
    run(config, folder)
    assert contents(folder) == unbroken(config)[0]


def test_a_damaged_state_is_named_and_the_one_before_it_used(
    run, monkeypatch, tmp_path, make_task, unbroken, caplog
):
    config = make_task()
    folder = tmp_path / "run"
    run_until(run, monkeypatch, SAVES, "commit", 6, config, folder)
    store = checkpoints.CheckpointStore(folder / "checkpoints")
    latest = store.rounds("state")[-1]
    assert store.rounds("state") == [3, 4]
    path = folder / "checkpoints" / "manifests" / f"{latest:09d}.json"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        run(config, folder)
    assert path.name in caplog.text
    assert contents(folder) == unbroken(config)[0]


def test_weights_without_any_state_are_not_trained_over(run, tmp_path, make_task):
    config = make_task()
    run(config, tmp_path / "run")
    store = checkpoints.CheckpointStore(tmp_path / "run" / "checkpoints")
    kept = store.load(1, "iterate")
    for path in (tmp_path / "run" / "checkpoints" / "manifests").iterdir():
        path.unlink()
    store = checkpoints.CheckpointStore(tmp_path / "run" / "checkpoints")
    store.save(1, {"iterate": kept})
    with pytest.raises(loop.ResumeError, match="spend the privacy budget again"):
        run(config, tmp_path / "run")


def test_a_changed_configuration_is_refused_with_what_changed(run, tmp_path, make_task):
    run(make_task(), tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(loop.IdentityError) as caught:
        run(make_task(k=3, clip_norm=0.25), tmp_path / "run")
    assert "clip_norm: was 1.0, is now 0.25" in str(caught.value)
    assert "k: was 2, is now 3" in str(caught.value)
    assert contents(tmp_path / "run") == before


def test_a_second_process_is_refused(run, tmp_path, make_task):
    with (
        checkpoints.RunLock(tmp_path / "run"),
        pytest.raises(checkpoints.RunLockedError, match=str(os.getpid())),
    ):
        run(make_task(), tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.slow
def test_averager_and_shift_resume_alike(
    run, monkeypatch, tmp_path, make_task, unbroken
):
    config = make_task(
        averager="ema", ema_decay=0.5, pds=True, pds_period=4, mechanism="honaker"
    )
    run_until(
        run,
        monkeypatch,
        checkpoints.CheckpointStore,
        "commit",
        4,
        config,
        tmp_path / "run",
    )
    run(config, tmp_path / "run")
    assert contents(tmp_path / "run") == unbroken(config)[0]
