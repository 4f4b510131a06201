"""One self-contained HTML page: headings, tables, lists and pictures; no scripts.

Everything is inside the file, so that it can be sent and opened anywhere, also without
a network. All text is escaped.
"""

import base64
import html
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff;
  max-width: 60rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid #d5dae0; }
p { margin: .5rem 0; }
.lead { background: #f1f5f9; border-left: 4px solid #0072b2; padding: .7rem 1rem; }
.wide { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .92rem; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; vertical-align: top;
  border-bottom: 1px solid #e6eaee; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
img { max-width: 100%; height: auto; }
li { margin: .2rem 0; }
.small { color: #57606a; font-size: .85rem; }
"""


class Page:
    """Gathers a page piece by piece.

    Example:
      >>> page = Page('A run')
      >>> page.heading('Settings')
      >>> page.table(['name', 'value'], [['rounds', 10]])
      >>> '<td>rounds</td>' in page.text()
      True
    """

    def __init__(self, title: str):
        """Begins with the title."""
        self._title = title
        self._parts: list[str] = [f"<h1>{html.escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        """Begins a section."""
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def paragraph(self, text: str, kind: str = "") -> None:
        """Adds a paragraph; `kind` may be 'lead' or 'small'."""
        mark = f' class="{html.escape(kind)}"' if kind else ""
        self._parts.append(f"<p{mark}>{html.escape(text)}</p>")

    def bullets(self, items: Iterable[str]) -> None:
        """Adds a list."""
        lines = "\n".join(f"<li>{html.escape(item)}</li>" for item in items)
        self._parts.append(f"<ul>\n{lines}\n</ul>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Adds a table; columns of numbers stand to the right."""
        cells = [[str(cell) for cell in row] for row in rows]
        right = [
            bool(cells) and all(_is_number(row[i]) for row in cells)
            for i in range(len(header))
        ]

        def line(tag: str, row: Sequence[str]) -> str:
            marks = [' class="number"' if number else "" for number in right]
            inside = "".join(
                f"<{tag}{mark}>{html.escape(cell)}</{tag}>"
                for mark, cell in zip(marks, row, strict=True)
            )
            return f"<tr>{inside}</tr>"

        body = "\n".join(line("td", row) for row in cells)
        head = line("th", list(header)) if any(header) else ""
        self._parts.append(
            f'<div class="wide"><table>\n<thead>{head}</thead>\n<tbody>\n{body}\n'
            "</tbody></table></div>"
        )

    def picture(self, figure: "Figure", description: str) -> None:
        """Adds a matplotlib figure as a drawing that stays sharp at any size."""
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
        data = base64.b64encode(file.getvalue()).decode()
        self._parts.append(
            f'<p><img alt="{html.escape(description)}" '
            f'src="data:image/svg+xml;base64,{data}"></p>'
        )

    def text(self) -> str:
        """Returns the page."""
        body = "\n".join(self._parts)
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(self._title)}</title>\n<style>{_STYLE}</style>\n"
            f"</head>\n<body>\n{body}\n</body>\n</html>\n"
        )


def _is_number(text: str) -> bool:
    """Whether a cell is a number, perhaps with an error, or empty."""
    words = text.replace("±", " ").split()
    try:
        [float(word) for word in words]
    except ValueError:
        return False
    return True
