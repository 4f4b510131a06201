"""Pictures of runs: a metric over rounds with a band over seeds, or at the end."""

import itertools
import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tff_agg import files
from tff_agg.recycling.metrics import ACCURACY, Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours that stay apart for colour-blind readers, the baseline in grey.
_COLOURS = ("#7f7f7f", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
# With more curves than colours the colours come again with other dashes; "--" is for
# curves that lie on another.
_STYLES = ("-", ":", "-.", (0, (1, 3)), (0, (5, 2, 1, 2, 1, 2)))
# How many letters of a title fit above a panel.
_TITLE_LETTERS = 52


class Curve(NamedTuple):
    """One method's values over rounds, a row for each seed.

    Attributes:
      rounds: [points].
      values: [seeds, points].
    """

    rounds: Sequence[float]
    values: Sequence[Sequence[float]]


def metric_curves(
    path: str | os.PathLike,
    panels: Mapping[str, Mapping[str, Curve]],
    metric: Metric = ACCURACY,
    *,
    y_label: str = "",
    title: str = "",
    shaded: tuple[float, float] | None = None,
    bottom: float | None = None,
    share_y: bool = True,
) -> None:
    """Draws a panel for each setting: means as lines, one standard deviation as bands.

    Args:
      path: The PNG file to write.
      panels: By the setting's name, the curves by the method's name.
      metric: What is shown.
      y_label: What to call it; 'validation' and its name if not given.
      title: Above the whole picture.
      shaded: From which round to which the background is shaded.
      bottom: Where the y axis begins; by default where the values do.
      share_y: Whether all panels have one y axis, or each its own.

    Example:
      >>> curve = Curve([1, 2], [[0.1, 0.2], [0.1, 0.3]])
      >>> metric_curves('a.png', {'original': {'baseline': curve}})
    """
    from matplotlib import ticker

    figure, axes = new_figure(len(panels), share_y=share_y)
    for axis, (setting, curves) in zip(axes, panels.items(), strict=True):
        drawn: list[Curve] = []
        looks = itertools.cycle(itertools.product(_STYLES, _COLOURS))
        for (style, colour), (name, curve) in zip(looks, curves.items(), strict=False):
            values = metric.scale * np.asarray(curve.values, float)
            mean, spread = values.mean(0), _spread(values)
            marker = "o" if len(curve.rounds) == 1 else None
            # Of two curves in one place both are seen.
            if style == "-" and any(lies_on(curve, other) for other in drawn):
                style = "--"
            drawn.append(curve)
            axis.plot(
                curve.rounds, mean, color=colour, label=name, linewidth=1.8,
                marker=marker, linestyle=style,
            )  # fmt: skip
            low, high = mean - spread, mean + spread
            if metric.is_share:
                low, high = np.maximum(low, 0), np.minimum(high, metric.scale)
            axis.fill_between(
                curve.rounds, low, high, color=colour, alpha=0.2, linewidth=0
            )
        if shaded is not None:
            axis.axvspan(*shaded, color="black", alpha=0.06, linewidth=0)
        axis.set_title(setting)
        axis.set_xlabel("round")
        axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
    if bottom is not None:
        axes[0].set_ylim(bottom=bottom)
    axes[0].set_ylabel(y_label or f"validation {metric.label}")
    alike = len({tuple(curves) for curves in panels.values()}) == 1
    for axis in axes[-1:] if alike else axes:
        # Where it covers the curves least: the last rounds alone may be anywhere.
        axis.legend(frameon=False, loc="best", fontsize="medium" if alike else "small")
    if title:
        figure.suptitle(textwrap.fill(title, _TITLE_LETTERS * len(axes)))
    save(figure, path)


def lies_on(curve: Curve, other: Curve) -> bool:
    """Returns whether one curve hides most of the other in a picture.

    Example:
      >>> lies_on(Curve([1, 2], [[0.1, 0.2]]), Curve([1, 2], [[0.1, 0.2001]]))
      True
    """
    if list(curve.rounds) != list(other.rounds):
        return False
    one, two = (np.mean(c.values, axis=0) for c in (curve, other))
    return bool(np.median(np.abs(one - two)) < 0.005 * np.max(np.abs(two)))


def seed_points(
    path: str | os.PathLike,
    lines: Mapping[str, Sequence[float]],
    metric: Metric = ACCURACY,
    *,
    x_label: str = "",
    title: str = "",
) -> None:
    """Draws a line for each method: a point for each seed, and the mean.

    Args:
      path: The PNG file to write.
      lines: By the method's name, a value for each seed; the first is in grey.
      metric: What is shown.
      x_label: What to call it; 'test' and its name if not given.
      title: Above the picture.

    Example:
      >>> seed_points('a.png', {'last': [0.1, 0.2], 'UTA_inf 100': [0.2, 0.2]})
    """
    figure, (axis,) = new_figure(1, width=8.5, height=1.2 + 0.27 * len(lines))
    places = range(len(lines), 0, -1)
    for place, values in zip(places, lines.values(), strict=True):
        shown = metric.scale * np.asarray(values, float)
        colour = _COLOURS[0 if place == len(lines) else 1]
        axis.plot(shown, [place] * len(shown), "o", color=colour, alpha=0.5)
        axis.plot(shown.mean(), place, "|", color=colour, ms=14, mew=2.5)
        axis.annotate(
            metric.show(float(np.mean(values))), (shown.max(), place), fontsize=8,
            textcoords="offset points", xytext=(9, 0), va="center", color=colour,
        )  # fmt: skip
    axis.set_yticks(list(places), list(lines), fontsize=8)
    axis.set_ylim(0.4, len(lines) + 0.6)
    axis.margins(x=0.1)  # room for the last figure
    axis.set_xlabel(x_label or f"test {metric.label}")
    axis.grid(alpha=0.3)
    axis.set_title(title)
    save(figure, path)


def new_figure(
    panels: int, width: float = 5.2, height: float = 3.8, *, share_y: bool = True
) -> "tuple[Figure, np.ndarray]":
    """Makes a figure with panels side by side, without a window system."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * panels, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels, sharey=share_y, squeeze=False)[0]
    return figure, axes


def save(figure: "Figure", path: str | os.PathLike) -> None:
    """Writes a figure to a file that appears whole or not at all."""
    with files.replacing(path, durable=False) as file:
        figure.savefig(file, dpi=130, format="png")


def _spread(values: np.ndarray) -> np.ndarray:
    return values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
