"""Begins a run, or finds where it stands and whether it may go on from there."""

import json
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import tree

from tff_agg import checkpoints
from tff_agg.aliases import Json, Structure
from tff_agg.experiment.run.identity import IdentityError, differences
from tff_agg.experiment.run.ledger import History, Ledger, ResumeError
from tff_agg.experiment.run.run_folder import RunFolder

_log = logging.getLogger(__name__)


class ReleasedRoundError(ResumeError):
    """A round that was released before comes out differently."""


class Begun(NamedTuple):
    """A run that may go on.

    Attributes:
      state: The state to go on from.
      done: How many rounds it has behind it.
      saved: Whether the store holds it already; False for a new run.
      history: What the ledger says; `history.last` is above `done` where states were
        damaged and rounds have to be computed again.
    """

    state: Structure
    done: int
    saved: bool
    history: History


def begin(
    facts: Mapping[str, Json],
    surroundings: Mapping[str, Json],
    initialize: Callable[[], Structure],
    folder: RunFolder,
) -> Begun:
    """Begins a run or finds where it stands; writes nothing unless it may go on.

    Args:
      facts: The run's identity.
      surroundings: Where it runs now.
      initialize: Makes the state of round 0.
      folder: The run's folder.

    Raises:
      IdentityError: The run was begun as something else.
      ResumeError: Rounds were released but there is no state to go on from.
    """
    store, book = folder.store, folder.ledger
    history = folder.history
    if history is None:
        if store.has_rounds():
            raise ResumeError(
                f"{store.folder} has checkpoints, but {book.path} is missing: what "
                "the run was begun as is not known, and going on or starting over "
                "would spend the privacy budget again. Put the ledger back, or use "
                "another folder."
            )
        state = initialize()
        return Begun(state, 0, False, book.create(facts, surroundings))
    folder.check_identity(facts)
    restored = store.latest_valid("state")
    if restored is None:
        if history.rounds or store.has_rounds():
            raise ResumeError(
                f"{book.path.parent} has released {max(history.last, 0)} rounds, but "
                f"{store.folder} holds no whole state to go on from. The secret seed "
                "of their noise is lost, and starting over would spend the privacy "
                "budget again: put the checkpoints back, or use another folder."
            )
        state = initialize()
        return Begun(state, 0, False, _in(surroundings, book, 0))
    unentered = [n for n in store.rounds("record") if n > history.last]
    _check_surroundings(
        history, surroundings, restored.round, max([history.last, *unentered]), book
    )
    state = _unflatten(initialize(), restored, store)
    # From here on it is this run: what a crash left undone is completed.
    history = book.open()
    for number in unentered:
        # Saved, and then the process died before it could enter it.
        book.add_round(json.loads(store.load(number, "record")))
    if restored.round > history.last:
        raise ResumeError(
            f"{store.folder} has a state of round {restored.round} that {book.path} "
            "does not know: it is of another run"
        )
    if restored.round:
        _log.info("Going on after round %d of %s", restored.round, book.path.parent)
    history = _in(surroundings, book, restored.round + 1)
    return Begun(state, restored.round, True, history)


def _in(surroundings: Mapping[str, Json], book: Ledger, first: int) -> History:
    """Enters other surroundings, if they are."""
    history = book.open()
    if lines := differences(history.surroundings_of(first), dict(surroundings)):
        _log.info("From round %d on: %s", first, "; ".join(lines))
        book.add_segment(first, surroundings)
    return history


def _check_surroundings(
    history: History,
    surroundings: Mapping[str, Json],
    done: int,
    released: int,
    book: Ledger,
) -> None:
    """Refuses to compute a released round again where its last bits may differ."""
    for number in range(done + 1, released + 1):
        lines = differences(history.surroundings_of(number), dict(surroundings))
        if lines:
            raise IdentityError(
                f"The newest whole state in {book.path.parent} is of round {done}, but "
                f"{released} rounds were released: round {number} has to be computed "
                "again and must come out the same to the last bit. Go on where it was "
                "computed first; after that the run may move.\n  " + "\n  ".join(lines)
            )


def _unflatten(
    template: Structure,
    restored: checkpoints.Restored,
    store: checkpoints.CheckpointStore,
) -> Structure:
    flat = [np.asarray(leaf) for leaf in tree.flatten(template)]
    saved = restored.value
    if [(x.shape, x.dtype) for x in flat] != [(x.shape, x.dtype) for x in saved]:
        raise ResumeError(
            f"The state of round {restored.round} in {store.folder} is not one of this "
            "process: the model, the averager or the mechanism was another."
        )
    return tree.unflatten_as(template, saved)


def refuse_other(
    known: Mapping[str, object] | None, found: Mapping[str, object]
) -> None:
    """Refuses a round that is not what was released before.

    Args:
      known: The record of its release; None if it is released for the first time.
      found: What has come out now; any part of a record.

    Raises:
      ReleasedRoundError: They differ. Nothing has been overwritten.
    """
    if known is None:
        return
    # As text, in which NaN is equal to itself.
    other = [n for n in found if json.dumps(found[n]) != json.dumps(known[n])]
    if other:
        raise ReleasedRoundError(
            f"Round {known['round']} was released before and now comes out with other "
            f"{', '.join(other)}. Two releases under one noise would show what they "
            "differ in, so that nothing was overwritten: go on with the same clients, "
            "data and code, or begin another run in another folder."
        )
