"""Flags that a benchmark has for itself, so that tests can import several."""

import functools
from collections.abc import Callable, Sequence

from absl import app, flags, logging


class OwnFlags:
    """The flags of one benchmark, apart from those of all others.

    Example:
      _FLAGS = OwnFlags()
      _ROUNDS = _FLAGS.integer('rounds', 5, 'Rounds.', lower_bound=1)
      _FLAGS.run(main)
    """

    def __init__(self) -> None:
        """Starts without any."""
        self._values = flags.FlagValues()
        own = {"flag_values": self._values}
        self.integer = functools.partial(flags.DEFINE_integer, **own)
        self.float = functools.partial(flags.DEFINE_float, **own)
        self.string = functools.partial(flags.DEFINE_string, **own)
        self.list = functools.partial(flags.DEFINE_list, **own)

    def run(self, main: Callable[[list[str]], None]) -> None:
        """Runs the benchmark: its flags become the program's, too.

        Its log shows warnings: libraries say at the level below which devices they have
        looked for in vain. `--verbosity` asks for more.
        """
        app.run(main, flags_parser=self._parse)

    def _parse(self, arguments: Sequence[str]) -> list[str]:
        flags.FLAGS.append_flag_values(self._values)
        for name in self._values:
            flags.FLAGS.register_key_flag_for_module(arguments[0], self._values[name])
        rest = app.parse_flags_with_usage(arguments)
        self._values.mark_as_parsed()
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)
        return rest
