"""Pictures of runs: a metric over rounds with a band over seeds, or at the end."""

import itertools
import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tff_agg import files
from tff_agg.experiment.study.results import Curve
from tff_agg.recycling.metrics import ACCURACY, Metric
from tff_agg.recycling.series import ALWAYS_THE_SAME

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that stay apart for colour-blind readers, the baseline in grey.
COLOURS = ("#7f7f7f", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
# With more curves than colours the colours come again with other dashes; "--" is for
# curves that lie on another.
_STYLES = ("-", ":", "-.", (0, (1, 3)), (0, (5, 2, 1, 2, 1, 2)))
# How many letters of a title fit above a panel, and of a legend below it.
_TITLE_LETTERS, _LEGEND_LETTERS = 52, 58
# What a line of a legend takes, in inches; two fit a figure as it is.
_LEGEND_LINE = 0.17


def curves(
    path: str | os.PathLike,
    panels: Mapping[str, Mapping[str, Curve]],
    metric: Metric = ACCURACY,
    *,
    y_label: str = "",
    title: str = "",
    shaded: tuple[float, float] | None = None,
    bottom: float | None = None,
    share_y: bool = True,
    level: float | None = None,
) -> None:
    """Draws a panel for each setting: means as lines, one standard deviation as bands.

    Every curve is drawn, however many there are, and the legend stands below them.

    Args:
      path: The PNG file to write.
      panels: By the setting's name, the curves by the method's name.
      metric: What is shown.
      y_label: What to call it; 'validation' and its name if not given.
      title: Above the whole picture.
      shaded: From which round to which the background is shaded.
      bottom: Where the y axis begins; by default where the values do.
      share_y: Whether all panels have one y axis, or each its own.
      level: What always the same answer would score. It is in the legend, and in the
        panels as far as the curves' own range goes.

    Example:
      >>> curve = Curve([1, 2], [[0.1, 0.2], [0.1, 0.3]])
      >>> curves('a.png', {'original': {'baseline': curve}})
    """
    figure, axes = new_figure(len(panels), share_y=share_y)
    for axis, (setting, drawn) in zip(axes, panels.items(), strict=True):
        draw_curves(axis, drawn, metric)
        if shaded is not None:
            axis.axvspan(*shaded, color="black", alpha=0.06, linewidth=0)
        axis.set_title(textwrap.fill(setting, _TITLE_LETTERS))
    # After all curves: panels may share what is in view.
    if level is not None:
        for axis in axes:
            _draw_level(axis, level, metric)
    if bottom is not None:
        axes[0].set_ylim(bottom=bottom)
    axes[0].set_ylabel(y_label or f"validation {metric.label}")
    legends(figure, axes)
    if title:
        figure.suptitle(textwrap.fill(title, _TITLE_LETTERS * len(axes)))
    save(figure, path)


def _draw_level(axis: "Axes", level: float, metric: Metric) -> None:
    """Draws a line across, without a change of what is in view."""
    limits = axis.get_ylim()
    axis.axhline(
        metric.scale * level, color="black", linestyle=(0, (1, 2)), linewidth=1.2,
        label=f"{ALWAYS_THE_SAME}: {metric.show(level)}",
    )  # fmt: skip
    axis.set_ylim(limits)


def draw_curves(axis: "Axes", drawn: Mapping[str, Curve], metric: Metric) -> None:
    """Draws curves into a panel: a mean and a band each, all told apart."""
    from matplotlib import ticker

    for (name, curve), (colour, style) in zip(
        drawn.items(), _looks(drawn), strict=True
    ):
        values = metric.scale * np.asarray(curve.values, float)
        mean = values.mean(0)
        spread = values.std(0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
        axis.plot(
            curve.rounds, mean, color=colour, label=name, linewidth=1.8,
            marker="o" if len(curve.rounds) == 1 else None, linestyle=style,
        )  # fmt: skip
        low, high = mean - spread, mean + spread
        if metric.is_share:
            low, high = np.maximum(low, 0), np.minimum(high, metric.scale)
        axis.fill_between(curve.rounds, low, high, color=colour, alpha=0.2, linewidth=0)
    axis.set_xlabel("round")
    axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axis.grid(alpha=0.3)


def _looks(drawn: Mapping[str, Curve]) -> Iterator[tuple[str, Any]]:
    """Yields a colour and dashes for each curve; of two in one place both are seen."""
    earlier: list[Curve] = []
    looks = itertools.cycle(itertools.product(_STYLES, COLOURS))
    for curve, (style, colour) in zip(drawn.values(), looks, strict=False):
        hidden = style == "-" and any(lies_on(curve, other) for other in earlier)
        earlier.append(curve)
        yield colour, "--" if hidden else style


def lies_on(curve: Curve, other: Curve) -> bool:
    """Returns whether one curve hides most of the other in a picture.

    Example:
      >>> lies_on(Curve([1, 2], [[0.1, 0.2]]), Curve([1, 2], [[0.1, 0.2001]]))
      True
    """
    if list(curve.rounds) != list(other.rounds):
        return False
    first, second = (np.mean(c.values, axis=0) for c in (curve, other))
    return bool(np.median(np.abs(first - second)) < 0.005 * np.max(np.abs(second)))


def legends(figure: "Figure", axes: "Iterable[Axes]") -> None:
    """Explains curves below them: once for all panels that have the same names."""
    axes = list(axes)
    named = [axis.get_legend_handles_labels() for axis in axes]
    alike = all(labels == named[0][1] for _, labels in named)
    if not any(labels for _, labels in named):
        return
    room = _LEGEND_LETTERS * (len(axes) if alike else 1)
    lines = 0
    for axis, (handles, labels) in zip(axes, named, strict=True):
        columns = max(room // (6 + max(map(len, labels), default=0)), 1)
        lines = max(lines, -(-len(labels) // columns))
        look: dict[str, Any] = {"frameon": False, "fontsize": "small"}
        look["ncols"] = min(columns, len(labels)) or 1
        if alike:
            figure.legend(handles, labels, loc="outside lower center", **look)
            break
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), **look)
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * max(lines - 2, 0))


def points(
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
      >>> points('a.png', {'last': [0.1, 0.2], 'UTA_inf 100': [0.2, 0.2]})
    """
    figure, (axis,) = new_figure(1, width=8.5, height=1.2 + 0.27 * len(lines))
    places = range(len(lines), 0, -1)
    for place, values in zip(places, lines.values(), strict=True):
        shown = metric.scale * np.asarray(values, float)
        colour = COLOURS[0 if place == len(lines) else 1]
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


class Choices(NamedTuple):
    """What a parameter was chosen among.

    Attributes:
      values: By the curve's name and the parameter, the metric on validation data.
      chosen: The curve and the parameter of the choice.
    """

    values: Mapping[str, Mapping[str, float]]
    chosen: tuple[str, str]


def choices(
    path: str | os.PathLike, panels: Mapping[str, Choices], metric: Metric = ACCURACY
) -> None:
    """Draws a panel for each choice: the metric over the parameter, the chosen marked.

    Args:
      path: The PNG file to write.
      panels: By the name of what was chosen.
      metric: What it was chosen by.
    """
    figure, axes = new_figure(max(len(panels), 1), width=3.6, height=3.6)
    for axis, (name, (values, chosen)) in zip(axes, panels.items(), strict=False):
        for curve, by_parameter in values.items():
            shown = [metric.scale * value for value in by_parameter.values()]
            axis.plot([*by_parameter], shown, "o-", ms=3, label=curve or None)
        curve, parameter = chosen
        best = metric.scale * values[curve][parameter]
        axis.plot([parameter], [best], "*", ms=14, mec="black", mew=0.6, mfc="gold")
        axis.set_title(textwrap.fill(name, _TITLE_LETTERS // 2))
        axis.tick_params(axis="x", rotation=90, labelsize=7)
        axis.set_xlabel("parameter")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"validation {metric.label}")
    legends(figure, axes)
    save(figure, path)


def distributions(
    path: str | os.PathLike,
    panels: Mapping[str, Mapping[str, np.ndarray]],
    x_label: str,
) -> None:
    """Draws a panel for each setting: histograms, each with its normal fit.

    Args:
      path: The PNG file to write.
      panels: By the setting's name, values by the name of their group; the first is in
        grey.
      x_label: What the values are.
    """
    from scipy.stats import norm

    figure, axes = new_figure(len(panels), width=4.2)
    for axis, (setting, groups) in zip(axes, panels.items(), strict=True):
        edges = np.histogram_bin_edges(np.concatenate([*groups.values()]), bins=40)
        grid = np.linspace(edges[0], edges[-1], 200)
        colours = itertools.cycle(COLOURS)
        for (name, values), colour in zip(groups.items(), colours, strict=False):
            axis.hist(values, edges, density=True, color=colour, alpha=0.45, label=name)
            if (spread := np.std(values)) > 0:
                axis.plot(grid, norm.pdf(grid, np.mean(values), spread), color=colour)
        axis.set_title(setting, fontsize=9)
        axis.set_xlabel(x_label)
    axes[0].set_ylabel("density")
    legends(figure, axes)
    save(figure, path)


def new_figure(
    panels: int, width: float = 5.2, height: float = 4.2, *, share_y: bool = True
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
