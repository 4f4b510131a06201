"""Tuning the aggregation's parameter (Algorithms 2 and 3).

Algorithm 3 tunes inference aggregation: every candidate is scored on validation data
with the checkpoints of one finished run. Algorithm 2 tunes training aggregation: every
candidate (p, τ) is a training run of its own. Either way all trials are recorded in a
journal, the best on validation is chosen, and only that one is scored on test data,
once. A search that was interrupted goes on where it stopped. What it means for the
guarantee of the runs it looked at is in `tff_agg.privacy.searches`; the paper's grids
are in `tff_agg.recycling.grids`.

| here                  | the paper                                    |
|-----------------------|----------------------------------------------|
| `Candidate.parameter` | p: β for EMA, k for UTA, OPA and OMV         |
| `Candidate.start`     | τ, the first step that uses the aggregate    |
| a grid                | R_p (Algorithm 3), R_{p,τ} (Algorithm 2)     |
"""

import dataclasses
import functools
import json
import logging
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tff_agg import files
from tff_agg.aliases import Json, JsonObject
from tff_agg.checkpoints import blobs
from tff_agg.recycling.metrics import ACCURACY, Metric, Values
from tff_agg.runtime import jobs

_log = logging.getLogger(__name__)

# So often a trial must have failed before the search may end without it.
ATTEMPTS = 2


class Candidate(NamedTuple):
    """One point of a grid."""

    method: str
    parameter: float | int | None = None
    start: int = 0

    def __str__(self) -> str:
        text = (
            self.method if self.parameter is None else f"{self.method} {self.parameter}"
        )
        return f"{text} from {self.start}" if self.start else text


class Trial(NamedTuple):
    """A candidate and its value on validation data."""

    candidate: Candidate
    validation: float


@dataclasses.dataclass(frozen=True)
class Choice:
    """The outcome of a search.

    Attributes:
      best: The candidate with the best validation value.
      validation: That value.
      test: Its value on test data, looked at once; None while a failed trial is
        still to be tried again, because its outcome may change the choice.
      trials: Everything that was tried, in the order of the grid.
      failed: The candidates whose trial failed, with the reason.
      looks: How many candidates of this method were ever scored on test data; more
        than one if the grid was enlarged after the first.
    """

    best: Candidate
    validation: float
    test: float | None
    trials: tuple[Trial, ...]
    failed: tuple[tuple[Candidate, str], ...] = ()
    looks: int = 1


def pick(trials: Iterable[Trial], metric: Metric = ACCURACY) -> Trial:
    """Returns the trial with the best validation value; of equals, the first.

    Example:
      >>> pick([Trial(Candidate('UTA_inf', 3), 0.2), Trial(Candidate('OMV', 5), 0.2)])
      Trial(candidate=Candidate(method='UTA_inf', parameter=3, start=0), validation=0.2)
    """
    best: Trial | None = None
    for trial in trials:
        before = math.nan if best is None else best.validation
        if metric.better(trial.validation, before):
            best = trial
    if best is None:
        raise ValueError(f"trials: there is none with a {metric.name} to choose from.")
    return best


