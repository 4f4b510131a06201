"""One aggregate of a run's checkpoints, named by a short text such as `uta:100`.

| text         | what it is                                                      |
|--------------|-----------------------------------------------------------------|
| `last`       | the last checkpoint                                             |
| `uta:k`      | the mean of the last k checkpoints                              |
| `ema:decay`  | the moving average, `decay` the weight of the old one, warmed up |
| `pda:gamma`  | polynomial-decay averaging with γ                               |

All of it is post-processing and costs no privacy.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tff_agg import averaging
from tff_agg.recycling import inference

KINDS = ("last", "uta", "ema", "pda")


class Aggregate(NamedTuple):
    """How checkpoints become one model.

    Attributes:
      kind: One of `KINDS`.
      parameter: k, the decay or γ; None for 'last'.

    Example:
      >>> Aggregate.parse('uta:100')
      Aggregate(kind='uta', parameter=100)
      >>> str(Aggregate('ema', 0.95))
      'ema:0.95'
    """

    kind: str
    parameter: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Aggregate":
        """Reads the text; refuses what is none, or has a parameter out of range."""
        kind, colon, given = text.partition(":")
        wrong = ValueError(
            f"aggregate={text!r} must be last, uta:k, ema:decay or pda:gamma, such as "
            "uta:100 or ema:0.95"
        )
        if kind not in KINDS or bool(colon) != (kind != "last"):
            raise wrong
        if kind == "last":
            return cls(kind)
        try:
            made = cls(kind, int(given) if kind == "uta" else float(given))
            made.averager()
        except ValueError as error:
            raise ValueError(f"{wrong}; {error}") from error
        return made

    def averager(self) -> averaging.Averager:
        """Returns the averager to fold over checkpoints."""
        value: Any = self.parameter
        if self.kind == "uta":
            return averaging.uta(value)
        if self.kind == "ema":
            return averaging.ema(decay=value, warm_up=True)
        if self.kind == "pda":
            return averaging.pda(value)
        return averaging.last()

    def compute(
        self, load: inference.Load[inference.Model], members: Sequence[int]
    ) -> inference.Model:
        """Returns the aggregate over checkpoints, up to the newest.

        Args:
          load: Returns a round's weights.
          members: The rounds that have a checkpoint, in order; at least one.

        Raises:
          ValueError: `uta` asks for more checkpoints than there are.
        """
        newest = members[-1]
        if self.kind == "last":
            return load(newest)
        if self.kind == "uta":
            k = int(self.parameter or 0)
            if k > len(members):
                raise ValueError(
                    f"aggregate={self}: there are only {len(members)} checkpoints"
                )
            ((_, mean),) = inference.tail_means(load, members, newest, [k])
            return mean
        stream = ((number, load(number)) for number in members)
        folded = inference.fold_averagers({"": self.averager()}, stream, [newest])
        return next(folded)[2]

    def used(self, members: Sequence[int]) -> list[int]:
        """Returns the rounds whose checkpoints take part."""
        count = {"last": 1, "uta": self.parameter}.get(self.kind)
        return list(members if count is None else members[-int(count) :])

    def __str__(self) -> str:
        if self.parameter is None:
            return self.kind
        return f"{self.kind}:{self.parameter:g}"
