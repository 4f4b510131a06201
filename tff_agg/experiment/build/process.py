"""What trains a task, as the loops see it: a process, and the clients of its rounds."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tff_agg.aliases import Json, Structure
from tff_agg.server import state as states


class Output(Protocol):
    """What a process returns for a round."""

    @property
    def state(self) -> Structure:
        """The state after it."""

    @property
    def metrics(self) -> Structure:
        """What was measured."""


class Process(Protocol):
    """What a loop drives: of `build_dp_ftrl_process`, or a `DPSGDProcess`."""

    @property
    def initialize(self) -> Callable[..., Structure]:
        """Makes the state of round 0."""

    @property
    def next(self) -> Callable[..., Output]:
        """Computes a round, from the state before it and a list of clients' data."""


@dataclasses.dataclass(frozen=True)
class NotChecked:
    """Says that a part of an identity is left out on purpose, and why.

    Attributes:
      reason: Why it need not, or cannot, be checked; stored with the run.

    Example:
      >>> NotChecked('the data are made up anew in every process')
      NotChecked(reason='the data are made up anew in every process')
    """

    reason: str

    def __post_init__(self):
        if not isinstance(self.reason, str) or not self.reason.strip():
            raise ValueError(f"reason must say why, got {self.reason!r}")


class Cohort(NamedTuple):
    """The clients of one round.

    Attributes:
      client_ids: What to call them in errors; for a client that is a group of users,
        the list of their names.
      data: One dataset each; where the unit is an example, the arrays of the batch.
      digest: A digest of these data, stored with the round; or a `NotChecked`.
      costs: How much work each is, for lanes of equal length; None if not known.
      facts: Numbers about the cohort that belong into the round's metrics.
    """

    client_ids: Sequence[object]
    data: Sequence[Any]
    digest: str | NotChecked
    costs: Sequence[float] | None = None
    facts: Mapping[str, Json] = {}


def by_state(
    cohort: Callable[..., Cohort], is_drawn: bool
) -> Callable[[int, Structure], Cohort]:
    """Returns the clients of a round by its number and the state before it.

    Args:
      cohort: The clients of a round by its number; where they are drawn by chance, by
        its number and a secret seed.
      is_drawn: Whether they are. The secret is that of the noise, in the state.
    """
    if not is_drawn:
        return lambda number, state: cohort(number)

    def drawn(number: int, state: Structure) -> Cohort:
        seed = states.seed_of(state)
        if seed is None:
            raise ValueError("state has no seed for clients to be drawn with")
        return cohort(number, tuple(seed.tolist()))

    return drawn
