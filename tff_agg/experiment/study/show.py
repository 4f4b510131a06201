"""Tables: how they are laid out, and how they are shown in four ways.

A table is text in cells. Numbers have been written by their metric; a cell that stands
out, such as the best of a row, is marked. The same table is shown on the terminal, in
Markdown, in HTML, and as CSV.
"""

import csv
import io
import itertools
import os
import pathlib
import textwrap
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Literal, NamedTuple, TypeVar

from tff_agg import files
from tff_agg.experiment.study.statistics import Gain, gain, std
from tff_agg.recycling.metrics import Metric
from tff_agg.recycling.series import ALWAYS_THE_SAME

#: How wide tables are where they are not shown on a terminal.
WIDTH = 100
#: By the name of a metric, a value for each seed. A line may lack metrics.
Values = Mapping[str, Sequence[float]]
Way = Literal["terminal", "markdown", "html", "csv"]
Key = TypeVar("Key", bound=Hashable)

_SUFFIXES: Mapping[str, Way] = {".md": "markdown", ".html": "html", ".csv": "csv"}
# Between two columns on the terminal.
_GAP = 2
# What may stand beside numbers in a column that is set to the right.
_NOT_WORDS = {"±", "%", "–", "of"}
_HTML = """<table>
{%- if table.title %}<caption>{{ table.title }}</caption>{% endif %}
{% macro line(tag, cells) -%}
<tr>
{%- for cell in cells -%}
<{{ tag }}{% if right[loop.index0] %} class="number"{% endif %}>{{ cell }}</{{ tag }}>
{%- endfor -%}
</tr>
{%- endmacro -%}
<thead>
{%- if table.header | select | list %}{{ line("th", table.header) }}{% endif -%}
</thead>
<tbody>
{% for cells in rows -%}
{{ line("td", cells) }}
{% endfor -%}
</tbody>
</table>"""


