"""What reports and statements say: templates with figures from Python.

A template is a file of `templates/`, wrapped like a page and read as one paragraph;
`page.jinja` is the report's page, line by line. A figure that a template names and
nobody gives is an error, never an empty place.
"""

import functools
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2


@functools.cache
def environment() -> "jinja2.Environment":
    """Returns what finds the templates; `x | written('.4g')` formats like Python."""
    # Accounting alone needs no words.
    import jinja2

    found = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__ or "", "templates"),
        autoescape=False,  # Markdown and JSON, not HTML.
        undefined=jinja2.StrictUndefined,
    )
    found.filters |= {"written": _written, "figure": _figure}
    found.globals["infinity"] = math.inf
    return found


def _written(value: Any, form: str) -> str:
    """Formats a figure; one that is missing has an error of its own."""
    return format(value, form) if isinstance(value, float | int) else str(value)


def _figure(value: Any) -> str:
    """Formats a figure to six digits; None stands for no bound."""
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def paragraph(name: str, **figures: Any) -> str:
    """Returns what a whole template says.

    Args:
      name: Of the template.
      **figures: All that it names.

    Example:
      >>> paragraph('scored_on', shared={'test': 2})[:55]
      'Of the users of the training data, 2 are also in the te'
    """
    template = environment().get_template(f"{name}.jinja")
    return _as_one(template.render(figures))


def blocks(name: str, **figures: Any) -> dict[str, str | list[str]]:
    """Returns what each block of a template says: a paragraph, or a list of items.

    Args:
      name: Of the template.
      **figures: All that it names.
    """
    template = environment().get_template(f"{name}.jinja")
    context = template.new_context(figures)
    said = {part: "".join(block(context)) for part, block in template.blocks.items()}
    return {part: _read(text) for part, text in said.items()}


def page(name: str, **figures: Any) -> str:
    """Returns what a template says line by line; its statements leave no lines.

    Args:
      name: Of the template.
      **figures: All that it names.
    """
    lines = environment().overlay(trim_blocks=True, lstrip_blocks=True)
    return lines.get_template(f"{name}.jinja").render(figures)


def _read(text: str) -> str | list[str]:
    """Returns the items of a list, or a paragraph."""
    if not text.lstrip().startswith("- "):
        return _as_one(text)
    return [_as_one(item) for item in f"\n{text}".split("\n- ")[1:]]


def _as_one(text: str) -> str:
    """Returns lines as one, with one space between words."""
    return " ".join(text.split())
