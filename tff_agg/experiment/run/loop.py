"""The training loop: rounds, checkpoints and metrics; stop anywhere, resume anywhere.

A round is computed, saved with all that resuming needs (one atomic commit), entered in
the run's ledger, and only then reported. So a killed run never computes a round again
that was released, and may resume on another machine. Only where a stored state was
damaged does an earlier one take its place; then the rounds after it are computed again,
compared bit for bit with what was released, and refused if they differ.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tree

from tff_agg import checkpoints, checks
from tff_agg.aliases import Json, JsonObject, Structure, Weights
from tff_agg.checkpoints.encoding import Prepared
from tff_agg.experiment.build.process import (
    Cohort,
    NotChecked,
    Process,
    by_state,
)
from tff_agg.experiment.run import identity as identities
from tff_agg.experiment.run import read_ahead
from tff_agg.experiment.run.identity import IdentityError
from tff_agg.experiment.run.ledger import Entry, History, Ledger, ResumeError
from tff_agg.experiment.run.resume import ReleasedRoundError, begin, refuse_other
from tff_agg.experiment.run.run_folder import RunFolder
from tff_agg.server import state as states

__all__ = [
    "Cohort",
    "IdentityError",
    "ReleasedRoundError",
    "Report",
    "ResumeError",
    "train",
]

# The newest state, and the one before it in case the disk damages the newest.
_STATES = 2


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


def train(
    process: Process,
    *,
    identity: identities.Identity,
    folder: RunFolder,
    rounds: int,
    cohort: Callable[..., Cohort],
    is_drawn: bool = False,
    weight_names: Sequence[str] | None = None,
    initialize: Callable[[], Structure] | None = None,
    surroundings: Mapping[str, Json] | None = None,
    on_start: Callable[[int], None] | None = None,
    on_round: Callable[[Report], Mapping[str, Json] | None] | None = None,
) -> Structure:
    """Runs a process to its last round, from wherever its folder stands.

    After round r (r = 1, 2, …) the store holds, under r, 'iterate' and 'aggregate'.
    Round 0 is the initial model. The newest two rounds also have 'state', which holds
    the secret seed of the noise. When the plan's last round is done, seed and noise
    are dropped: the last state has zeros in their place, earlier states are removed.

    Args:
      process: A process of `tff_agg.build_dp_ftrl_process`, where the runtime to use is
        set; or another whose states are those of `tff_agg.server.state`, as a
        `DPSGDProcess`'s are.
      identity: What the run is. It is stored before any noise is drawn; a run goes on
        only under the same one.
      folder: The run's folder: its ledger and its checkpoints. The run goes on from the
        newest whole state.
      rounds: Go on until so many rounds are done; at most the plan's.
      cohort: The clients of round t = 0, 1, …: a pure function of t. The next round's
        are read while one is computed, in another thread.
      is_drawn: Whether clients are drawn by chance. Then `cohort` is a function of t
        and a secret, the seed in the state.
      weight_names: What to call the trainable weights in checkpoints, in their order;
        by default their places in the model's structure.
      initialize: Makes the state of round 0; the process's own by default.
      surroundings: What the last bits depend on; `identity.surroundings()` by default.
      on_start: Called once with the number of rounds done before.
      on_round: Called with each round's report after it is saved. What it returns
        (JSON values) is kept in the ledger. A process that dies before it returns is
        followed by one that calls it for the same round again.

    Returns:
      The last state.

    Raises:
      IdentityError: The run was begun as something else.
      ReleasedRoundError: A round computed again is not what was released.
      ResumeError: Rounds were released, but there is no whole state to go on from.
    """
    from tff_agg import runtime

    facts = identity.facts(process)
    planned = _planned_rounds(facts, rounds)
    if surroundings is None:
        surroundings = identities.surroundings()
    store, book = folder.store, folder.ledger
    state, done, saved, history = begin(
        facts, surroundings, initialize or process.initialize, folder
    )
    if not saved:
        # Before any noise is drawn: a run that dies in its first rounds must find the
        # same secret seed again.
        saving = _prepare(store, state, weight_names)
        _commit(store, book, history, saving, {"round": 0, "released": saving.released})
    else:
        # What the last process may have left undone.
        store.collect_garbage()
        _drop_old_states(store, last=done == planned)
    if on_start is not None:
        on_start(done)
    unreported = done == history.last and done not in history.reported
    if on_round is not None and done > 0 and unreported:
        book.add_reported(done, on_round(_stored_report(history.rounds[done], store)))
    with read_ahead.ReadAhead(by_state(cohort, is_drawn), rounds) as clients_of:
        while done < rounds:
            start = time.monotonic()
            clients = clients_of(done, state)
            known = history.rounds.get(done + 1)
            record = {
                "round": done + 1,
                "cohort": identities.ids_digest(clients.client_ids),
                "data": _digest_or_reason(clients.digest),
            }
            refuse_other(known, record)
            with (
                runtime.naming(round=done, client_ids=clients.client_ids),
                runtime.balancing_lanes(clients.costs),
            ):
                output = process.next(state, list(clients.data))
            state = output.state
            done += 1
            if done == planned:
                state = states.without_noise(state)
            saving = _prepare(store, state, weight_names)
            metrics = _numbers(output.metrics) | dict(clients.facts)
            record |= {"released": saving.released, "metrics": metrics}
            refuse_other(known, record)
            seconds = time.monotonic() - start
            record["seconds"] = round(seconds, 4)
            _commit(store, book, history, saving, known or record)
            _drop_old_states(store, last=done == planned)
            if on_round is not None and done not in history.reported:
                report = Report(done, metrics, *saving.weights, seconds)
                book.add_reported(done, on_round(report))
    return state


def _planned_rounds(facts: Mapping[str, Any], rounds: int) -> int | None:
    """Returns the plan's rounds where they are known; refuses to go beyond them."""
    checks.whole("rounds", rounds)
    planned = facts["process"].get("plan", {}).get("rounds")
    if planned is not None and rounds > planned:
        raise ValueError(f"rounds={rounds}: the plan is for {planned} rounds")
    return planned


