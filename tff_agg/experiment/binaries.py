"""Runs a program that is no command of a task: flags first, then TensorFlow."""

import sys
from collections.abc import Callable

from absl import app, flags

from tff_agg.experiment.commands import interruption


def run_main(
    define: Callable[[flags.FlagValues], None],
    main: Callable[..., int],
    *,
    takes_arguments: bool = False,
    needs_tensorflow: bool = True,
) -> None:
    """Runs a binary: its flags, then TensorFlow, then `main`.

    Flags come first so that `--help` and a typing error are answered at once. Not
    `app.run`: TensorFlow, first imported inside of it, compares the tensors of a traced
    function by identity instead of by value.

    Ctrl-C and SIGTERM end it in order and with one line.

    Args:
      define: Defines the flags.
      main: Does the work and returns the exit status.
      takes_arguments: Whether `main` also receives what stands on the command line
        besides the flags; otherwise that is refused.
      needs_tensorflow: Whether TensorFlow is set up before `main`.
    """
    interruption.install()
    with interruption.plain_ending(lambda: "Run the same command again."):
        sys.exit(_run(define, main, takes_arguments, needs_tensorflow))


def _run(
    define: Callable[[flags.FlagValues], None],
    main: Callable[..., int],
    takes_arguments: bool,
    needs_tensorflow: bool,
) -> int:
    define(flags.FLAGS)
    _show_in_help(flags.FLAGS)
    app.define_help_flags()
    rest = app.parse_flags_with_usage(sys.argv)[1:]
    if rest and not takes_arguments:
        app.usage(shorthelp=True, detailed_error=f"unexpected arguments: {rest}")
        return 2
    from tff_agg.experiment import terminal

    with terminal.plain_errors():
        if needs_tensorflow:
            from tff_agg import runtime

            runtime.set_up_tensorflow()
        return main(flags.FLAGS, rest) if takes_arguments else main(flags.FLAGS)


def _show_in_help(values: flags.FlagValues) -> None:
    """Makes `--help` list the flags, wherever they were defined."""
    for name in list(values):
        if _is_ours(values, name):
            values.register_key_flag_for_module(sys.argv[0], values[name])


def _is_ours(values: flags.FlagValues, name: str) -> bool:
    module = values.find_module_defining_flag(name) or ""
    return not module.startswith(("absl", "tensorflow", "jax"))
