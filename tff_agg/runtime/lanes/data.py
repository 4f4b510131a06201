"""Client data that are read where the client's lane is.

A lane may be on another machine. Then it is better to send it the client's name than
the client's data.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

#: Returns a client's data for its key, whatever the two agree on.
Source = Callable[[Any], object]


class LaneDataError(Exception):
    """A source could not give a client's data; the reason is its cause."""


class LaneData(NamedTuple):
    """Stands for a client's data in the list given to a computation.

    Attributes:
      source: Returns a client's data for its key. On a cluster it must be picklable;
        lanes get it once, however many clients name the same object, and keep it, so
        that it may open files at its first call and keep them open.
      key: The client, as the source knows it; picklable.

    Example:
      def read(name):
        return tf.data.Dataset.load(f'/shared/clients/{name}')
      process.next(state, [LaneData(read, name) for name in ('ada', 'bob')])
    """

    source: Source
    key: object

    def read(self) -> object:
        """Returns the data."""
        try:
            return self.source(self.key)
        except Exception as error:
            raise LaneDataError(f"{type(error).__name__}") from error
