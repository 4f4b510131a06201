"""A run's ledger: what it was begun as, and every round that it has released.

The file is a line of JSON for each entry, with a checksum, and only ever grows:

| kind | says |
|---|---|
| identity | what the run was begun as |
| segment | from which round on it ran in which surroundings |
| round | a round is saved: cohort, data, released weights (digests) and metrics |
| reported | `on_round` has returned for that round, and what it returned |
| tested | the last model was scored on the test data, and its scores |

A round is saved first, then entered here, then reported: whatever shows a round to the
world comes after its entry. Entries are durable when they are made, except that of a
report, which becomes so with the next round's: if a power failure takes it, the last
round is reported again. The ledger lies outside the checkpoints, so that a run whose
checkpoints are gone is still known to have released its rounds.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, TypeAlias

from tff_agg import checks, digests, files
from tff_agg.aliases import Json, JsonObject
from tff_agg.checkpoints import blobs

NAME = "ledger.jsonl"

#: An entry, or a part of one, as JSON reads it; its keys follow from its kind.
Entry: TypeAlias = dict[str, Any]


class ResumeError(RuntimeError):
    """A run cannot go on from what its folder holds."""


@dataclasses.dataclass
class History:
    """What a ledger says.

    Attributes:
      identity: What the run was begun as.
      segments: By first round, the surroundings from there on.
      rounds: By round, its record; round 0 is the initial model.
      reported: By round, what `on_round` returned.
      tested: The test scores of the last model; None before.
    """

    identity: JsonObject
    segments: dict[int, JsonObject] = dataclasses.field(default_factory=dict)
    rounds: dict[int, Entry] = dataclasses.field(default_factory=dict)
    reported: dict[int, Entry] = dataclasses.field(default_factory=dict)
    tested: Entry | None = None

    @property
    def last(self) -> int:
        """The last round that was released; −1 before the initial model was saved."""
        return max(self.rounds, default=-1)

    @property
    def validated(self) -> dict[int, Entry]:
        """By round, the scores on validation data, where there are some."""
        found = {n: facts.get("validation", {}) for n, facts in self.reported.items()}
        return {number: scores for number, scores in found.items() if scores}

    def surroundings_of(self, number: int) -> JsonObject:
        """Returns the surroundings in which a round was, or would be, computed."""
        return self.segments[max(r for r in self.segments if r <= max(number, 0))]


class Ledger:
    """The file `ledger.jsonl` of a run folder. One process writes, any may read.

    It is read once: what is appended here is known, and what another process appends
    makes it longer.

    Example:
      Ledger('runs/uta').read().last  # 2000
    """

    def __init__(self, folder: str | os.PathLike):
        """Names the run's folder; nothing is read or written yet."""
        self.path = pathlib.Path(folder) / NAME
        self._history: History | None = None
        # How long the file is, and how much of it is whole entries.
        self._size = self._whole = 0

    def read(self) -> History | None:
        """Returns what the ledger says; None if there is none.

        A last line that a crash left half-written counts as never written.

        Raises:
          ResumeError: The file is damaged.
        """
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            self._history = None
            return None
        if self._history is None or size != self._size:
            content = self.path.read_bytes()
            entries, self._whole = _parse(content, self.path)
            self._history, self._size = _history(entries, self.path), len(content)
        return self._history

    def create(
        self, identity: Mapping[str, Json], surroundings: Mapping[str, Json]
    ) -> History:
        """Begins the ledger of a new run, durable before this returns."""
        entries: list[Entry] = [
            {"kind": "identity", "identity": dict(identity)},
            {"kind": "segment", "from": 0, "surroundings": dict(surroundings)},
        ]
        with blobs.storing("begin the ledger", self.path):
            blobs.make_folder(self.path.parent)
            files.write_bytes(self.path, *map(_line, entries), mode=0o600)
        return self.open()

    def open(self) -> History:
        """Returns the history for a writer, and cuts off what a crash left behind."""
        with files.path_in_errors(self.path):
            history = self.read()
            if history is None:
                raise FileNotFoundError(f"{self.path} is not there")
            if self._whole < self._size:
                os.truncate(self.path, self._whole)
                self._size = self._whole
        return history

    def add_segment(self, first: int, surroundings: Mapping[str, Json]) -> None:
        """Enters that the run resumes from a round in other surroundings."""
        self._append(
            {"kind": "segment", "from": first, "surroundings": dict(surroundings)}
        )

    def add_round(self, record: Mapping[str, object]) -> None:
        """Enters a round that has been saved."""
        self._append({"kind": "round", **record})

    def add_reported(self, number: int, facts: Mapping[str, Json] | None) -> None:
        """Enters that a round has been reported; durable with the next entry."""
        entry = {"kind": "reported", "round": number, "facts": dict(facts or {})}
        self._append(entry, durable=False)

    def add_tested(self, scores: Mapping[str, Json]) -> None:
        """Enters the test scores of the last model: nobody looks a second time."""
        self._append({"kind": "tested", "scores": dict(scores)})

    def _append(self, entry: Entry, *, durable: bool = True) -> None:
        """Adds a line, durable before this returns; all of it or none."""
        assert self._history is not None, "open or create comes first"
        line = _line(entry)
        with files.path_in_errors(self.path):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                before = os.fstat(descriptor).st_size
                try:
                    rest = memoryview(line)
                    while rest.nbytes:
                        rest = rest[os.write(descriptor, rest) :]
                    if durable:
                        os.fsync(descriptor)
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.ftruncate(descriptor, before)
                    raise
            finally:
                os.close(descriptor)
        self._size = self._whole = before + len(line)
        _enter(self._history, entry)


