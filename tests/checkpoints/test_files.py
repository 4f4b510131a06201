"""Files that appear whole or not at all, and what is told when they cannot."""

import errno
import os
import pickle
import stat
import subprocess
import sys

import pytest

from tff_agg import files


@pytest.fixture(params=[False, True], ids=["one writer", "many writers"])
def options(request):
    return {"many_writers": request.param}


def test_a_file_appears_when_it_is_whole(tmp_path, options):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with files.replacing(path, **options) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, options, error):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with pytest.raises(error), files.replacing(path, **options) as file:
        file.write(b"new")
        raise error
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_step_that_fails_leaves_nothing_and_names_the_file(
    tmp_path, options, step, monkeypatch
):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError) as caught:
        files.write_text(tmp_path / "f", "new", **options)
    assert caught.value.filename == str(tmp_path / "f")
    assert not os.listdir(tmp_path)


def test_what_a_kill_left_is_no_hindrance(tmp_path):
    (tmp_path / "f.new").write_text("half")
    (tmp_path / "f.new").chmod(0o400)
    files.write_text(tmp_path / "f", "whole", mode=0o644)
    assert (tmp_path / "f").read_text() == "whole"
    assert os.listdir(tmp_path) == ["f"]


def test_two_writers_at_once_do_not_mix(tmp_path):
    path = tmp_path / "f"
    with files.replacing(path, many_writers=True) as first:
        first.write(b"first, ")
        with files.replacing(path, many_writers=True) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
        first.write(b"whole")
    assert path.read_bytes() == b"first, whole"


def test_permissions(tmp_path):
    mask = os.umask(0o077)
    try:
        files.write_text(tmp_path / "default", "")
        files.write_text(tmp_path / "all", "", mode=0o644)
        files.write_text(tmp_path / "owner", "", mode=0o600)
    finally:
        os.umask(mask)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    assert modes == {"default": 0o600, "all": 0o644, "owner": 0o600}


def test_only_what_must_last_is_synced(tmp_path, monkeypatch):
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with files.replacing(tmp_path / "f", durable=False):
        pass
    assert not synced
    with files.replacing(tmp_path / "f"):
        pass
    assert len(synced) == 2  # the file, and the name in its folder


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        files.write_text(tmp_path / "none" / "f", "")
    assert str(tmp_path / "none") in str(caught.value)


def test_a_path_that_is_there_is_kept():
    with pytest.raises(OSError) as caught, files.path_in_errors("mine"):
        raise OSError(errno.EIO, "broken", "theirs")
    assert caught.value.filename == "theirs"


def test_a_name_goes_from_process_to_process():
    with pytest.raises(OSError) as caught, files.path_in_errors("mine"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert pickle.loads(pickle.dumps(caught.value)).filename == "mine"


@pytest.mark.parametrize("number", files.CAUSES)
def test_known_causes_are_told_with_what_helps(number):
    text = files.explain(OSError(number, os.strerror(number), "run/f"))
    cause = files.CAUSES[number]
    assert text.startswith(f"run/f: {cause.reason}.")
    assert cause.remedy in text and "run the same command again" in text
    assert files.reason_of(OSError(number, "")) == cause.reason


def test_other_errors_are_told_as_they_are():
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", "f")
    assert files.explain(missing) == str(missing)
    assert files.explain(ConnectionError("no server")) == "no server"
    assert files.reason_of(OSError("odd")) == "odd"


def test_it_is_light():
    code = "import sys, tff_agg.files; print('tensorflow' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() == "False"


def test_staged_files_are_made_durable_together(tmp_path, monkeypatch):
    steps: list[str] = []
    for step in ("fsync", "replace"):
        real = getattr(os, step)

        def call(*arguments, step=step, real=real):
            steps.append(step)
            real(*arguments)

        monkeypatch.setattr(os, step, call)
    paths = [tmp_path / name for name in "ab"]
    staged = [(files.stage(path, b"1", b"2"), path) for path in paths]
    assert not steps and not any(path.exists() for path in paths)
    files.publish(staged)
    assert steps == ["fsync", "fsync", "replace", "replace", "fsync"]
    assert [path.read_bytes() for path in paths] == [b"12", b"12"]
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
