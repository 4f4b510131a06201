"""All scores of a study: rows in parts that are written once, and never changed.

A score says of which run it is, of which series of its weights, by which method, after
which round, on which data, by which metric. Nothing else is cached: what is asked and
is not here is computed, and what is here is not computed again.

Each job writes a part of its own, whole or not at all, named after what is in it. So
processes, machines on one storage, and two commands in one folder have nothing to lock.
The parts are CSV files, in which numbers come back to the last bit.
"""

import csv
import json
import os
import pathlib
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tff_agg import digests, files
from tff_agg.aliases import Json
from tff_agg.experiment.study import show
from tff_agg.experiment.study.declare import Question, Rows, Score
from tff_agg.experiment.study.show import Table
from tff_agg.recycling.methods import Grouped, Method
from tff_agg.recycling.metrics import Values

if TYPE_CHECKING:
    import polars

#: The columns of a part.
COLUMNS = ("run", *Score._fields)
#: The group of all examples together.
ALL = "all"


class Key(NamedTuple):
    """Of what the values of a run are."""

    series: str
    method: str
    round: int
    split: str
    examples: int


class Scores:
    """The scores of a study.

    Args:
      out: The study's folder. Parts are read when they are asked for.

    Example:
      >>> scores = Scores('results/demo')
      >>> scores.add('0123', [Score('iterate', 'last', 9, 'test', 9, 'all', 'loss', 1)])
      >>> scores.values('0123', Key('iterate', 'last', 9, 'test', 9))
      {'loss': 1.0}
    """

    def __init__(self, out: str | os.PathLike):
        self.folder = pathlib.Path(out) / "scores"
        self._read: set[str] = set()
        self._runs: dict[str, dict[Key, dict[str, dict[str, float]]]] = {}

    def values(self, run: str, key: Key, group: str = ALL) -> Values | None:
        """Returns the values of a model by the metric's name; None if it has none."""
        return self._of(run).get(key, {}).get(group)

    def keys(self, run: str) -> list[Key]:
        """Returns what the scores of a run are of, in order."""
        return sorted(self._of(run))

    def missing(self, run: str | None, questions: Iterable[Question]) -> list[Question]:
        """Returns what is asked of a run and not there; methods and rounds apart.

        Args:
          run: The run; None for one that is not there.
          questions: What is asked; it may overlap.
        """
        return missing({} if run is None else self._of(run), questions)

    def add(self, run: str, rows: Rows) -> None:
        """Writes a part, whole or not at all."""
        if not rows:
            return
        cells = [(run, *row[:-1], repr(float(row.value))) for row in rows]
        text = show.render(Table(COLUMNS, cells), "csv")
        name = f"{run}-{digests.of_bytes(text.encode())[:16]}.csv"
        self.folder.mkdir(parents=True, exist_ok=True)
        files.write_text(self.folder / name, text, many_writers=True)

    def rows(self, runs: Iterable[str]) -> list[tuple[str, Score]]:
        """Returns the scores of runs, each once."""
        return [
            (run, Score(*key, group, metric, value))
            for run in dict.fromkeys(runs)
            for key, groups in sorted(self._of(run).items())
            for group, values in groups.items()
            for metric, value in values.items()
        ]

    def frame(self, runs: Iterable[str]) -> "polars.DataFrame":
        """Returns the scores of runs as a table."""
        import polars

        types = (str, str, str, int, str, int, str, str, float)
        return polars.DataFrame(
            [(run, *score) for run, score in self.rows(runs)],
            schema=dict(zip(COLUMNS, types, strict=True)),
            orient="row",
        )

    def refresh(self) -> None:
        """Reads the parts that were written since; by other processes, too."""
        names = os.listdir(self.folder) if self.folder.exists() else []
        for name in sorted(set(names) - self._read):
            if name.endswith(".csv"):
                self._read.add(name)
                self._take(self.folder / name)

    def _of(self, run: str) -> dict[Key, dict[str, dict[str, float]]]:
        if not self._read:
            self.refresh()
        return self._runs.get(run, {})

    def _take(self, path: pathlib.Path) -> None:
        """Takes the rows of a part; of what is there already the first stays."""
        try:
            with open(path, newline="", encoding="utf-8") as file:
                rows = csv.reader(file)
                if tuple(next(rows)) != COLUMNS:
                    raise ValueError(f"its columns are not {', '.join(COLUMNS)}")
                for run, series, method, number, split, examples, *of in rows:
                    key = Key(series, method, int(number), split, int(examples))
                    group, metric, value = of
                    groups = self._runs.setdefault(run, {}).setdefault(key, {})
                    groups.setdefault(group, {}).setdefault(metric, float(value))
        except (ValueError, StopIteration, csv.Error) as error:
            raise ValueError(
                f"{path} is damaged ({error}): remove it, and what it said is computed "
                "again"
            ) from error


def missing(known: Container[Key], questions: Iterable[Question]) -> list[Question]:
    """Returns the questions that are not answered by what is known, none twice."""
    wanted: dict[tuple[str, int, str], dict[Method, set[int]]] = {}
    for split, examples, series, methods, rounds in questions:
        by_method = wanted.setdefault((split, examples, series), {})
        for method in methods:
            by_method.setdefault(method, set()).update(
                number
                for number in rounds
                if Key(series, str(method), number, split, examples) not in known
            )
    left = []
    for (split, examples, series), by_method in wanted.items():
        together: dict[tuple[int, ...], list[Method]] = {}
        for method, numbers in by_method.items():
            if numbers:
                together.setdefault(tuple(sorted(numbers)), []).append(method)
        left += [
            Question(split, examples, series, tuple(methods), rounds)
            for rounds, methods in together.items()
        ]
    return left


def rows_of(key: Key, found: Grouped) -> list[Score]:
    """Returns the rows of a model's values by group and metric."""
    return [
        Score(*key, group, metric, float(value))
        for group, values in found.items()
        for metric, value in values.items()
    ]


def known_of(rows: Rows) -> set[Key]:
    """Returns what rows are of."""
    return {Key(*row[:5]) for row in rows}


def digest(facts: Mapping[str, Json], *more: str) -> str:
    """Names a run by what it is."""
    text = json.dumps(facts, sort_keys=True, default=repr)
    return digests.of_bytes("\n".join([text, *more]).encode())[:32]
