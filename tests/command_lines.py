"""Commands of a task as tests run them: in this process, or as programs in a fork."""

import importlib

from tff_agg.experiment import commands
from tff_agg.experiment.commands import flags


def program(name, task="stackoverflow"):
    """Returns the text of a program that is `python -m {task} {name}`."""
    return (
        "import runpy, sys\n"
        f"sys.argv.insert(1, {name!r})\n"
        f"runpy.run_module({task!r}, run_name='__main__', alter_sys=True)\n"
    )


def command_of(task, name):
    """Returns a command; `name` is that of every task's or a module."""
    module = importlib.import_module(commands.COMMANDS.get(name, name))
    return module.command(task)


def options(task, name, *given):
    """Returns the options that a command reads from some flags."""
    return flags.parse(given, *command_of(task, name).options)


def run(task, name, *given):
    """Runs a command in this process, without setting TensorFlow up."""
    return command_of(task, name).run(*options(task, name, *given))
