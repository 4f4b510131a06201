"""How a study tells how far it is, from wherever it is at work.

A job in the process of its study tells it; one in another process tells nobody.
"""

import contextlib
import contextvars
from collections.abc import Iterator

from tff_agg.recycling.methods import Progress

_listening: contextvars.ContextVar[Progress | None] = contextvars.ContextVar(
    "listening", default=None
)


def tell(stage: str, done: int, total: int) -> None:
    """Tells whoever listens, if anybody does."""
    if (listener := _listening.get()) is not None:
        listener(stage, done, total)


@contextlib.contextmanager
def telling(listener: Progress | None) -> Iterator[None]:
    """Inside the block `listener` is told."""
    before = _listening.set(listener)
    try:
        yield
    finally:
        _listening.reset(before)
