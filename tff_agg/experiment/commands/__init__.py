"""Commands of a task: `python -m TASK COMMAND …`.

The `__main__.py` of a task's package is all that it needs:

  from stackoverflow.task import StackOverflow
  from tff_agg.experiment import commands

  if __name__ == '__main__':
      commands.main(StackOverflow, {'predict': 'stackoverflow.predict'})

A command is a module with `command(task)`, which returns a `Command`: its options,
dataclasses whose fields become the flags, and its function. The module's docstring is
its help, and the first line of it its line in the list of commands. A module may have
`subcommands(task)` instead: further modules by name, which it lists.
"""

import dataclasses
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from absl import flags as absl_flags

from tff_agg.experiment.commands import flag_files, flags, interruption

if TYPE_CHECKING:
    from tff_agg.experiment.task import Task

#: The commands of every task: the module of each.
COMMANDS: Mapping[str, str] = {
    name: f"{__name__}.{name}"
    for name in (
        "train", "search", "evaluate", "tune", "uncertainty", "report", "runs",
        "export", "audit",
    )
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Command:
    """What a command is.

    Attributes:
      run: `run(*options)` does the work and returns the exit status. Where there are
        `arguments` it gets them, too, as a list, after the options.
      options: Dataclasses of described fields, each field a flag.
      tensorflow: Whether TensorFlow is set up before `run`.
      arguments: What may stand on the command line besides the flags, in words. Empty:
        nothing may.
    """

    run: Callable[..., int]
    options: tuple[type, ...] = ()
    tensorflow: bool = True
    arguments: str = ""


def main(
    task: "type[Task]",
    more: Mapping[str, str] = {},
    arguments: Sequence[str] | None = None,
) -> NoReturn:
    """Runs a command of a task, and ends the process with its exit status.

    Args:
      task: The task.
      more: Commands that this task has besides: the module of each.
      arguments: The command and what follows; what the process was given, by default.
    """
    run_listed(f"python -m {task.package}", {**COMMANDS, **more}, arguments, task)


def run_listed(
    program: str,
    modules: Mapping[str, str],
    arguments: Sequence[str] | None = None,
    task: "type[Task] | None" = None,
) -> NoReturn:
    """Runs the one of several commands that is named first; alone it lists them.

    Args:
      program: How the program is called.
      modules: The module of each command.
      arguments: What follows the program's name.
      task: Given to `command` of the module.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("help", "--help", "-h"):
        print(listed(program, modules))
        sys.exit(0)
    name, *rest = given
    if name not in modules:
        print(f"{name!r} is no command.\n{listed(program, modules)}", file=sys.stderr)
        sys.exit(2)
    module = importlib.import_module(modules[name])
    if hasattr(module, "subcommands"):
        run_listed(f"{program} {name}", module.subcommands(task), rest, task)
    run(f"{program} {name}", module.__doc__ or "", module.command(task), rest)


def listed(program: str, modules: Mapping[str, str]) -> str:
    """Returns a line for each command."""
    lines = [f"{program} COMMAND …, with --help after it for its flags:"]
    for name, module in modules.items():
        text = importlib.import_module(module).__doc__ or ""
        lines.append(f"  {name:<12} {text.splitlines()[0]}")
    return "\n".join(lines)


def run(
    program: str, text: str, command: Command, arguments: Sequence[str]
) -> NoReturn:
    """Runs a command, and ends the process with its exit status.

    Flags come first, so that `--help` and a typing error are answered at once. Not
    `app.run`: TensorFlow, first imported inside of it, compares the tensors of a traced
    function by identity instead of by value.

    Ctrl-C and SIGTERM end it in order and with one line.

    Args:
      program: How the command is called.
      text: What it is, in full, for its help.
      command: The command.
      arguments: What follows its name.
    """
    interruption.install()
    with interruption.plain_ending(lambda: "Run the same command again."):
        sys.exit(_run(program, text, command, arguments))


def _run(program: str, text: str, command: Command, arguments: Sequence[str]) -> int:
    values = absl_flags.FlagValues()
    flags.define(values, *command.options)
    # Nobody parses absl's own flags, which some of its modules ask for.
    absl_flags.FLAGS.mark_as_parsed()
    if {"--help", "-h"} & set(arguments):
        print(f"{text}\n{_usage(program, command)}\n{_flags_in_words(values)}")
        return 0
    try:
        rest = values([program, *flag_files.expanded(arguments)])[1:]
        if rest and not command.arguments:
            raise absl_flags.Error(f"unexpected arguments: {' '.join(rest)}")
    except absl_flags.Error as error:
        print(f"error: {error}; see {program} --help", file=sys.stderr)
        return 2
    from tff_agg.experiment import terminal

    with terminal.plain_errors():
        options = flags.read(values, *command.options)
        if command.tensorflow:
            from tff_agg import runtime

            runtime.set_up_tensorflow()
        further = [rest] if command.arguments else []
        return command.run(*options, *further)


def _usage(program: str, command: Command) -> str:
    parts = [program, "[flags]" * bool(command.options), command.arguments]
    return " ".join(part for part in parts if part)


def _flags_in_words(values: absl_flags.FlagValues) -> str:
    for name in values:
        values.register_key_flag_for_module("flags", values[name])
    return values.module_help("flags")
