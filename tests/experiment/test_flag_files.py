"""Flag files that include one another."""

import os
import pathlib

import pytest
from absl import flags as absl_flags

import stackoverflow
from stackoverflow.task import StackOverflowConfig
from tff_agg.experiment.commands import flag_files, flags

CONFIGS = pathlib.Path(stackoverflow.__file__).parent / "configs"


def write(folder, **files):
    """Writes files of flags; returns the path of the first."""
    for name, lines in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines))
    return folder / next(iter(files)).replace("__", "/")


def test_an_inner_file_is_looked_for_beside_the_outer_one(tmp_path, monkeypatch):
    write(
        tmp_path,
        runs__mine=["# Mine.", "--flagfile=../shared/all", "", "--k=5"],
        shared__all=["-flagfile=more", "// also a remark", " --k=3 "],
        shared__more=["--pds"],
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    expected = ["--rounds=2", "--pds", "--k=3", "--k=5", "--out=x"]
    given = ["--rounds=2", "--flagfile", "../runs/mine", "--out=x"]
    assert flag_files.expanded(given) == expected
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    given = ["--rounds=2", "--flagfile=~/runs/mine", "--out=x"]
    assert flag_files.expanded(given) == expected


def test_what_comes_later_wins(tmp_path):
    path = write(tmp_path, mine=["--flagfile=all", "--k=5"], all=["--k=3"])
    given = ["--averager=uta", "--noise_multiplier=1", f"--flagfile={path}"]
    assert flags.parse(given, StackOverflowConfig)[0].k == 5
    assert flags.parse([*given, "--k=7"], StackOverflowConfig)[0].k == 7


def test_a_shipped_file_is_read_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [f"--flagfile={CONFIGS / 'small_pds_uta_eps8.2.cfg'}"]
    (config,) = flags.parse(given, StackOverflowConfig)
    found = config.pds, config.k, config.rounds, config.epsilon, config.lstm_size
    assert found == (True, 5, 1000, 8.2, 48)


def test_after_two_dashes_nothing_is_a_flag():
    given = ["--", "--flagfile=nowhere"]
    assert flag_files.expanded(given) == given


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"mine": ["--flagfile=gone"]}, r"cannot read .*gone, which .*mine includes"),
        ({"mine": ["--flagfile=other"], "other": ["--flagfile=mine"]}, "mine includes"),
        ({"mine": ["--flagfile="]}, "--flagfile must name a file"),
        ({"mine": ["--flagfile=."]}, "cannot read"),
    ],
    ids=["missing", "circular", "empty", "folder"],
)
def test_what_cannot_be_read_is_refused_by_file(tmp_path, files, message):
    path = write(tmp_path, **files)
    with pytest.raises(absl_flags.Error, match=message):
        flag_files.expanded([f"--flagfile={path}"])
