"""What a run's ledger says, as tables and event files.

They are written from the ledger and never read by a run: what is lost, or has been
changed, is written again.
"""

import logging
from collections.abc import Mapping, Sequence

from tff_agg.aliases import Json, JsonObject
from tff_agg.experiment.run import event_files, tables
from tff_agg.experiment.run.ledger import Entry, History
from tff_agg.experiment.run.run_folder import RunFolder

_log = logging.getLogger(__name__)


class Projection:
    """The tables and event files of one run folder.

    Args:
      folder: The run's folder.
      names: The metrics that models are judged by.
    """

    def __init__(self, folder: RunFolder, names: Sequence[str]):
        """Names the files; nothing is written yet."""
        self._path, self._names = folder.path, list(names)
        self._events = event_files.EventFiles(self._path / "tensorboard")
        self._metrics: tables.RoundTable | None = None
        columns = ["round", "weights", "group", *self._names]
        self._validation = tables.RoundTable(self._path / "validation.csv", columns)
        self._tests = tables.RoundTable(self._path / "test.csv", columns)
        self._timing = tables.RoundTable(
            self._path / "timing.csv", ["round", "seconds"]
        )

    def restore(self, history: History | None) -> None:
        """Makes all files say what the ledger says; warns of what was lost."""
        reported = {} if history is None else dict(sorted(history.reported.items()))
        rounds = {} if history is None else history.rounds
        rows = [_row(n, rounds[n]["metrics"], reported[n]) for n in reported]
        if rows:
            self._metrics = self._metrics_table(list(rows[0]))
            self._restore(self._metrics, rows)
        timing = [{"round": n, "seconds": rounds[n]["seconds"]} for n in reported]
        self._restore(self._timing, timing)
        validated = {n: facts["validation"] for n, facts in reported.items()}
        scores = [r for n, found in validated.items() for r in self._scores(n, found)]
        self._restore(self._validation, scores)
        if history is not None and history.tested is not None:
            self._restore(self._tests, self._scores(history.last, history.tested))
        for row, (number, found) in zip(rows, validated.items(), strict=True):
            self._events.write(number, self._scalars(row, found))

    def add_round(
        self, number: int, metrics: Mapping[str, Json], seconds: float, reported: Entry
    ) -> dict[str, float]:
        """Adds a round, and returns its numbers; `validation` is that of the tuned one.

        Args:
          number: How many rounds are done.
          metrics: What the process measured.
          seconds: How long it took.
          reported: What the ledger will say of the report.
        """
        row, scores = _row(number, metrics, reported), reported["validation"]
        if self._metrics is None:
            self._metrics = self._metrics_table(list(row))
            self._restore(self._metrics, [])
        self._metrics.append(row)
        self._timing.append({"round": number, "seconds": round(seconds, 4)})
        for found in self._scores(number, scores):
            self._validation.append(found)
        facts = self._scalars(row, scores)
        self._events.write(number, facts)
        return facts

    def add_test(self, number: int, scores: Entry) -> None:
        """Writes the scores on the test data."""
        self._restore(self._tests, self._scores(number, scores), warn=False)

    def close(self) -> None:
        """Makes all of it durable."""
        self._events.close()
        for table in (self._metrics, self._timing, self._validation, self._tests):
            if table is not None and table.path.exists():
                table.sync()

    def _metrics_table(self, columns: list[str]) -> tables.RoundTable:
        return tables.RoundTable(self._path / "metrics.csv", columns)

    def _restore(
        self, table: tables.RoundTable, rows: Sequence[tables.Row], warn: bool = True
    ) -> None:
        missing = table.restore(rows)
        if missing and warn:
            _log.warning(
                "%s did not have what the run's ledger says of %d rounds, first round "
                "%d: it was written anew.",
                table.path,
                len(missing),
                missing[0],
            )

    def _scores(self, number: int, scores: Entry) -> list[tables.Row]:
        """Returns the rows of validation.csv or test.csv."""
        return [
            {"round": number, "weights": weights, "group": group}
            | {name: found[name] for name in self._names}
            for weights, by_group in scores.items()
            for group, found in by_group.items()
        ]

    def _scalars(self, row: Mapping[str, Json], scores: Entry) -> dict[str, float]:
        """Returns a round's numbers for event files and observers."""
        facts: dict[str, float] = {
            k: v for k, v in row.items() if isinstance(v, int | float)
        }
        for weights, by_group in scores.items():
            for group, found in by_group.items():
                for name in self._names:
                    facts[f"validation/{weights}/{group}/{name}"] = found[name]
        if scores:
            facts["validation"] = scores["aggregate"]["all"][self._names[0]]
        return facts


def _row(number: int, metrics: Mapping[str, Json], reported: Entry) -> JsonObject:
    """Returns a round's row of metrics.csv."""
    spent = reported["epsilon_so_far"]
    return {"round": number, **metrics, "epsilon_so_far": spent}