def _line(entry: Mapping[str, object]) -> bytes:
    body = json.dumps(entry, separators=(",", ":"), ensure_ascii=False)
    checksum = digests.of_bytes(body.encode())[:16]
    return f'{{"checksum":"{checksum}","entry":{body}}}\n'.encode()


def _parse(content: bytes, path: pathlib.Path) -> tuple[list[Entry], int]:
    """Returns the whole entries and how many bytes they take."""
    entries: list[Entry] = []
    begin = 0
    while begin < len(content):
        end = content.find(b"\n", begin) + 1 or len(content)
        try:
            entry = json.loads(content[begin:end])["entry"]
            good = _line(entry) == content[begin:end]
        except (ValueError, KeyError, TypeError, RecursionError):
            good = False
        if not good:
            if end < len(content) or not entries:
                raise ResumeError(
                    f"{path} is damaged in line {len(entries) + 1}. It says what the "
                    "run has released, and without it the run cannot go on: put back a "
                    "good copy, or begin another run in another folder."
                )
            return entries, begin
        entries.append(entry)
        begin = end
    return entries, begin


def _history(entries: list[Entry], path: pathlib.Path) -> History:
    number = 0
    try:
        if not entries or entries[0]["kind"] != "identity":
            raise ResumeError(f"{path} is not the ledger of a run")
        history = History(_object(entries[0]["identity"]))
        for number, entry in enumerate(entries[1:], start=1):  # noqa: B007
            _enter(history, entry)
    except (KeyError, TypeError) as error:
        raise ResumeError(
            f"{path} is damaged in line {number + 1}: it lacks {error}, or that has "
            "another type than this code writes"
        ) from error
    if sorted(history.rounds) != list(range(len(history.rounds))):
        raise ResumeError(f"{path} is damaged: rounds are missing from it")
    if 0 not in history.segments:
        raise ResumeError(f"{path} is damaged: it lacks the surroundings of round 0")
    return history


def _enter(history: History, entry: Entry) -> None:
    match entry["kind"]:
        case "segment":
            first = _whole(entry["from"])
            history.segments[first] = _object(entry["surroundings"])
        case "round":
            record = {k: v for k, v in entry.items() if k != "kind"}
            history.rounds[_whole(entry["round"])] = record
        case "tested":
            history.tested = _object(entry["scores"])
        case "reported":
            history.reported[_whole(entry["round"])] = _object(entry["facts"])


def _whole(value: object) -> int:
    if not checks.is_whole(value):
        raise TypeError("a whole number")
    return value


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("an object")
    return value
