"""Flags that a benchmark has for itself, so that tests can import several."""

from collections.abc import Callable, Sequence

from absl import flags


def parser(values: flags.FlagValues) -> Callable[[Sequence[str]], list[str]]:
    """Returns what `app.run` parses flags with: `values`, and none for the program."""

    def parse(arguments: Sequence[str]) -> list[str]:
        flags.FLAGS(arguments[:1])
        return values(arguments)

    return parse
