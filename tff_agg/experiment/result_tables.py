"""A table of results: methods in columns, settings in rows, over several seeds.

A cell holds a value for each seed and shows mean ± standard deviation. The best mean of
a row is bold in Markdown and starred on the terminal. Below each row stands the gain
over its baseline, in percent of it.
"""

import csv
import dataclasses
import io
import pathlib
import statistics
from collections.abc import Mapping, Sequence

from tff_agg import files
from tff_agg.experiment.study import show
from tff_agg.experiment.study.statistics import gain
from tff_agg.experiment.study.statistics import std as spread
from tff_agg.recycling.metrics import Metric

Cells = Mapping[str, Mapping[str, Sequence[float]]]


@dataclasses.dataclass(frozen=True)
class ResultTable:
    """Values over seeds, by row and column.

    Attributes:
      title: What stands in the corner, above the rows' names.
      cells: By row and column, a value for each seed. A row may lack columns.
      metric: What the values are.
      baseline: The column that gains are relative to.
      expected: By row and column, what somebody else has found; shown below ours.

    Example:
      >>> cells = {'18.9': {'baseline': [0.20, 0.22], 'UTA_inf': [0.22, 0.24]}}
      >>> print(ResultTable('ε', cells, Metric('accuracy', is_share=True)).terminal())
      ε     baseline      UTA_inf
      ----  ------------  --------------
      18.9  21.00 ± 1.41  23.00 ± 1.41 *
      gain                +9.5 %
    """

    title: str
    cells: Cells
    metric: Metric
    baseline: str = "baseline"
    expected: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """All columns, in the order of their first row."""
        return list(dict.fromkeys(c for row in self.cells.values() for c in row))

    def best(self, row: str) -> str:
        """Returns the column with the best mean; of equals, the first."""
        found = ""
        for column, values in self.cells[row].items():
            mean = statistics.fmean(values)
            if not found or self.metric.better(mean, self._mean(row, found)):
                found = column
        return found

    def terminal(self) -> str:
        """Lays it out for the terminal, the best of a row with a star."""
        return show.render(show.Table(*self._laid_out("{} *")))

    def markdown(self) -> str:
        """Lays it out as a Markdown table, the best of a row in bold."""
        return markdown(*self._laid_out("**{}**"))

    def write(self, folder: pathlib.Path, name: str = "table") -> None:
        """Writes the table as Markdown, and as CSV with a line for each seed."""
        files.write_text(folder / f"{name}.md", self.markdown())
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([self.title, "column", "seed", self.metric.name, "best"])
        for row, columns in self.cells.items():
            best = self.best(row)
            for column, values in columns.items():
                for seed, value in enumerate(values):
                    writer.writerow([row, column, seed, value, int(column == best)])
        files.write_text(folder / f"{name}.csv", text.getvalue())

    def _laid_out(self, mark: str) -> tuple[list[str], list[list[str]]]:
        """Returns header and rows; `mark` is how the best cell is written."""
        rows: list[list[str]] = []
        for row, columns in self.cells.items():
            best = self.best(row)
            ours, gains, theirs = [row], ["gain"], ["published"]
            for column in self.columns:
                values = columns.get(column)
                text = "" if values is None else shown(values, self.metric)
                ours.append(mark.format(text) if column == best else text)
                gains.append("" if values is None else self._gain(row, column))
                theirs.append(self.expected.get(row, {}).get(column, ""))
            rows += [ours, gains]
            if row in self.expected:
                rows.append(theirs)
        return [self.title, *self.columns], rows

    def _mean(self, row: str, column: str) -> float:
        return statistics.fmean(self.cells[row][column])

    def _gain(self, row: str, column: str) -> str:
        columns = self.cells[row]
        if column == self.baseline or self.baseline not in columns:
            return ""
        found = gain(columns[column], columns[self.baseline], self.metric)
        return f"{100 * found.relative:+.1f} %"


def shown(values: Sequence[float], metric: Metric) -> str:
    """Writes mean ± standard deviation over seeds.

    Example:
      >>> shown([0.20, 0.22], Metric('accuracy', is_share=True))
      '21.00 ± 1.41'
    """
    mean = metric.show(statistics.fmean(values))
    return f"{mean} ± {metric.show(spread(values))}" if len(values) > 1 else mean


def shown_metrics(
    seeds: Sequence[Mapping[str, float]], metrics: Sequence[Metric]
) -> list[str]:
    """Writes every metric of a line: mean ± standard deviation over seeds."""
    return [shown([one[metric.name] for one in seeds], metric) for metric in metrics]


def improvement(
    values: Sequence[float], baseline: Sequence[float], metric: Metric
) -> str:
    """Writes by how much values are better, in percent, and whether that is clear.

    Example:
      >>> loss = Metric('loss', higher_is_better=False)
      >>> improvement([3.8, 3.9, 3.8], [4.0, 4.1, 4.0], loss)
      '+5.0 %, clear'
    """
    found = gain(values, baseline, metric)
    return f"{100 * found.relative:+.1f} %{', clear' if found.clear else ''}"


def improvements(
    lines: Mapping[tuple[str, ...], Sequence[Mapping[str, float]]],
    baseline: Mapping[tuple[str, ...], tuple[str, ...]],
    metrics: Sequence[Metric],
) -> list[list[str]]:
    """Returns a row for each line: its labels, and by how much each metric is better.

    Args:
      lines: By the values of the labels, for each seed the values of the metrics.
      baseline: By the same, the line that it is compared with; one that is compared
        with itself is left out.
      metrics: The columns; what a line has not is left empty.
    """
    rows = []
    for names, seeds in lines.items():
        other = lines[baseline[names]]
        if seeds is other:
            continue
        row = [*names]
        for metric in metrics:
            name = metric.name
            known = all(name in values for own in (seeds, other) for values in own)
            own, reference = ([v.get(name, 0.0) for v in one] for one in (seeds, other))
            row.append(improvement(own, reference, metric) if known else "")
        rows.append(row)
    return rows


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lays rows out as a Markdown table.

    Example:
      >>> print(markdown(['a', 'b'], [[1, 2]]), end='')
      | a | b |
      | --- | --- |
      | 1 | 2 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def write_long(
    path: pathlib.Path,
    labels: Sequence[str],
    lines: Mapping[tuple[str, ...], Sequence[Mapping[str, float]]],
    metrics: Sequence[Metric],
) -> None:
    """Writes a CSV with a line for each seed: its labels, and all metrics it has.

    Args:
      path: The file.
      labels: The names of the labels.
      lines: By the values of the labels, for each seed the values of the metrics.
      metrics: The columns.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*labels, "seed", *(metric.name for metric in metrics)])
    for names, seeds in lines.items():
        for seed, values in enumerate(seeds):
            found = [values.get(metric.name, "") for metric in metrics]
            writer.writerow([*names, seed, *found])
    files.write_text(path, text.getvalue())
