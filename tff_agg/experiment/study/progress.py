"""How a study tells how far it is, from wherever it is at work.

A job in the process of its study tells whoever listens there; one in another process
tells the study's, which adds up what it hears.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping

from tff_agg.recycling.methods import Progress
from tff_agg.runtime import spread

_listening: contextvars.ContextVar[Progress | None] = contextvars.ContextVar(
    "listening", default=None
)


def tell(stage: str, done: int, total: int) -> None:
    """Tells whoever listens, if anybody does."""
    if (listener := _listening.get()) is not None:
        listener(stage, done, total)
    else:
        spread.tell((stage, done, total))


@contextlib.contextmanager
def telling(listener: Progress | None) -> Iterator[None]:
    """Inside the block `listener` is told."""
    before = _listening.set(listener)
    try:
        yield
    finally:
        _listening.reset(before)


class Rounds:
    """Adds up the rounds of runs that go side by side, for one bar.

    Args:
      stage: What they are for.
      runs: By the name of a run, its rounds.
    """

    def __init__(self, stage: str, runs: Mapping[str, int]):
        count = len(runs)
        self._stage = f"{stage}, {count} run{'s' * (count > 1)}, rounds"
        self._totals = dict(runs)
        self._done = dict.fromkeys(runs, 0)
        self._tell()

    def on_report(self, position: int, step: tuple[str, int, int]) -> None:
        """Takes what a job tells; but for the rounds of its run it is left out."""
        name, done, total = step
        if name in self._done:
            self._totals[name], self._done[name] = total, done
            self._tell()

    def end(self, *names: str) -> None:
        """Takes that runs have ended."""
        for name in names:
            self._done[name] = self._totals.setdefault(name, 0)
        self._tell()

    def _tell(self) -> None:
        tell(self._stage, sum(self._done.values()), sum(self._totals.values()))
