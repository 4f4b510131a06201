"""The wheel from another project's point of view: the checkout is out of sight."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import venv

import pytest

from tff_agg.experiment import commands

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ("tff_agg", "stackoverflow", "cifar", "pcvr", "pds")
# Without data, and without the seconds that TFF takes to compile.
TRAIN = [
    "--synthetic", "--out=runs/outside", "--rounds=2", "--batch_size=200",
    "--noise_multiplier=2", "--evaluate_every=2",
]  # fmt: skip


def run(*command, cwd):
    """Runs a program that is told nothing of the checkout; returns what it prints."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        list(map(os.fspath, command)), cwd=cwd, env=kept, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """An environment with the locked packages and the wheel, and a folder to work in.

    The wheel is built from a copy, because building leaves files beside the sources.
    The locked packages are those of this environment: its folder is put on the path,
    which does not follow the link from there to the checkout.
    """
    folder = tmp_path_factory.mktemp("outside")
    sources = folder / "sources"
    for name in PACKAGES:
        hidden = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, sources / name, ignore=hidden)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(
        *pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
        "--wheel-dir", folder, sources, cwd=folder,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    shutil.rmtree(sources)
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    run(
        *pip, "--python", python, "install", "--quiet", "--no-deps", "--no-index",
        wheel, cwd=folder,
    )  # fmt: skip
    (own,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (own / "locked.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    work = folder / "another project"
    work.mkdir()
    return python.parent, work


@pytest.mark.slow
def test_another_project_installs_the_wheel_and_trains(outside):
    programs, work = outside
    program = f"""
        import importlib, pathlib, sys
        for name in {PACKAGES}:
            module = importlib.import_module(name)
            folder = pathlib.Path(module.__file__).parent
            assert folder.is_relative_to(sys.prefix), folder
            source = pathlib.Path({str(ROOT)!r}) / name
            for path in source.rglob("*.*"):
                if path.suffix not in (".py", ".pyc"):
                    assert (folder / path.relative_to(source)).is_file(), path
        import tff_agg
        print(tff_agg.averaging.uta(3))
    """
    assert "uta" in run(programs / "python", "-c", textwrap.dedent(program), cwd=work)
    plan = run(
        programs / "tff-agg", "account", "--rounds=10", "--noise_multiplier=1", cwd=work
    )
    assert "epsilon" in plan
    shown = run(programs / "tff-agg", "cifar", "train", *TRAIN, cwd=work)
    assert "Everything is in runs/outside" in shown and "accuracy" in shown
    assert (work / "runs/outside/privacy_report.md").exists()
    assert len((work / "runs/outside/metrics.csv").read_text().splitlines()) == 3
    # Every other command is there, from wherever it is installed.
    listed = run(programs / "tff-agg", "stackoverflow", cwd=work)
    for name in (*commands.COMMANDS, "prepare", "predict"):
        assert f"\n  {name} " in listed
