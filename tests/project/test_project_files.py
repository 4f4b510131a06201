"""What holds for the project as a whole: lock, BUILD files, imports, installation."""

import configparser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from tests.project import build_files

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHELL = shutil.which("sh") or "sh"
LOCKS = ["requirements.lock", "requirements.gpu.lock", "requirements.gpu-jax.lock"]


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_is_pinned_with_hashes(name):
    text = (ROOT / name).read_text()
    assert "://" not in text, "the lock names an index"
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) > 100
    for entry in entries:
        assert re.match(r"[\w.\-\[\],]+==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry


def test_the_lock_answers_every_request():
    locked = set(re.findall(r"^([\w.-]+)==", (ROOT / LOCKS[0]).read_text(), re.M))
    wanted = re.findall(r"^([\w-]+)", (ROOT / "requirements.in").read_text(), re.M)
    assert len(wanted) > 10
    assert set(wanted) <= locked


def test_no_environment_has_cuda_of_two_kinds():
    kinds = {
        name: set(
            re.findall(r"^nvidia-[\w-]+-(cu\d+)==", (ROOT / name).read_text(), re.M)
        )
        for name in LOCKS
    }
    # libcusolver.so.11 and ptxas are in the wheels of both, under the same paths.
    assert kinds == {LOCKS[0]: set(), LOCKS[1]: {"cu11"}, LOCKS[2]: {"cu12"}}


LIGHT = [
    "tff_agg",
    "tff_agg.averaging",
    "tff_agg.structure",
    "tff_agg.checkpoints",
    "tff_agg.recycling.uncertainty",
    "tff_agg.noise",
    "tff_agg.privacy",
    "tff_agg.account",
    "tff_agg.shapes",
    "pds",
    "pds.sampler",
    "pds.schedule",
]


def test_light_modules_do_not_import_tensorflow():
    program = (
        "import importlib, sys\n"
        f"for name in {LIGHT!r}:\n"
        "    importlib.import_module(name)\n"
        "    for heavy in ('tensorflow', 'tensorflow_federated', 'jax'):\n"
        "        assert heavy not in sys.modules, (name, heavy)\n"
        "print('light')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert run.stdout == "light\n", run.stderr


@pytest.mark.parametrize("name", ["tff_agg", "tff_agg.recycling"])
def test_public_names_are_listed_before_they_are_imported(name):
    program = (
        f"import {name} as package\n"
        "missing = set(package.__all__) - set(dir(package))\n"
        "assert not missing, missing\n"
        "heavy = {'build_dp_ftrl_process', 'runtime'}\n"
        "assert all(hasattr(package, n) for n in package.__all__ if n not in heavy)\n"
        "import sys\n"
        "assert 'tensorflow' not in sys.modules\n"
        "print('listed')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert run.stdout == "listed\n", run.stderr


def test_a_missing_python_gets_one_clear_sentence(tmp_path):
    run = subprocess.run(
        [SHELL, str(ROOT / "tools/find_python.sh")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert line.startswith("Python 3.11 is needed")


def test_another_python_is_not_taken_for_3_11(tmp_path):
    fake = tmp_path / "python3"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    run = subprocess.run(
        [SHELL, str(ROOT / "tools/find_python.sh")],
        env={"PATH": f"{tmp_path}"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1


def test_files_stay_readable_in_length():
    for path in build_files.modules(ROOT):
        lines = len((ROOT / path).read_text().splitlines())
        assert lines <= 480, f"{path} has {lines} lines: one concept a file"


def test_committed_files_name_no_registry_and_no_machine_path():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    hosts = re.compile(rb"pypi\.org|pythonhosted|registry\.npmjs|deb\.debian")
    for name in filter(None, listed.stdout.split(b"\0")):
        path = pathlib.Path(os.fsdecode(name))
        if path == pathlib.Path("tests/project/test_project_files.py"):
            continue
        content = (ROOT / path).read_bytes() if (ROOT / path).exists() else b""
        assert not hosts.search(content), path
        assert b"/work/" + b"main" not in content, path


def test_private_modules_of_tensorflow_and_tff_are_imported_in_one_file():
    private = re.compile(
        r"(tensorflow_federated|tensorflow)\.python\b|\btf\.__internal__"
        r"|from tensorflow(_federated)? import python\b"
    )
    found = {
        str(path.relative_to(ROOT))
        for folder in (
            "tff_agg",
            "stackoverflow",
            "cifar",
            "pcvr",
            "pds",
            "benchmarks",
        )
        for path in (ROOT / folder).rglob("*.py")
        if private.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"tff_agg/runtime/compile/private_api.py"}


def test_a_private_name_that_is_gone_is_told_with_the_versions():
    program = """
        from tensorflow.python.ops import resource_variable_ops
        del resource_variable_ops.UninitializedVariable
        import tff_agg.runtime.compile.private_api
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "UninitializedVariable" in last and "0.87.0" in last and "2.14" in last


def test_other_projects_see_the_types():
    """PEP 561: a marker in each package, and the marker in the distribution."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    included = config["options.packages.find"]["include"].split()
    assert included == ["tff_agg*", "stackoverflow*", "cifar*", "pcvr*", "pds*"]
    for name in (pattern.rstrip("*") for pattern in included):
        assert (ROOT / name / "py.typed").is_file()
        assert "py.typed" in config["options.package_data"][name]
