"""`--help` of every command: what it is for and its flags, before TensorFlow loads."""

import os
import pathlib
import subprocess
import sys

import pytest

from tff_agg.experiment import commands

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A package, or a program, with a command and one of its flags.
COMMANDS = {
    "stackoverflow audit": "--canaries",
    "stackoverflow evaluate": "--methods",
    "stackoverflow export": "--method",
    "stackoverflow predict": "--model",
    "stackoverflow prepare": "--source",
    "stackoverflow report": "--run",
    "stackoverflow runs": "",
    "stackoverflow study demo": "--seeds",
    "stackoverflow study demo_search": "--arms",
    "stackoverflow study fair": "--epsilons",
    "stackoverflow study paper": "--trainings",
    "stackoverflow study readings": "--steps_from",
    "stackoverflow study schedule": "--pds_period",
    "stackoverflow train": "--dry_run",
    "stackoverflow tune": "--algorithm",
    "stackoverflow uncertainty": "--runs",
    "cifar features": "--weights",
    "cifar study probes": "--probes",
    "cifar study table": "--levels",
    "pcvr study table": "--data",
    "pcvr train": "--feature_classes",
    "tff_agg account": "--noise_multiplier",
    "tff_agg shapes": "--population",
    "examples.emnist train": "--writers",
    "benchmarks.audit": "--window",
    "benchmarks.normals": "--noise_multiplier",
    "benchmarks.runtime_memory": "--warm_up",
    "benchmarks.shapes": "--budgets",
    "benchmarks.small_rounds": "--tasks",
}
# The modules of commands that not every task has.
MODULES = {
    "prepare": "stackoverflow.prepare",
    "predict": "stackoverflow.predict",
    "demo": "stackoverflow.studies.demo",
    "demo_search": "stackoverflow.studies.demo_search",
    "fair": "stackoverflow.studies.fair",
    "paper": "stackoverflow.studies.paper",
    "readings": "stackoverflow.studies.readings",
    "schedule": "stackoverflow.studies.schedule",
    "features": "cifar.features",
    "cifar study probes": "cifar.studies.probes",
    "cifar study table": "cifar.studies.table",
    "pcvr study table": "pcvr.studies.table",
    "account": "tff_agg.account",
    "shapes": "tff_agg.shapes",
}
# Forked from one process, so that what all of them import is imported once.
PROGRAM = """
import os, runpy, sys
import stackoverflow.data.preparation, stackoverflow.task, tff_agg.account
for line in sys.argv[1:]:
    sys.stdout.flush()
    if os.fork() == 0:
        name, *command = line.split()
        sys.argv[1:] = [*command, "--help"]
        try:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        except SystemExit:
            loaded = {"tensorflow", "jax"} & set(sys.modules)
            print(f"== end of {line}, loaded: {sorted(loaded)}", flush=True)
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
    program, *command = name.split()
    if command:
        everywhere = MODULES | dict(commands.COMMANDS)
        program = MODULES.get(name, everywhere.get(command[-1]))
    module = ROOT / (program.replace(".", "/") + ".py")
    first = module.read_text().split('"""')[1].splitlines()[0]
    assert first in text
    if not flag:
        assert "FOLDER [OTHER]" in text
        return
    assert f"\n  {flag}" in text or f"\n  --[no]{flag[2:]}" in text
    assert text.endswith("loaded: []")


@pytest.mark.parametrize("package", ["stackoverflow", "cifar", "pcvr"])
def test_alone_a_task_lists_its_commands_with_a_line_each(package):
    program = [sys.executable, "-m", package]
    done = subprocess.run(program, cwd=ROOT, text=True, capture_output=True, check=True)
    lines = done.stdout.splitlines()[1:]
    names = [line.split()[0] for line in lines]
    assert names[: len(commands.COMMANDS)] == list(commands.COMMANDS)
    assert all(len(line.split()) > 4 for line in lines)
    program.append("trian")
    wrong = subprocess.run(program, cwd=ROOT, text=True, capture_output=True)
    assert wrong.returncode == 2
    assert "'trian' is no command" in wrong.stderr and "  train  " in wrong.stderr
