"""Tables that grow by a row per round and survive a crash: plain CSV files."""

import csv
import io
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tff_agg import files

#: A row, by column; its round is a number.
Row = Mapping[str, Any]


class RoundTable:
    """A CSV file with a fixed header whose first column is the round.

    Rows are appended one by one. They need not be durable, and a process that was
    killed may leave half a row: the run's ledger says the same, and `restore` puts it
    back.

    Example:
      >>> table = RoundTable('metrics.csv', ['round', 'loss'])
      >>> table.restore([])
      []
      >>> table.append({'round': 1, 'loss': 0.5})
    """

    def __init__(self, path: str | os.PathLike, columns: Sequence[str]):
        """Names the file and its columns; nothing is written yet."""
        if not columns or columns[0] != "round":
            raise ValueError(f"the first column must be 'round'; got {list(columns)}")
        self.path = pathlib.Path(path)
        self.columns = list(columns)

    def restore(self, rows: Sequence[Row]) -> list[int]:
        """Makes the file hold exactly these rows.

        Returns:
          The rounds that were missing from it or had other numbers.
        """
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        wanted = text.getvalue()
        old = self.path.read_text("utf-8") if self.path.exists() else ""
        if old == wanted:
            return []
        files.write_text(self.path, wanted)
        there = (
            set(old.splitlines()) if old.startswith(wanted.partition("\n")[0]) else ()
        )
        lines = wanted.splitlines()[1:]
        pairs = zip(lines, rows, strict=True)
        return sorted({int(row["round"]) for line, row in pairs if line not in there})

    def append(self, row: Row) -> None:
        """Adds a row; a power failure may take it away again until `sync`."""
        if set(row) != set(self.columns):
            raise ValueError(f"a row needs {self.columns}; got {sorted(row)}")
        text = io.StringIO()
        csv.DictWriter(text, self.columns, lineterminator="\n").writerow(row)
        with (
            files.path_in_errors(self.path),
            open(self.path, "a", encoding="utf-8") as file,
        ):
            file.write(text.getvalue())

    def sync(self) -> None:
        """Makes all rows durable."""
        files.sync(self.path)


def read_rows(path: str | os.PathLike) -> list[dict[str, str]]:
    """Returns the whole rows of a table; a last row without its line end is not."""
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        rows = list(csv.DictReader(io.StringIO(whole)))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    return [row for row in rows if None not in row.values() and None not in row]


def read_columns(
    path: str | os.PathLike, where: Mapping[str, str] | None = None
) -> dict[str, list[float]]:
    """Returns the numeric columns of a table, of the rows that match `where`.

    Example:
      read_columns('run/validation.csv', {'weights': 'aggregate'})['accuracy']
    """
    rows = [
        row
        for row in read_rows(path)
        if all(row[key] == value for key, value in (where or {}).items())
    ]
    columns: dict[str, list[float]] = {}
    for key in rows[0] if rows else []:
        try:
            columns[key] = [float(row[key]) for row in rows]
        except ValueError:
            continue
    return columns