class Table(NamedTuple):
    """A table of text.

    Attributes:
      header: The names of the columns.
      rows: The cells; what is not text is written by `str`.
      title: What it is about, if that has to be said.
      marked: The (row, column) of cells that stand out.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    marked: Collection[tuple[int, int]] = ()


def render(table: Table, to: Way = "terminal", width: int | None = None) -> str:
    """Writes a table. HTML has everything escaped, and is safe in a template.

    Args:
      table: The table.
      to: Where it is to be shown.
      width: Of the terminal; by default its own, or 100 where there is none. Numbers
        and words are never broken: a table that needs more takes more.

    Example:
      >>> table = Table(['name', 'value'], [['a', 1], ['bb', 22]])
      >>> print(render(table, width=40))
      name  value
      ───────────
      a         1
      bb       22
      >>> print(render(table, 'markdown'), end='')
      | name | value |
      | --- | --: |
      | a | 1 |
      | bb | 22 |
    """
    if to == "terminal":
        return _on_terminal(table, width)
    if to == "markdown":
        return _markdown(table)
    if to == "html":
        return _html(table)
    if to != "csv":
        raise ValueError(f"to={to!r} must be terminal, markdown, html or csv")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.header, *table.rows])
    return text.getvalue()


def save(table: Table, path: str | os.PathLike, mode: int | None = None) -> None:
    """Writes a table to a file, whole or not at all; its suffix says in which way."""
    suffix = pathlib.Path(path).suffix
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise ValueError(f"path={os.fspath(path)!r} must end in one of {known}")
    files.write_text(path, render(table, _SUFFIXES[suffix]), mode=mode)


def mean_and_std(values: Sequence[float], metric: Metric, digits: int = 2) -> str:
    """Writes mean ± standard deviation over seeds; nothing where there are no values.

    Example:
      >>> mean_and_std([0.20, 0.22], Metric('accuracy', is_share=True))
      '21.00 ± 1.41'
    """
    if not values:
        return ""
    mean = metric.show(fmean(values), digits)
    if len(values) == 1:
        return mean
    return f"{mean} ± {metric.show(std(values), digits)}"


def in_percent(gain: Gain, metric: Metric) -> str:
    """Writes a gain in per cent, with its verdict where there are seeds for one.

    Example:
      >>> from tff_agg.recycling.metrics import ACCURACY
      >>> in_percent(gain([0.22, 0.22, 0.23], [0.2, 0.2, 0.2]), ACCURACY)
      '+11.7 %, clear'
    """
    verdicts = {True: ", clear", False: ", within the spread", None: ""}
    # Nothing is no percentage of nothing.
    if gain.relative != gain.relative:
        return "–"
    return f"{100 * gain.relative:+.1f} %{verdicts[gain.clear]}"


def in_points(gain: Gain, metric: Metric) -> str:
    """Writes a gain in the metric's unit with its standard error.

    Example:
      >>> from tff_agg.recycling.metrics import ACCURACY
      >>> in_points(gain([0.22, 0.22, 0.23], [0.2, 0.2, 0.2]), ACCURACY)
      '+2.33 ± 0.33'
    """
    digits = 2 if metric.is_share else 4
    mean, error = metric.scale * gain.mean, metric.scale * gain.error
    return f"{mean:+.{digits}f} ± {error:.{digits}f}"


#: Columns of gains: their names, and how they are written.
Columns = Mapping[str, Callable[[Gain, Metric], str]]
IN_PERCENT: Columns = {"gain": in_percent}


def line_table(
    labels: Sequence[str],
    lines: Mapping[tuple[str, ...], Values],
    metrics: Sequence[Metric],
    over: Mapping[str, Mapping[tuple[str, ...], tuple[str, ...]]] | None = None,
    *,
    gains: Columns = IN_PERCENT,
    gains_in: Sequence[Metric] = (),
    digits: int = 2,
    title: str = "",
    trivial: Mapping[str, float] | None = None,
) -> Table:
    """Lays out a line for each method: labels, metrics, gains over other lines.

    The first cell of a gain that stands clear of the seeds' spread is marked.

    Args:
      labels: The names of the labels.
      lines: By the values of the labels.
      metrics: The columns; what a line has not is left empty.
      over: By a name such as 'over the baseline', for each line the one that it is
        compared with. Lines that are not named there have no gain.
      gains: How gains are shown.
      gains_in: Of which metrics; the first alone if not given.
      digits: As in `mean_and_std`.
      title: What the table is about.
      trivial: What always the same answer scores, by metric: the last row.

    Example:
      >>> lines = {('last',): {'accuracy': [0.2, 0.2]},
      ...          ('UTA_inf',): {'accuracy': [0.22, 0.22]}}
      >>> accuracy = Metric('accuracy', is_share=True)
      >>> over = {'': {('UTA_inf',): ('last',)}}
      >>> table = line_table(['method'], lines, [accuracy], over)
      >>> print(render(table, width=60))
      method     accuracy %     gain
      ──────────────────────────────
      last     20.00 ± 0.00
      UTA_inf  22.00 ± 0.00  +10.0 %
    """
    over = over or {}
    gains_in = gains_in or metrics[:1]
    header = [*labels, *(metric.label for metric in metrics)]
    for name in over:
        for metric in gains_in:
            of = f"in {metric.label}" if len(gains_in) > 1 else ""
            header += [" ".join(filter(None, (c, of, name))) for c in gains]
    rows: list[list[str]] = []
    marked = set()
    for key, values in lines.items():
        shown = [mean_and_std(values.get(m.name, ()), m, digits) for m in metrics]
        row = [*key, *shown]
        for references in over.values():
            other = lines[references[key]] if key in references else {}
            for metric in gains_in:
                own, base = values.get(metric.name), other.get(metric.name)
                found = gain(own, base, metric) if own and base else None
                if found and found.clear:
                    marked.add((len(rows), len(row)))
                row += [show(found, metric) if found else "" for show in gains.values()]
        rows.append(row)
    if trivial:
        rows.append(_always(header, len(labels), metrics, trivial))
    return Table(header, rows, title, marked)


def _always(
    header: Sequence[str],
    labels: int,
    metrics: Sequence[Metric],
    trivial: Mapping[str, float],
) -> list[str]:
    """Returns the row of always the same answer."""
    shown = [m.show(trivial[m.name]) if m.name in trivial else "" for m in metrics]
    row = [ALWAYS_THE_SAME, *[""] * (labels - 1), *shown]
    return row + [""] * (len(header) - len(row))


def cell_table(
    corner: str,
    cells: Mapping[str, Mapping[str, Sequence[float]]],
    metric: Metric,
    *,
    baseline: str = "baseline",
    expected: Mapping[str, Mapping[str, str]] | None = None,
    trivial: float | None = None,
) -> Table:
    """Lays out rows × columns, the best of a row marked, gains and published below.

    Args:
      corner: What stands above the rows' names.
      cells: By row and column, a value for each seed. A row may lack columns.
      metric: What the values are.
      baseline: The column that gains are relative to.
      expected: By row and column, what somebody else has found; shown below ours.
      trivial: What always the same answer scores: the last row.

    Example:
      >>> cells = {'18.9': {'baseline': [0.20, 0.22], 'UTA_inf': [0.22, 0.24]}}
      >>> accuracy = Metric('accuracy', is_share=True)
      >>> print(render(cell_table('ε', cells, accuracy), width=60))
      ε         baseline         UTA_inf
      ──────────────────────────────────
      18.9  21.00 ± 1.41  * 23.00 ± 1.41
      gain                        +9.5 %
    """
    columns = list(dict.fromkeys(c for row in cells.values() for c in row))
    rows: list[list[str]] = []
    marked = set()
    for name, row in cells.items():
        marked.add((len(rows), 1 + columns.index(best(row, metric))))
        rows.append([name, *(mean_and_std(row.get(c, ()), metric) for c in columns)])
        gains = [""] * len(columns)
        for i, column in enumerate(columns):
            if column != baseline and column in row and baseline in row:
                found = gain(row[column], row[baseline], metric)
                # The verdict has no place in a cell.
                gains[i] = in_percent(found._replace(clear=None), metric)
        if any(gains):
            rows.append(["gain", *gains])
        if published := (expected or {}).get(name):
            rows.append(["published", *(published.get(c, "") for c in columns)])
    if trivial is not None:
        rows.append(_always([corner, *columns], 1, [metric], {metric.name: trivial}))
    return Table([corner, *columns], rows, marked=marked)


def best(values: Mapping[Key, Sequence[float]], metric: Metric) -> Key:
    """Returns where the mean is best; of equals, the first."""
    means = {key: fmean(several) for key, several in values.items()}
    found, *others = means
    for key in others:
        if metric.better(means[key], means[found]):
            found = key
    return found


def seed_table(
    labels: Sequence[str],
    lines: Mapping[tuple[str, ...], Values],
    metrics: Sequence[Metric],
    seeds: Iterable[int] | None = None,
) -> Table:
    """Lays out a row for each line and seed, every value in full: for programs.

    Args:
      labels: The names of the labels.
      lines: By the values of the labels.
      metrics: The columns; what a line has not is left empty.
      seeds: Those of the values; from 0 on if not given.
    """
    numbers = None if seeds is None else list(seeds)
    rows = []
    for key, values in lines.items():
        count = max(map(len, values.values()), default=0)
        for i, seed in zip(range(count), numbers or itertools.count(), strict=False):
            own = [values[m.name][i] if m.name in values else "" for m in metrics]
            rows.append([*key, seed, *own])
    return Table([*labels, "seed", *(metric.name for metric in metrics)], rows)


def _cells(table: Table, mark: str) -> list[list[str]]:
    """Returns the rows as text, marked cells as `mark` says."""
    return [
        [
            mark.format(cell) if (r, c) in table.marked else str(cell)
            for c, cell in enumerate(row)
        ]
        for r, row in enumerate(table.rows)
    ]


def _numeric(table: Table) -> list[bool]:
    """Returns which columns have numbers in them, and nothing else."""
    columns = [[str(row[i]) for row in table.rows] for i in range(len(table.header))]
    return [any(c) and all(map(_is_number, c)) for c in columns]


def _is_number(text: str) -> bool:
    """Returns whether a cell is a number, perhaps with an error or a unit, or empty."""
    try:
        [float(w.replace(",", "")) for w in text.split() if w not in _NOT_WORDS]
    except ValueError:
        return False
    return True


def _on_terminal(table: Table, width: int | None) -> str:
    """Lays columns out; only text is wrapped, between words, and nothing is cut off."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Layout
    from rich.text import Text

    terminal = Console(force_jupyter=False)
    if width is None:
        width = terminal.width if terminal.is_terminal else WIDTH
    layout = Layout(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    rows = [[*map(visible, row)] for row in [table.header, *_cells(table, "* {}")]]
    numeric = _numeric(table)
    widths = _widths(list(zip(*rows, strict=True)), numeric, width)
    for name, number, own in zip(rows[0], numeric, widths, strict=True):
        layout.add_column(Text(name), justify="right" if number else "left", width=own)
    # Elsewhere, such as in a file, bold would be strange signs.
    bold = set(table.marked if terminal.is_terminal else ())
    for r, row in enumerate(rows[1:]):
        layout.add_row(
            *(Text(cell, "bold" * ((r, c) in bold)) for c, cell in enumerate(row))
        )
    # What is wider than the terminal is left to it: here it would be cut off.
    least = sum(widths) + _GAP * len(widths)
    console = Console(width=max(width, least), force_jupyter=False)
    with console.capture() as shown:
        console.print(layout)
    lines = [line.rstrip() for line in shown.get().splitlines()]
    # A title may be wider than what it is of.
    title = textwrap.wrap(visible(table.title), max(width, least))
    return "\n".join([*title, *lines])


def _widths(
    columns: Sequence[Sequence[str]], numeric: Sequence[bool], room: int
) -> list[int]:
    """Returns how wide columns are: the widest give way, as far as words allow."""
    from rich.cells import cell_len

    def longest(texts: Iterable[str]) -> int:
        return max(map(cell_len, texts), default=0)

    widths = [max(longest(cell.split("\n")) for cell in column) for column in columns]
    excess = sum(widths) + _GAP * (len(widths) - 1) - room
    for i in sorted(range(len(columns)), key=lambda i: -widths[i]):
        head, *cells = columns[i]
        # Numbers stay whole with their errors and units.
        whole = cells if numeric[i] else " ".join(cells).split()
        cut = min(excess, widths[i] - longest([*head.split(), *whole]))
        if cut > 0:
            widths[i] -= cut
            excess -= cut
    return [max(width, 1) for width in widths]


def visible(text: object) -> str:
    """Returns text that commands the terminal nothing, whatever is in it."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in str(text))


def _markdown(table: Table) -> str:
    """Lays a table out in Markdown, the marked cells bold."""
    rules = ["--:" if number else "---" for number in _numeric(table)]
    rows = [list(map(_plain_markdown, row)) for row in _cells(table, "{}")]
    for r, c in table.marked:
        rows[r][c] = f"**{rows[r][c]}**"
    lines = [list(map(_plain_markdown, table.header)), rules, *rows]
    text = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    return f"**{_plain_markdown(table.title)}**\n\n{text}" if table.title else text


def _plain_markdown(text: str) -> str:
    """Returns text that is neither markup nor the end of a cell."""
    for character, escaped in (("&", "&amp;"), ("<", "&lt;"), ("|", r"\|")):
        text = text.replace(character, escaped)
    return " ".join(text.splitlines())


def _html(table: Table) -> str:
    """Lays a table out in HTML, the marked cells bold."""
    import jinja2
    import markupsafe

    template = jinja2.Environment(autoescape=True).from_string(_HTML)
    rows: list[list[str]] = _cells(table, "{}")
    for r, c in table.marked:
        rows[r][c] = markupsafe.Markup("<b>{}</b>").format(rows[r][c])
    text = template.render(table=table, rows=rows, right=_numeric(table))
    return markupsafe.Markup(text)
