"""Releases rounds: saves each, enters it in the ledger, and only then reports it."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tree

from tff_agg import checkpoints
from tff_agg.aliases import Json, JsonObject, Structure, Weights
from tff_agg.checkpoints.encoding import Prepared
from tff_agg.experiment.run.ledger import Entry, History
from tff_agg.experiment.run.resume import refuse_other
from tff_agg.experiment.run.run_folder import RunFolder
from tff_agg.recycling import series
from tff_agg.server import state as states

# What is kept of the newest rounds only: the state, and the one before it in case the
# disk damages the newest.
_KEPT = {"state": 2, "record": 2}
_KEPT_AT_THE_END = {"state": 1, "record": 0}


class Report(NamedTuple):
    """What a finished round reports.

    Attributes:
      round: How many rounds are done, this one included.
      metrics: By name, the numbers that the process measured, and the cohort's facts.
      iterate: θ of this round, by name, as numpy arrays.
      aggregate: θ^AGG of this round; the very same object where nothing is averaged.
      seconds: How long the round took, saving left out.
    """

    round: int
    metrics: JsonObject
    iterate: Weights
    aggregate: Weights
    seconds: float


class Releases:
    """The rounds of a run on their way out.

    Args:
      folder: The run's folder. Nobody else uses its ledger and its checkpoints while a
        round is released.
      history: What the ledger says, as it grows.
      planned: The plan's rounds; None where they are not known.
      weight_names: As for `loop.train`.
      on_round: As for `loop.train`.
    """

    def __init__(
        self,
        folder: RunFolder,
        history: History,
        planned: int | None,
        weight_names: Sequence[str] | None,
        on_round: Callable[[Report], Mapping[str, Json] | None] | None,
    ):
        """Releases nothing yet."""
        self._store, self._book, self._history = folder.store, folder.ledger, history
        self._planned, self._names, self._on_round = planned, weight_names, on_round

    def begin(self, state: Structure) -> None:
        """Saves the initial model with its secret seed, before any noise is drawn.

        A run that dies in its first rounds must find the same seed again.
        """
        prepared = self._store.prepare(stored_items(state, self._names))
        self._commit(prepared, {"round": 0, "released": _released(prepared)})

    def resume(self, done: int) -> None:
        """Completes what the last process may have left undone after `done` rounds."""
        self._store.collect_garbage()
        self._drop_old_states(done)

    def report_again(self, done: int) -> None:
        """Reports the last round where a process died before it had."""
        if 0 < done == self._history.last:
            self._report(_stored_report(self._history.rounds[done], self._store))

    def __call__(self, state: Structure, record: Entry, seconds: float) -> None:
        """Releases a round.

        Args:
          state: The state after it, the seed dropped if it is the plan's last.
          record: What the ledger is to say of it besides the released weights.
          seconds: How long it took.

        Raises:
          ReleasedRoundError: It was released before, and was another.
        """
        number = record["round"]
        items = stored_items(state, self._names)
        prepared = self._store.prepare(items)
        record = {"released": _released(prepared), **record}
        known = self._history.rounds.get(number)
        refuse_other(known, record)
        self._commit(prepared, known or {**record, "seconds": round(seconds, 4)})
        self._drop_old_states(number)
        iterate, aggregate = (items[name] for name in series.NAMES)
        if len(set(record["released"])) == 1:
            aggregate = iterate
        self._report(Report(number, record["metrics"], iterate, aggregate, seconds))

    def _commit(self, prepared: Prepared, record: Entry) -> None:
        """Saves a round, all together or not at all, and then enters it."""
        also = self._store.prepare({"record": json.dumps(record)})
        self._store.commit(record["round"], prepared | also)
        if record["round"] > self._history.last:
            self._book.add_round(record)

    def _drop_old_states(self, done: int) -> None:
        """Leaves the secret seed in the newest states only; after the last in none.

        Only then is there a wait: otherwise the next round makes it durable, or the
        next process drops them again. The records are in the ledger: the last one goes,
        too, because it says how long the round took, and all else in the store is
        reproducible.
        """
        last = done == self._planned
        self._store.discard(_KEPT_AT_THE_END if last else _KEPT, durable=last)

    def _report(self, report: Report) -> None:
        if self._on_round is not None and report.round not in self._history.reported:
            self._book.add_reported(report.round, self._on_round(report))


def is_reported_to_its_end(folder: RunFolder, planned: int) -> bool:
    """Returns whether the plan's last round was reported and the seed dropped."""
    store, history = folder.store, folder.history
    return (
        history is not None
        and planned in history.reported
        # As `_drop_old_states` leaves it.
        and store.rounds("state") == [planned]
        and not store.rounds("record")
        and planned in store.rounds("aggregate")
    )


def stored_items(
    state: Structure, names: Sequence[str] | None = None
) -> dict[str, Any]:
    """Returns what the store is to hold of a state.

    Args:
      state: The state.
      names: What to call the weights, in their order.

    Returns:
      'iterate' and 'aggregate' by name, and 'state', the arrays of all of it. An array
      that is in several of them is one object.
    """
    leaves = {id(leaf): np.asarray(leaf) for leaf in tree.flatten(state)}

    def as_array(leaf: Any) -> np.ndarray:
        return leaves[id(leaf)] if id(leaf) in leaves else np.asarray(leaf)

    return {
        "iterate": _named(states.iterate(state), names, as_array),
        "aggregate": _named(states.aggregate(state), names, as_array),
        "state": [as_array(leaf) for leaf in tree.flatten(state)],
    }


def _released(prepared: Prepared) -> list[str]:
    """Returns the digests of what a round releases: θ and θ^AGG."""
    return [prepared.digests[name] for name in series.NAMES]


def _stored_report(record: Entry, store: checkpoints.CheckpointStore) -> Report:
    """Makes a round's report from what was saved of it."""
    number = record["round"]
    iterate, aggregate = (store.load(number, name) for name in series.NAMES)
    if len(set(record["released"])) == 1:
        aggregate = iterate
    return Report(number, record["metrics"], iterate, aggregate, record["seconds"])


def _named(
    weights: Structure,
    names: Sequence[str] | None,
    as_array: Callable[[Any], np.ndarray],
) -> Weights:
    if names is not None and isinstance(weights, Mapping):
        # They bring their names; flattened, a mapping would come in another order.
        return {name: as_array(weights[name]) for name in names}
    found = tree.flatten_with_path(weights)
    if names is None:
        names = ["/".join(map(str, path)) or "weights" for path, _ in found]
    values = [as_array(leaf) for _, leaf in found]
    return dict(zip(names, values, strict=True))