class Journal:
    """A file of JSON lines that holds every trial, rewritten as a whole each time.

    Example:
      >>> journal = Journal('tuning/journal.jsonl', settings={'split': 'heldout'})
      >>> journal.record({'kind': 'trial', 'validation': 0.2})
    """

    def __init__(
        self, path: str | os.PathLike, settings: Mapping[str, Json] | None = None
    ):
        """Opens a journal.

        Args:
          path: The file; made by the first record.
          settings: What every trial has in common. A journal that was begun with other
            settings is refused: its trials would not be comparable.
        """
        self.path = pathlib.Path(path)
        self._lines: list[dict[str, Any]] = []
        if self.path.exists():
            text = self.path.read_text(encoding="utf-8")
            self._lines = [_renamed(json.loads(line)) for line in text.splitlines()]
        wanted = json.loads(json.dumps(dict(settings or {})))
        if not self._lines:
            self._lines = [{"kind": "settings", "settings": wanted}]
        found = self._lines[0].get("settings")
        if found != wanted:
            found = found or {}
            differing = sorted(
                key
                for key in found.keys() | wanted.keys()
                if found.get(key) != wanted.get(key)
            )
            changes = [f"{k}: {found.get(k)!r} → {wanted.get(k)!r}" for k in differing]
            raise ValueError(
                f"{self.path} was begun with other settings ({'; '.join(changes)}). "
                "Choose another folder, or the same settings."
            )

    def record(self, line: Mapping[str, Json]) -> None:
        """Adds a line; the file holds either all lines or those before."""
        self._lines.append(dict(line))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(entry) + "\n" for entry in self._lines)
        with blobs.storing("record a trial", self.path.parent):
            files.write_text(self.path, text, mode=0o600)

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Returns the lines of a kind: 'trial', 'failed', 'test' or 'metrics'."""
        return [line for line in self._lines if line["kind"] == kind]

    def values(self, kind: str) -> dict[Candidate, float]:
        """Returns the recorded values of a kind, by candidate."""
        return {
            Candidate(*line["candidate"]): line["value"] for line in self.lines(kind)
        }

    def note_metrics(self, split: str, candidate: Candidate, values: Values) -> None:
        """Records everything by which a candidate was scored on a split."""
        line = {"kind": "metrics", "split": split, "candidate": list(candidate)}
        self.record({**line, "values": dict(values)})

    def metrics(self, split: str) -> dict[Candidate, Values]:
        """Returns everything by which candidates were scored on a split."""
        return {
            Candidate(*line["candidate"]): line["values"]
            for line in self.lines("metrics")
            if line["split"] == split
        }

    def failures(self, candidate: Candidate) -> list[str]:
        """Returns why the trials of a candidate failed, the latest last."""
        lines = self.lines("failed")
        return [x["error"] for x in lines if Candidate(*x["candidate"]) == candidate]

    def runs_looked_at(self) -> int:
        """Returns how many trials were begun, failed ones and repeats included."""
        return len(self.lines("trial")) + len(self.lines("failed"))


def tune_inference(
    grid: Sequence[Candidate],
    validate: Callable[[list[Candidate]], Iterator[tuple[Candidate, float]]],
    test: Callable[[Candidate], float],
    journal: Journal,
    metric: Metric = ACCURACY,
) -> dict[str, Choice]:
    """Algorithm 3: picks each method's parameter on validation data.

    Args:
      grid: The candidates, of any methods.
      validate: Takes all candidates that have no score yet, so that they can share
        their forward passes, and yields (candidate, value of the metric).
      test: Scores one candidate on test data; called once for each method.
      journal: Where trials are recorded and found again.
      metric: What is tuned, with its direction.

    Returns:
      The choice for each method, in the order of the grid.

    Example:
      grid = [Candidate('UTA_inf', k) for k in (2, 3, 5)]
      choices = tune_inference(grid, validate, test, Journal('tuning.jsonl'))
      choices['UTA_inf'].best.parameter
    """
    if not grid:
        raise ValueError("grid is empty.")
    done = journal.values("trial")
    missing = [candidate for candidate in grid if candidate not in done]
    if missing:
        for candidate, value in validate(missing):
            _record(journal, "trial", candidate, value)
        done = journal.values("trial")
    choices = {}
    for method in dict.fromkeys(candidate.method for candidate in grid):
        trials = [Trial(c, done[c]) for c in grid if c.method == method]
        choices[method] = _choose(trials, test, journal, metric)
    return choices


def tune_training(
    grid: Sequence[Candidate],
    run: Callable[[Candidate], float],
    test: Callable[[Candidate], float],
    journal: Journal,
    on_trial: Callable[[int, int, Candidate, float | None], None] | None = None,
    metric: Metric = ACCURACY,
    spread: Callable[..., Iterable[jobs.Ended]] = jobs.spread,
) -> Choice:
    """Algorithm 2: trains with every (p, τ) and picks the best on validation data.

    Args:
      grid: The candidates.
      run: Trains with a candidate, going on where an earlier attempt stopped, and
        returns the final aggregate's validation value. A trial that raises an
        Exception is recorded as failed and tried again by the next search. `run`
        must leave the test data alone.
      test: Scores the chosen candidate's model on test data. Called once, when every
        trial has succeeded or has failed for the second time; from then on the same
        search runs nothing and returns what it returned.
      journal: Where trials are recorded and found again.
      on_trial: Called for each trial, those of earlier searches first, with its
        number, the size of the grid, the candidate and its value (None if it failed).
      metric: What is tuned, with its direction.
      spread: Runs trials, one after the other where not given: `jobs.spread` with
        options of its own runs them side by side or on a cluster.

    Raises:
      RuntimeError: All trials failed.
    """
    if not grid:
        raise ValueError("grid is empty.")

    def tell(candidate: Candidate) -> None:
        if on_trial is not None:
            value = journal.values("trial").get(candidate)
            on_trial(grid.index(candidate) + 1, len(grid), candidate, value)

    closed = _is_closed(grid, journal, metric)
    done = journal.values("trial")
    missing = [] if closed else [c for c in dict.fromkeys(grid) if c not in done]
    for candidate in grid:
        if candidate not in missing:
            tell(candidate)
    for ended in spread(functools.partial(_timed, run), missing):
        _note(ended, missing[ended.position], journal)
        tell(missing[ended.position])
    done = journal.values("trial")
    trials = [Trial(c, done[c]) for c in grid if c in done]
    failed = tuple((c, journal.failures(c)[-1]) for c in grid if c not in done)
    if not trials:
        raise RuntimeError(
            f"all {len(grid)} trials failed; the first with {failed[0][1]}"
        )
    if any(len(journal.failures(c)) < ATTEMPTS for c, _ in failed):
        best = pick(trials, metric)
        looks = _looks(best.candidate.method, journal)
        return Choice(*best, None, tuple(trials), failed, looks)
    choice = _choose(trials, test, journal, metric)
    return dataclasses.replace(choice, failed=failed)


def _is_closed(grid: Sequence[Candidate], journal: Journal, metric: Metric) -> bool:
    """Returns whether the search has ended: the best of this very grid was tested.

    To try a failed trial again after that could change the choice, and the test data
    would be looked at twice.
    """
    done = journal.values("trial")
    trials = [Trial(c, done[c]) for c in grid if c in done]
    missing = [c for c in grid if c not in done]
    if not trials or any(len(journal.failures(c)) < ATTEMPTS for c in missing):
        return False
    return pick(trials, metric).candidate in journal.values("test")


def _timed(
    run: Callable[[Candidate], float], candidate: Candidate
) -> tuple[float, float]:
    """Runs a trial; returns its value and its seconds."""
    start = time.monotonic()
    return run(candidate), time.monotonic() - start


def _note(ended: jobs.Ended, candidate: Candidate, journal: Journal) -> None:
    """Records how a trial went."""
    if (error := ended.error) is not None:
        _log.warning("The trial %s failed: %s", candidate, error)
        reason = f"{type(error).__name__}: {error}"
        journal.record(
            {"kind": "failed", "candidate": list(candidate), "error": reason}
        )
        return
    value, seconds = ended.value
    _record(journal, "trial", candidate, value, seconds=round(seconds, 3))


def _choose(trials: list[Trial], test, journal: Journal, metric: Metric) -> Choice:
    """Picks the best; scores it on test data unless that was done before."""
    best = pick(trials, metric)
    tested = journal.values("test")
    if best.candidate not in tested:
        _record(journal, "test", best.candidate, test(best.candidate))
        tested = journal.values("test")
    return Choice(
        best.candidate,
        best.validation,
        tested[best.candidate],
        tuple(trials),
        looks=_looks(best.candidate.method, journal),
    )


def _looks(method: str, journal: Journal) -> int:
    """Returns how many candidates of a method were scored on test data."""
    return sum(found.method == method for found in journal.values("test"))


def _record(journal: Journal, kind: str, candidate: Candidate, value, **more):
    line: JsonObject = {
        "kind": kind,
        "candidate": list(candidate),
        "value": float(value),
    }
    journal.record({**line, **more})


def _renamed(line: dict[str, Any]) -> dict[str, Any]:
    """Reads a line of a journal from before metrics had names."""
    if "accuracy" in line:
        line["value"] = line.pop("accuracy")
    return line
