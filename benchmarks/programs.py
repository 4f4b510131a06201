"""What every benchmark does: flags from its options, a table, a JSON file."""

import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn

from tff_agg import fields
from tff_agg.experiment import commands
from tff_agg.experiment.commands import Command
from tff_agg.experiment.study import show


def start(
    spec: ModuleSpec | None,
    text: str | None,
    run: Callable[..., int | None],
    *options: type,
    arguments: str = "",
) -> NoReturn:
    """Runs a benchmark as a program: `start(__spec__, __doc__, main, Options)`.

    Args:
      spec: The module's `__spec__`, which knows its name.
      text: Its `__doc__`, the help.
      run: Does the work.
      *options: Dataclasses of described fields, each field a flag.
      arguments: As in `Command`.
    """
    assert spec is not None, "run it with python -m"

    def checked(*given: Any) -> int:
        for values in given[: len(options)]:
            fields.check(values)
        return run(*given) or 0

    command = Command(checked, options, False, arguments)
    commands.run(f"python -m {spec.name}", text or "", command, sys.argv[1:])


def write(out: str, name: str, content: Any) -> pathlib.Path:
    """Writes the figures of a benchmark as JSON; returns the folder."""
    folder = pathlib.Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    return folder


def tell(
    header: str, line: str, rows: Iterable[Mapping[str, object]], title: str = ""
) -> None:
    """Prints a table.

    Args:
      header: The names of the columns, with | between them.
      line: The cells in the same way, of the values of a row.
      rows: The rows.
      title: What they are.

    Example:
      >>> tell('name | ms', '{name} | {seconds:.1f}', [{'name': 'a', 'seconds': 0.25}])
      name   ms
      ─────────
      a     0.2
    """
    cells = [_cells(line.format(**row)) for row in rows]
    print(show.render(show.Table(_cells(header), cells, title)), flush=True)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")]
