"""BUILD files name every module, and as deps what the modules import."""

import pathlib
import shutil
import subprocess

import pytest

from tests.project import build_files

ROOT = pathlib.Path(__file__).resolve().parents[2]

LIBRARY = """
py_library(
    name = "{name}",
    srcs = glob(["*.py"]),
    deps = [{deps}],
)
"""


def test_every_module_is_in_a_library_with_its_true_deps():
    assert build_files.differences(ROOT) == []


def test_every_test_is_a_target_that_runs_pytest_on_it():
    tests = {t.label for t in build_files.targets(ROOT) if t.rule == "py_test"}
    files = {p.relative_to(ROOT / "tests") for p in (ROOT / "tests").rglob("test_*.py")}
    assert tests == {f"//tests:{path.with_suffix('')}" for path in files}


@pytest.fixture
def small_project(tmp_path):
    for name, module, deps in (
        ("pds", "import numpy", ""),
        ("cifar", "import pds.one", '"//pds"'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.py").write_text(module)
        (tmp_path / name / "BUILD").write_text(LIBRARY.format(name=name, deps=deps))
    assert build_files.differences(tmp_path) == []
    return tmp_path


def test_a_module_in_no_library_is_named(small_project):
    (small_project / "pds/inner").mkdir()
    (small_project / "pds/inner/two.py").write_text("")
    assert build_files.differences(small_project) == [
        "pds/inner/two.py is in no library"
    ]


def test_deps_that_are_not_the_imports_are_named(small_project):
    (small_project / "cifar/one.py").write_text("import os")
    (small_project / "pds/one.py").write_text("import cifar.one")
    assert sorted(build_files.differences(small_project)) == [
        "//cifar:cifar has deps without use: //pds:pds",
        "//pds:pds needs the deps //cifar:cifar",
    ]


def test_bazel_reads_them():
    bazel = shutil.which("bazel")
    if bazel is None:
        pytest.skip("no Bazel here (Debian: bazel-bootstrap)")
    done = subprocess.run(
        [bazel, "--batch", "query", "tests(//...)"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "//tests:averaging/test_averagers" in done.stdout.split()
