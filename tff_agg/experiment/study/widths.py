"""Error bars side by side: of independent runs, and of the checkpoints of one run.

They belong to sets of runs, so they are no scores. What is compared is made by
`tff_agg.experiment.error_bars`.
"""

import csv
import itertools
import os
import pathlib
from collections.abc import Mapping

import numpy as np

from tff_agg.experiment.study import figures
from tff_agg.experiment.study.show import Table
from tff_agg.recycling.uncertainty import Comparison

#: By what runs are called, and by how far apart their checkpoints are, in words.
Compared = Mapping[str, Mapping[str, Comparison]]
INDEPENDENT = "independent runs"
_HEADER = ("runs", "estimator", "models", "repeat", "width")


def in_words(apart: int) -> str:
    """Says how far apart checkpoints are; 0: as far as their predictions ask for."""
    named = {0: "as far apart as found, widened", 1: "last checkpoints"}
    return named.get(apart, f"{apart} rounds apart")


def table(
    compared: Compared, *, digits: int = 3, errors: bool = False, alone: bool = False
) -> Table:
    """Lays mean widths out: a row for each kind of runs and number N of models.

    Beside the widths of checkpoints stand the independent runs' over them.

    Args:
      compared: The widths.
      digits: After the decimal point.
      errors: Whether widths have their standard errors over repeats.
      alone: Whether the ratios stand there alone.
    """
    labels = list(dict.fromkeys(label for own in compared.values() for label in own))
    both = any(len(c.independent) for own in compared.values() for c in own.values())
    header = ["runs", "N", *([INDEPENDENT] * (both and not alone))]
    for label in labels:
        header += [label] * (not alone) + [label if alone else "ratio"] * both

    def shown(values: np.ndarray) -> str:
        mean = f"{values.mean():.{digits}f}"
        return f"{mean} ± {_error(values):.{digits}f}" if errors else mean

    rows: list[list[str]] = []
    for name, own in compared.items():
        first = next(iter(own.values()))
        for i, n in enumerate(first.sizes):
            row = [name, str(n)]
            if both and not alone:
                row.append(shown(first.independent[:, i]))
            for label in labels:
                known = label in own and n in own[label].sizes
                place = own[label].sizes.index(n) if known else 0
                if not alone:
                    row.append(shown(own[label].checkpoints[:, place]) if known else "")
                if both:
                    row.append(f"{own[label].ratio[place]:.2f}" if known else "")
            rows.append(row)
    what = "Ratio of the widths" if alone else "Mean width"
    title = f"{what} of the confidence interval of a prediction, by N models"
    return Table(header, rows, title)


def data(compared: Compared) -> Table:
    """Returns every width, for programs and for `read`."""
    rows = [
        (name, estimator, n, repeat, width)
        for name, own in compared.items()
        for estimator, (sizes, values) in _estimators(own).items()
        for repeat, widths in enumerate(values)
        for n, width in zip(sizes, widths, strict=True)
    ]
    return Table(_HEADER, rows)


def read(path: str | os.PathLike) -> Compared:
    """Reads what `data` has laid out, from a CSV file."""
    widths: dict[str, dict[str, dict[int, list[float]]]] = {}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            own = widths.setdefault(row["runs"], {}).setdefault(row["estimator"], {})
            own.setdefault(int(row["models"]), []).append(float(row["width"]))
    return {
        name: {
            label: Comparison(
                tuple(of_label),
                np.array([*own.get(INDEPENDENT, {}).values()]).T,
                np.array([*of_label.values()]).T,
            )
            for label, of_label in own.items()
            if label != INDEPENDENT
        }
        for name, own in widths.items()
    }


def draw(compared: Compared, path: pathlib.Path) -> None:
    """Draws mean widths over N with their errors, a panel for each kind of runs."""
    from matplotlib import ticker

    figure, axes = figures.new_figure(len(compared), 5.2 if len(compared) == 1 else 4.2)
    names = [INDEPENDENT, *(label for own in compared.values() for label in own)]
    colours = itertools.cycle(figures.COLOURS)
    looks = dict(zip(dict.fromkeys(names), colours, strict=False))
    for axis, (title, own) in zip(axes, compared.items(), strict=True):
        for name, (sizes, values) in _estimators(own).items():
            errors = [_error(column) for column in values.T]
            style = "o--" if name == INDEPENDENT else "o-"
            axis.errorbar(
                sizes, values.mean(axis=0), errors, fmt=style, color=looks[name],
                capsize=3, label=name,
            )  # fmt: skip
        first, *others = own.values()
        if len(first.independent) and not others:
            tops = first.independent.mean(axis=0)
            for n, ratio, top in zip(first.sizes, first.ratio, tops, strict=True):
                axis.annotate(
                    f"×{ratio:.2f}", (n, top), textcoords="offset points",
                    xytext=(4, 6), fontsize=8,
                )  # fmt: skip
        axis.set_title(title, fontsize=9)
        axis.set(xlabel="number of models N", xscale="log", yscale="log")
        axis.set_xticks(first.sizes, [str(n) for n in first.sizes])
        axis.minorticks_off()
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axis.margins(x=0.18)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("mean width of the 95 % interval")
    figures.legends(figure, axes)
    figures.save(figure, path)


def _estimators(
    own: Mapping[str, Comparison],
) -> dict[str, tuple[tuple[int, ...], np.ndarray]]:
    """Returns (sizes, widths [repeats, sizes]) by the name of the estimator."""
    first = next(iter(own.values()))
    found = {label: (c.sizes, c.checkpoints) for label, c in own.items()}
    if not len(first.independent):
        return found
    return {INDEPENDENT: (first.sizes, first.independent), **found}


def _error(values: np.ndarray) -> float:
    """Returns the standard error over repeats."""
    count = len(values)
    return float(values.std(ddof=1) / np.sqrt(count)) if count > 1 else 0.0
