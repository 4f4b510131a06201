"""f_AGG: averagers of checkpoints, as pairs of pure functions.

Example:
  >>> averager = uta(3)
  >>> state = averager.init(weights)
  >>> state, aggregate = averager.next(state, weights)
"""

from tff_agg.averaging.averagers import (
    Averager,
    ema,
    fold,
    last,
    pda,
    schedule_free,
    starting_at,
    uta,
)

__all__ = [
    "Averager",
    "ema",
    "fold",
    "last",
    "pda",
    "schedule_free",
    "starting_at",
    "uta",
]