class _Saving(NamedTuple):
    """What of a round is to be saved, its arrays digested.

    Attributes:
      prepared: Weights and state.
      weights: θ and θ^AGG by name; the same object where they are the same.
    """

    prepared: Prepared
    weights: tuple[Weights, Weights]

    @property
    def released(self) -> list[str]:
        """The digests of what a round releases: θ and θ^AGG."""
        return [self.prepared.digests[name] for name in ("iterate", "aggregate")]


def _prepare(
    store: checkpoints.CheckpointStore,
    state: Structure,
    names: Sequence[str] | None,
) -> _Saving:
    """Digests weights and state, to be compared with the ledger and saved."""
    items = stored_items(state, names)
    prepared = store.prepare(items)
    same = prepared.digests["iterate"] == prepared.digests["aggregate"]
    iterate, aggregate = items["iterate"], items["aggregate"]
    return _Saving(prepared, (iterate, iterate if same else aggregate))


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


def _commit(
    store: checkpoints.CheckpointStore,
    book: Ledger,
    history: History,
    saving: _Saving,
    record: Entry,
) -> None:
    """Saves a round, all together or not at all, and then enters it in the ledger."""
    also = store.prepare({"record": json.dumps(record)})
    store.commit(record["round"], saving.prepared | also)
    if record["round"] > history.last:
        book.add_round(record)


def _drop_old_states(store: checkpoints.CheckpointStore, *, last: bool) -> None:
    """Leaves the secret seed in the newest states only; after the last round in none.

    Only then is there a wait: otherwise the next round makes it durable, or the next
    process drops them again. The records are in the ledger: the last one goes, too,
    because it says how long the round took, and all else in the store is reproducible.
    """
    kept = {"state": 1, "record": 0} if last else {"state": _STATES, "record": _STATES}
    store.discard(kept, durable=last)


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


def _stored_report(record: Entry, store: checkpoints.CheckpointStore) -> Report:
    """Makes a round's report from what was saved of it."""
    number = record["round"]
    iterate, aggregate = (store.load(number, n) for n in ("iterate", "aggregate"))
    first, second = record["released"]
    if first == second:
        aggregate = iterate
    return Report(number, record["metrics"], iterate, aggregate, record["seconds"])


def _digest_or_reason(digest: str | NotChecked) -> str:
    if isinstance(digest, NotChecked):
        return f"not checked: {digest.reason}"
    return digest


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


def _numbers(metrics: Structure) -> JsonObject:
    """Flattens a process's nested metrics to 'a/b/c' → number."""
    found: JsonObject = {}
    for path, leaf in tree.flatten_with_path(metrics):
        value = np.asarray(leaf)
        if value.ndim == 0 and value.dtype.kind in "biuf":
            found["/".join(map(str, path))] = value.item()
    return found
