"""Beyond the paper: from its recipe to the best of the fair comparison, step by step.

Each step is a line of the fair comparison. The first is the paper's own recipe. Then
the baseline gets settings of its own, its checkpoints are averaged, and better noise
takes the place of the tree. The last is whatever was best on validation data.
"""

import pathlib
from collections.abc import Mapping, Sequence

from stackoverflow.fair import (
    BASELINE,
    BROADCAST,
    CHOSEN,
    METRIC,
    METRICS,
    Found,
    Line,
    Scores,
    Table,
    accuracies,
)
from stackoverflow.task import StackOverflow
from tff_agg import files
from tff_agg.experiment import result_tables
from tff_agg.experiment.study import figures

RECIPE = "the paper's recipe"
OWN = "clip norm and rate chosen here"
RECYCLED = "mean of the last checkpoints (UTA_inf)"
STEPS = (RECIPE, OWN, RECYCLED)
_LABELS = ("step", "arm", "noise", "clip", "rate", "model")


def steps(found: Sequence[Found], lines: Sequence[Line]) -> dict[str, Line]:
    """Returns the lines of the fair comparison that lead to its best, by name.

    Args:
      found: The search, which says what is best on validation data.
      lines: The lines of the fair comparison; the paper's come first.
    """
    named: dict[str, Line] = {}
    if lines[0].why != CHOSEN:
        named[RECIPE] = lines[0]
    chosen = [line for line in lines if line.why == CHOSEN]
    own = [line for line in chosen if line.point.arm == BASELINE]
    first = own[0].point.noise
    for line in own:
        recycled = line.model != BROADCAST
        if line.point.noise == first:
            named[RECYCLED if recycled else OWN] = line
        elif recycled:
            named[f"{line.point.noise} noise instead of {first} noise, UTA_inf"] = line
    searched = {one.point: one for one in found}
    best = max(chosen, key=lambda line: searched[line.point].accuracy(line.model))
    if best not in named.values():
        kind = "" if best.model == BROADCAST else ", UTA_inf"
        named[f"{best.point.arm}, {best.point.noise} noise{kind}"] = best
    return named


def table(named: Mapping[str, Line], scores: Scores) -> Table:
    """Returns header and rows: every step, its gain over the first and over UTA_inf."""
    references = (next(iter(named)), RECYCLED)
    header = [*_LABELS, *(f"test {metric.label}" for metric in METRICS)]
    header += ["gain over the first line", "over the baseline's UTA_inf"]
    rows = []
    for name, line in named.items():
        row = [
            *_labels(name, line),
            *result_tables.shown_metrics(scores[line], METRICS),
        ]
        row += [_gain(name, other, named, scores) for other in references]
        rows.append(row)
    return header, rows


def _labels(name: str, line: Line) -> tuple[str, ...]:
    return (name, *map(str, line.point), line.model)


def _gain(name: str, other: str, named: Mapping[str, Line], scores: Scores) -> str:
    """Writes the gain of a step over an earlier one."""
    order = list(named)
    if order.index(name) <= order.index(other):
        return ""
    own, reference = (accuracies(scores[named[one]]) for one in (name, other))
    return result_tables.improvement(own, reference, METRIC)


def write(
    folder: pathlib.Path,
    level: str,
    title: str,
    named: Mapping[str, Line],
    scores: Scores,
) -> Table:
    """Writes the steps as Markdown, CSV and picture; returns them as a table."""
    made = table(named, scores)
    files.write_text(folder / f"beyond_{level}.md", result_tables.markdown(*made))
    result_tables.write_long(
        folder / f"beyond_{level}.csv",
        _LABELS,
        {_labels(name, line): scores[line] for name, line in named.items()},
        StackOverflow.metrics,
    )
    figures.points(
        folder / f"beyond_{level}.png",
        {name: accuracies(scores[line]) for name, line in named.items()},
        METRIC,
        title=title,
    )
    return made
