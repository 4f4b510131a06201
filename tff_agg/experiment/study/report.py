"""What a study shows: tables on the terminal and in files, pictures, a few words."""

import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tff_agg.experiment.study import show
from tff_agg.experiment.study.declare import Line
from tff_agg.experiment.study.results import Results
from tff_agg.experiment.study.show import Table, Values
from tff_agg.recycling.metrics import Metric

Draw = Callable[[pathlib.Path], None]


class Report(NamedTuple):
    """What a study shows.

    Attributes:
      tables: By the file's name, what is shown, and written as Markdown.
      data: By the file's name, what is for programs, and written as CSV.
      figures: By the file's name, what draws it into a file.
      text: What is said below the tables.
      details: By the file's name, what is written as Markdown and not shown.
    """

    tables: dict[str, Table]
    data: dict[str, Table]
    figures: dict[str, Draw]
    text: str = ""
    details: Mapping[str, Table] = {}


def write(report: Report, out: pathlib.Path) -> None:
    """Writes tables and pictures."""
    out.mkdir(parents=True, exist_ok=True)
    for name, table in {**report.tables, **report.details}.items():
        show.save(table, out / f"{name}.md")
    for name, table in report.data.items():
        show.save(table, out / f"{name}.csv")
    for name, draw in report.figures.items():
        draw(out / f"{name}.png")


def shown(report: Report) -> str:
    """Returns what is shown on the terminal."""
    parts = [show.render(table) for table in report.tables.values()]
    return "\n\n".join([*parts, *([report.text] if report.text else [])])


def values_of(
    results: Results,
    lines: Iterable[Line],
    labels: Callable[[Line], tuple[str, ...]],
    metrics: Iterable[Metric],
) -> dict[tuple[str, ...], Values]:
    """Returns what `show.line_table` lays out: by a line's labels, values by metric.

    A line is without the metrics that its method has not.
    """
    wanted = tuple(metrics)
    found: dict[tuple[str, ...], Values] = {}
    for line in lines:
        values = {m.name: results.values(line, m) for m in wanted}
        found[labels(line)] = {name: own for name, own in values.items() if own}
    return found
