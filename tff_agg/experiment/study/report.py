"""What a study shows: tables on the terminal and in files, pictures, a few words.

A study's `report` makes a `Report` of its results, with a call for each thing to show.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tff_agg.experiment.study import figures, show
from tff_agg.experiment.study.declare import BROADCAST, Line, in_words
from tff_agg.experiment.study.results import Results
from tff_agg.experiment.study.show import Table
from tff_agg.recycling.methods import Method
from tff_agg.recycling.metrics import Metric
from tff_agg.recycling.series import ALWAYS_THE_SAME

#: What is said where there is nothing to show yet.
UNFINISHED = "No seed has all of its lines yet."
Draw = Callable[[pathlib.Path], None]


@dataclasses.dataclass
class Report:
    """What a study shows.

    Attributes:
      tables: By the file's name, what is shown, and written as Markdown.
      data: By the file's name, what is for programs, and written as CSV.
      figures: By the file's name, what draws it into a file.
      text: What is said below the tables.
      details: By the file's name, what is written as Markdown and not shown.
    """

    tables: dict[str, Table] = dataclasses.field(default_factory=dict)
    data: dict[str, Table] = dataclasses.field(default_factory=dict)
    figures: dict[str, Draw] = dataclasses.field(default_factory=dict)
    text: str = ""
    details: dict[str, Table] = dataclasses.field(default_factory=dict)

    def add_lines(
        self,
        name: str,
        results: Results,
        header: Sequence[str],
        labels: Callable[[Line], tuple[str, ...]],
        metrics: Sequence[Metric] = (),
        over: Mapping[str, Mapping[Line, Line]] | None = None,
        **look: Any,
    ) -> None:
        """Adds lines as a table, and every metric and seed of them for programs.

        Args:
          name: The file's name.
          results: The lines.
          header: The names of the labels.
          labels: Returns those of a line; no two have the same ones.
          metrics: The columns; the task's first if not given.
          over: As in `show.line_table`; by default over the first line of a row.
          **look: As in `show.line_table`.
        """
        if not results.seeds:
            self.text = UNFINISHED
            return
        every = results.study.task.metrics
        values = {labels(x): results.metrics(x) for x in results.lines}
        over = {"": results.over_first()} if over is None else over
        named = {
            name: {labels(line): labels(other) for line, other in of.items()}
            for name, of in over.items()
        }
        look = {"trivial": results.trivial(), **look}
        self.tables[name] = show.line_table(
            header, values, metrics or every[:1], named, **look
        )
        self.data[name] = show.seed_table(header, values, every, results.seeds)

    def add_curves(
        self,
        name: str,
        results: Results,
        panels: Mapping[str, Mapping[str, Line]],
        **look: Any,
    ) -> None:
        """Adds a picture of lines over rounds; see `figures.curves`.

        Args:
          name: The file's name.
          results: Those of the lines.
          panels: By the panel's title, the lines by what the legend calls them.
          **look: As in `figures.curves`.
        """
        if results.seeds and any(panels.values()):
            drawn = {
                title: {label: results.curve(line) for label, line in lines.items()}
                for title, lines in panels.items()
            }
            metric = results.study.task.metrics[0]
            trivial = results.trivial(results.study.drawn_on)
            self.figures[name] = functools.partial(
                figures.curves, panels=drawn, metric=metric,
                level=trivial.get(metric.name), **look,
            )  # fmt: skip

    def add_points(
        self, name: str, results: Results, named: Mapping[str, Line], **look: Any
    ) -> None:
        """Adds a picture of lines, by what they are called; see `figures.points`."""
        if results.seeds:
            self.figures[name] = functools.partial(
                figures.points,
                lines={words: results.values(line) for words, line in named.items()},
                metric=results.study.task.metrics[0],
                **look,
            )

    def write(self, out: pathlib.Path) -> None:
        """Writes tables and pictures."""
        out.mkdir(parents=True, exist_ok=True)
        for name, table in {**self.tables, **self.details}.items():
            show.save(table, out / f"{name}.md")
        for name, table in self.data.items():
            show.save(table, out / f"{name}.csv")
        for name, draw in self.figures.items():
            draw(out / f"{name}.png")

    def shown(self) -> str:
        """Returns what is shown on the terminal."""
        parts = [show.render(table) for table in self.tables.values()]
        return "\n\n".join([*parts, *([self.text] if self.text else [])])


def search_table(results: Results, digits: int = 2) -> Table:
    """Lays out a search: a row for each candidate, a column for each model.

    What was chosen is marked.
    """
    metric, several = results.study.task.metrics[0], len(results.rows()) > 1
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    chosen: set[tuple[tuple[str, ...], str]] = set()
    for line in results.lines:
        use = line.chosen_by or line.use
        for settings, method, values in results.candidates(line):
            model = "broadcast" if use == BROADCAST else Method.parse(method).title
            key = (*([line.row] * several), line.arm.name, in_words(settings))
            cells.setdefault(key, {})[model] = show.mean_and_std(values, metric, digits)
            own = results.chosen[line]
            if settings == own.settings and (
                line.chosen_by or method == str(own.method)
            ):
                chosen.add((key, model))
    models = list(dict.fromkeys(model for row in cells.values() for model in row))
    header = [*(["part"] * several), "arm", "candidate"]
    marked = {
        (list(cells).index(key), len(header) + models.index(model))
        for key, model in chosen
    }
    rows = [[*key, *(row.get(m, "") for m in models)] for key, row in cells.items()]
    if trivial := results.trivial("heldout"):
        same = metric.show(trivial[metric.name])
        rows.append([ALWAYS_THE_SAME, *[""] * (len(header) - 1), *[same] * len(models)])
    title = (
        f"{metric.label} on validation data, seeds {results.study.choosing_seeds}; "
        "the chosen marked"
    )
    return Table([*header, *models], rows, title, marked)


def candidate_table(results: Results) -> Table:
    """Returns every candidate on validation data, a row for each seed: for programs."""
    metrics = results.study.task.metrics
    values: dict[tuple[str, ...], dict[str, Sequence[float]]] = {}
    for line in results.lines:
        settings, method, _ = results.chosen[line]
        for metric in metrics:
            for candidate, of, by_seed in results.candidates(line, metric):
                chosen = int((candidate, of) == (settings, str(method)))
                key = (line.row, line.name, in_words(candidate), of, str(chosen))
                values.setdefault(key, {})[metric.name] = by_seed
    header = ("runs", "line", "settings", "method", "chosen")
    return show.seed_table(header, values, metrics, results.study.choosing_seeds)
