"""Sharing out clients over lanes by how much work they are."""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence

_costs: contextvars.ContextVar[Sequence[float] | None] = contextvars.ContextVar(
    "tff_agg_runtime_client_costs", default=None
)


@contextlib.contextmanager
def balancing_lanes(client_costs: Sequence[float] | None) -> Iterator[None]:
    """Gives lanes about the same amount of work in computations inside the block.

    Without it lanes get the same number of clients. The costs decide which clients are
    added up in one lane, and so the order of additions and the last bits of a sum.
    Timing never does: the same costs give the same bits.

    Args:
      client_costs: How much work each client is, in any unit, such as its number of
        examples, in the order of the data; None if that is not known.

    Yields:
      Nothing.

    Example:
      with balancing_lanes([3, 1, 2]):
        output = process.next(state, [long, short, medium])
    """
    token = _costs.set(client_costs)
    try:
        yield
    finally:
        _costs.reset(token)


def costs_of(clients: int) -> Sequence[float] | None:
    """Returns the costs in force for a round of so many clients.

    Raises:
      ValueError: The costs are of another number of clients.
    """
    costs = _costs.get()
    if costs is not None and len(costs) != clients:
        raise ValueError(
            f"client_costs: balancing_lanes(...) was given {len(costs)} values, but "
            f"the computation got the data of {clients} clients; give one for each"
        )
    return costs
