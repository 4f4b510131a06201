"""The readers under atheris, where it is installed: seconds here, `FUZZ=n` minutes."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
MINUTES = int(os.environ.get("FUZZ", "0"))
TARGETS = (
    *("csv", "jsonl", "parquet", "sqlite", "ledger", "config", "table"),
    *("manifest", "users", "part", "vocabulary", "store"),
)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not among what the project installs: pip install atheris",
)
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_but_errors_that_name_the_file(tmp_path, target):
    harness = [sys.executable, "-m", "tests.atheris_harness", target]
    done = subprocess.run(
        [*harness, f"-max_total_time={60 * MINUTES or 2}"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.fspath(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
