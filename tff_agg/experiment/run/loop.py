"""The training loop: rounds, checkpoints and metrics; stop anywhere, resume anywhere.

A round is computed, saved with all that resuming needs (one atomic commit), entered in
the run's ledger, and only then reported. So a killed run never computes a round again
that was released, and may resume on another machine. Only where a stored state was
damaged does an earlier one take its place; then the rounds after it are computed again,
compared bit for bit with what was released, and refused if they differ.

While a round is computed, another thread reads the clients of the next one, and a third
releases the one before: one at a time, in order. A process that dies takes at most one
round along that was computed and not yet saved. Nobody has seen anything of it, and its
noise is the same when it is computed again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tree

from tff_agg import checks
from tff_agg.aliases import Json, JsonObject, Structure
from tff_agg.experiment.build.process import (
    Cohort,
    NotChecked,
    Process,
    by_state,
)
from tff_agg.experiment.run import background, read_ahead
from tff_agg.experiment.run import identity as identities
from tff_agg.experiment.run.identity import IdentityError
from tff_agg.experiment.run.ledger import ResumeError
from tff_agg.experiment.run.releasing import Releases, Report
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
        `DPSGDProcess`'s are. It leaves a state that it was given as it is: that is
        being saved meanwhile.
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
      on_round: Called with each round's report after it is saved, in a thread of its
        own, while the next round is computed; what it raises ends the run before that
        round is saved. What it returns (JSON values) is kept in the ledger. A process
        that dies before it returns is followed by one that calls it for the same round
        again.

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
    state, done, saved, history = begin(
        facts, surroundings, initialize or process.initialize, folder
    )
    release = Releases(folder, history, planned, weight_names, on_round)
    if saved:
        release.resume(done)
    else:
        release.begin(state)
    if on_start is not None:
        on_start(done)
    release.report_again(done)
    with (
        read_ahead.ReadAhead(by_state(cohort, is_drawn), rounds) as clients_of,
        background.Background() as releasing,
    ):
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
            record["metrics"] = _numbers(output.metrics) | dict(clients.facts)
            releasing.do(release, state, record, time.monotonic() - start)
            if known is not None:
                # Nothing is computed from what is not what was released.
                releasing.wait()
        releasing.wait()
    return state


def _planned_rounds(facts: Mapping[str, Any], rounds: int) -> int | None:
    """Returns the plan's rounds where they are known; refuses to go beyond them."""
    checks.whole("rounds", rounds)
    planned = facts["process"].get("plan", {}).get("rounds")
    if planned is not None and rounds > planned:
        raise ValueError(f"rounds={rounds}: the plan is for {planned} rounds")
    return planned


def _digest_or_reason(digest: str | NotChecked) -> str:
    if isinstance(digest, NotChecked):
        return f"not checked: {digest.reason}"
    return digest


def _numbers(metrics: Structure) -> JsonObject:
    """Flattens a process's nested metrics to 'a/b/c' → number."""
    found: JsonObject = {}
    for path, leaf in tree.flatten_with_path(metrics):
        value = np.asarray(leaf)
        if value.ndim == 0 and value.dtype.kind in "biuf":
            found["/".join(map(str, path))] = value.item()
    return found
