"""`--help` of every command: what it is for and its flags, before TensorFlow loads."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# One flag of each; `runs` has none.
COMMANDS = {
    "stackoverflow.audit": "--canaries",
    "stackoverflow.demo": "--seeds",
    "stackoverflow.evaluate": "--uta_k",
    "stackoverflow.export": "--method",
    "stackoverflow.predict": "--model",
    "stackoverflow.prepare": "--source",
    "stackoverflow.report": "--run",
    "stackoverflow.runs": "",
    "stackoverflow.train": "--dry_run",
    "stackoverflow.tune": "--algorithm",
    "stackoverflow.uncertainty": "--runs",
    "tff_agg.account": "--noise_multiplier",
    "examples.emnist.train": "--writers",
    "benchmarks.audit": "--window",
    "benchmarks.normals": "--noise_multiplier",
    "benchmarks.runtime_memory": "--warm_up",
    "benchmarks.small_rounds": "--tasks",
}
# Forked from one process, so that what all of them import is imported once.
PROGRAM = """
import os, runpy, sys
import stackoverflow.data.preparation, stackoverflow.task, tff_agg.account
for name in sys.argv[1:]:
    sys.stdout.flush()
    if os.fork() == 0:
        sys.argv[1:] = ["--help"]
        try:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        except SystemExit:
            loaded = {"tensorflow", "jax"} & set(sys.modules)
            print(f"== end of {name}, loaded: {sorted(loaded)}", flush=True)
        finally:
            os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def shown():
    """Returns what each command prints."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *COMMANDS], cwd=ROOT, text=True,
        env=os.environ | {"PYTHONPATH": os.fspath(ROOT)}, timeout=120,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True,
    )  # fmt: skip
    found, lines = {}, []
    for line in done.stdout.splitlines():
        lines.append(line)
        if line.startswith("== end of "):
            found[line.removeprefix("== end of ").split(",")[0]] = "\n".join(lines)
            lines = []
    assert not lines, lines
    return found


@pytest.mark.parametrize("name, flag", COMMANDS.items())
def test_help_is_told_at_once(shown, name, flag):
    text = shown[name]
    module = ROOT / (name.replace(".", "/") + ".py")
    first = module.read_text().split('"""')[1].splitlines()[0]
    assert first in text
    assert f"\n  {flag}" in text or f"\n  --[no]{flag[2:]}" in text
    assert text.endswith("loaded: []")
