"""Runs systems one after the other, each in its own process; says what they ran on."""

import contextlib
import datetime
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
from typing import Any

from tff_agg import processes

#: The root of the checkout, from where `python -m benchmarks.…` works.
ROOT = pathlib.Path(__file__).resolve().parents[1]


def run(command: list[str], *, onednn: bool = False) -> dict[str, Any]:
    """Runs a command in the checkout and returns the last line of JSON that it prints.

    Args:
      command: Program and arguments.
      onednn: Whether TensorFlow uses oneDNN, which it reads when it is loaded.

    Raises:
      RuntimeError: If it failed or printed no JSON; with the end of what it printed.
    """
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", PYTHONWARNINGS="ignore")
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    if onednn:
        environment.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    # A session of its own, so that nothing it started outlives it or this process.
    process = processes.start(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    # Not the last line alone: Ray may print messages of its own behind it.
    found = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode or not found:
        raise RuntimeError(f"{' '.join(command)} failed:\n{(output + errors)[-3000:]}")
    return json.loads(found[-1])


def peer(python: str, name: str) -> str | None:
    """Returns the path of a peer's Python; None, and says so, where none is given."""
    if not python:
        print(f"skipped {name}: its Python is not given", flush=True)
        return None
    path = pathlib.Path(python).absolute()
    if not path.is_file():
        raise ValueError(f"the Python of {name}: {python} does not exist")
    return str(path)


def circumstances() -> dict[str, Any]:
    """Returns when and where something is measured."""
    info = pathlib.Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    match = re.search(r"model name\s*:\s*(.*)", text)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": match.group(1).strip() if match else platform.processor(),
            "cores": len(os.sched_getaffinity(0)),
            "load": os.getloadavg(),
            "python": platform.python_version(),
        },
    }
