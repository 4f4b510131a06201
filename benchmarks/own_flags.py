"""Flags that a benchmark has for itself, so that tests can import several."""

from collections.abc import Callable, Sequence

from absl import app, flags


def parser(values: flags.FlagValues) -> Callable[[Sequence[str]], list[str]]:
    """Returns what `app.run` parses flags with: the program's become `values` too."""

    def parse(arguments: Sequence[str]) -> list[str]:
        flags.FLAGS.append_flag_values(values)
        for name in values:
            flags.FLAGS.register_key_flag_for_module(arguments[0], values[name])
        rest = app.parse_flags_with_usage(arguments)
        values.mark_as_parsed()
        return rest

    return parse
