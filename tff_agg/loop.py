"""The training loop: rounds, checkpoints and metrics; stop anywhere, go on anywhere.

Everything that a round depends on is either in the saved state or a pure function of
the round: the cohort, the noise (a function of the secret seed and the round) and the
evaluation. A run that was killed goes on from its last whole state and computes the
very same bits again, so it releases nothing that it has not released before and no
budget is spent twice.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tree

from tff_agg import checkpoints

_log = logging.getLogger(__name__)


class Cohort(NamedTuple):
    """The clients of one round.

    Attributes:
      client_ids: What to call them in errors; for a client that is a group of users,
        the list of their names.
      data: One dataset each.
      costs: How much work each is, for lanes of equal length; None if not known.
      facts: Numbers about the cohort that belong into the round's metrics.
    """

    client_ids: Sequence[Any]
    data: Sequence[Any]
    costs: Sequence[float] | None = None
    facts: Mapping[str, Any] = {}


class Report(NamedTuple):
    """What a finished round tells.

    Attributes:
      round: How many rounds are done, this one included.
      metrics: By name, the numbers that the process measured, and the cohort's facts.
      iterate: θ of this round, as numpy arrays.
      aggregate: θ^AGG of this round; the very same object where nothing is averaged.
      seconds: How long the round took, without what `on_round` does.
    """

    round: int
    metrics: dict[str, Any]
    iterate: list[np.ndarray]
    aggregate: list[np.ndarray]
    seconds: float


class ResumeError(RuntimeError):
    """A run cannot go on from what its folder holds."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When what is saved.

    Attributes:
      rounds: How many rounds the run has.
      state_every: The whole state is saved after every so many rounds, and at the
        end. In between, only the weights are: a killed run computes at most so many
        rounds again.
    """

    rounds: int
    state_every: int = 10

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"{field.name} must be a whole number of at least 1; got {value!r}"
                )

    def saves_state(self, done: int) -> bool:
        """Tells whether the whole state is saved when so many rounds are done."""
        return done == self.rounds or done % self.state_every == 0


def train(
    process: Any,
    *,
    schedule: Schedule,
    cohort: Callable[[int], Cohort],
    store: checkpoints.CheckpointStore,
    initialize: Callable[[], Any] | None = None,
    on_start: Callable[[int], None] | None = None,
    on_round: Callable[[Report], None] | None = None,
) -> Any:
    """Runs a DP-FTRL process to its last round, from wherever its store stands.

    After round r (r = 1, 2, …) the store holds, under r, 'iterate' and 'aggregate'
    and, as often as the schedule says, 'state'. Round 0 is the initial model.

    Args:
      process: A process of `tff_agg.build_dp_ftrl_process`; the runtime to use is set.
      schedule: How many rounds, and how often the state is saved.
      cohort: The clients of round t = 0, 1, …: a pure function of t.
      store: Where the checkpoints are; the run goes on from the newest whole state.
      initialize: Makes the state of round 0; the process's own by default.
      on_start: Called once with the number of rounds done before.
      on_round: Called with each round's report before anything of it is saved.

    Returns:
      The last state.

    Raises:
      ResumeError: The store has weights but no whole state to go on from, or a state
        of another process.
    """
    from tff_agg import process as process_lib
    from tff_agg import runtime

    state, done = _first_state(initialize or process.initialize, store)
    if on_start is not None:
        on_start(done)
    if done == 0 and not store.rounds("state"):
        # Before any noise is drawn: a run that dies in its first rounds must find the
        # same secret seed again.
        iterate, aggregate = _weights(process_lib, state)
        store.save(
            0, {"state": _flat(state), "iterate": iterate, "aggregate": aggregate}
        )
    if done >= schedule.rounds:
        # No save will follow to finish what the last one may have left undone.
        store.collect_garbage()
    while done < schedule.rounds:
        start = time.monotonic()
        clients = cohort(done)
        with runtime.naming(
            round=done, client_ids=clients.client_ids, client_costs=clients.costs
        ):
            output = process.next(state, list(clients.data))
        state = output.state
        done += 1
        iterate, aggregate = _weights(process_lib, state)
        items = {"iterate": iterate, "aggregate": aggregate}
        if schedule.saves_state(done):
            items["state"] = _flat(state)
        if on_round is not None:
            metrics = _numbers(output.metrics) | dict(clients.facts)
            seconds = time.monotonic() - start
            on_round(Report(done, metrics, iterate, aggregate, seconds))
        store.save(done, items)
    return state


def _first_state(
    initialize: Callable[[], Any], store: checkpoints.CheckpointStore
) -> tuple[Any, int]:
    """Returns the state to go on from, and how many rounds it has behind it."""
    template = initialize()
    restored = store.latest_valid("state")
    if restored is None:
        if store.rounds():
            raise ResumeError(
                f"{store.folder} has weights of {len(store.rounds())} rounds but no "
                "whole state to go on from. The secret seed of their noise is lost, "
                "and starting over would spend the privacy budget again: use another "
                "folder if that is what you want."
            )
        return template, 0
    flat = [np.asarray(leaf) for leaf in tree.flatten(template)]
    saved = restored.value
    if [(x.shape, x.dtype) for x in flat] != [(x.shape, x.dtype) for x in saved]:
        raise ResumeError(
            f"The state of round {restored.round} in {store.folder} is not one of this "
            "process: the model, the averager or the mechanism was another."
        )
    if restored.round:
        _log.info("Going on after round %d of %s", restored.round, store.folder)
    return tree.unflatten_as(template, saved), restored.round


def _flat(state: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in tree.flatten(state)]


def _weights(process_lib: Any, state: Any) -> tuple[list, list]:
    """Returns θ and θ^AGG as lists of numpy arrays."""
    iterate = _flat(process_lib.iterate(state))
    aggregate = _flat(process_lib.aggregate(state))
    same = all(np.array_equal(a, b) for a, b in zip(iterate, aggregate, strict=True))
    return iterate, iterate if same else aggregate


def _numbers(metrics: Any) -> dict[str, Any]:
    """Flattens a process's nested metrics to 'a/b/c' → number."""
    found = {}
    for path, leaf in tree.flatten_with_path(metrics):
        value = np.asarray(leaf)
        if value.ndim == 0 and value.dtype.kind in "biuf":
            found["/".join(map(str, path))] = value.item()
    return found
