"""What the fair comparison has come to: tables for people and programs, a picture."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stackoverflow import beyond, fair
from stackoverflow.fair import (
    CHOSEN,
    METRIC,
    METRICS,
    Found,
    Line,
    Point,
    Scores,
    Table,
    accuracies,
)
from stackoverflow.paper_tables import ReproduceConfig
from stackoverflow.task import StackOverflow
from tff_agg import files
from tff_agg.experiment import in_memory, result_tables
from tff_agg.experiment.study import figures
from tff_agg.experiment.study import statistics as seed_statistics

_LABELS = ("arm", "noise", "clip", "rate")
_VERDICTS = {True: "yes", False: "no", None: "too few seeds"}


class Tables(NamedTuple):
    """What the fair comparison has come to: all lines, and the steps to the best."""

    lines: Table
    steps: Table


def run(config: ReproduceConfig, epsilon: str) -> Tables:
    """Searches, trains what was chosen, tests it; writes the tables and returns them.

    Written are, for validation and for test data, a Markdown table, a CSV with all
    metrics, and a picture: of the chosen trainings over rounds, and of the test scores.
    The same for the steps from the paper's recipe to the best (`beyond`).
    """
    results = files.results_folder(str(config.results))
    level = f"eps{epsilon}"
    found = fair.search(config, epsilon)
    text = result_tables.markdown(*search_table(found))
    files.write_text(results / f"search_{level}.md", text)
    result_tables.write_long(
        results / f"search_{level}.csv",
        [*_LABELS, "model"],
        {
            (*map(str, one.point), model): [values]
            for one in found
            for model, values in one.values.items()
        },
        StackOverflow.metrics,
    )
    paper = fair.published(config, epsilon)
    lines = fair.lines_of(found, paper)
    title = f"ε = {epsilon.replace('inf', '∞')}"
    figures.curves(
        results / f"search_{level}.png",
        curves_of(found, lines, paper[:1]),
        METRIC,
        title=f"{title}, one seed each",
        bottom=0,
    )
    scores = scores_of(lines, fair.tests_of(config, epsilon, lines))
    table = test_table(scores)
    files.write_text(results / f"table_{level}.md", result_tables.markdown(*table))
    result_tables.write_long(
        results / f"table_{level}.csv",
        [*_LABELS, "settings", "model"],
        {
            (*map(str, line.point), line.why, line.model): values
            for line, values in scores.items()
        },
        StackOverflow.metrics,
    )
    tested = f"{title}, {config.seeds} seeds"
    figures.points(
        results / f"test_{level}.png",
        {name_of(line): accuracies(values) for line, values in scores.items()},
        METRIC,
        title=tested,
    )
    steps = beyond.write(results, level, tested, beyond.steps(found, lines), scores)
    return Tables(table, steps)


def search_table(found: Sequence[Found]) -> Table:
    """Returns header and rows of the search: the metric of every model."""
    header = [*_LABELS, *found[0].values]
    rows = [
        [*map(str, one.point), *(METRIC.show(one.accuracy(m)) for m in one.values)]
        for one in found
    ]
    return header, rows


def curves_of(
    found: Sequence[Found], lines: Sequence[Line], paper: Sequence[Point]
) -> dict[str, dict[str, figures.Curve]]:
    """Returns what the picture of the search shows: a panel for each kind of noise.

    In it is the curve of every arm at the settings that it chose for what it
    broadcasts, and, in each panel, those of the paper's settings that were searched.
    """
    drawn = {one.point: _curve(one) for one in found}
    known = {
        f"{point} (as published)": drawn[point] for point in paper if point in drawn
    }
    panels: dict[str, dict[str, figures.Curve]] = {}
    for line in lines:
        if line.why == CHOSEN and line.model == in_memory.BROADCAST:
            panel = panels.setdefault(f"noise: {line.point.noise}", dict(known))
            panel[str(line.point)] = drawn[line.point]
    return panels


def _curve(found: Found) -> figures.Curve:
    rounds = [number for number, _ in found.curve]
    return figures.Curve(rounds, [[one[METRIC.name] for _, one in found.curve]])


def scores_of(
    lines: Sequence[Line], tests: Mapping[Point, Sequence[in_memory.Scored]]
) -> Scores:
    """Returns, for each line, the scores of its model with every seed."""
    return {
        line: [one.values[line.model] for one in tests[line.point]] for line in lines
    }


def test_table(scores: Scores) -> Table:
    """Returns header and rows of the table; gains are over the first line."""
    header = [*_LABELS, "settings", "model"]
    header += [f"test {metric.label}" for metric in METRICS]
    header += ["gain", "clear of the spread"]
    rows: list[list[str]] = []
    first: list[float] = []
    for line, values in scores.items():
        own = accuracies(values)
        last = ["", ""]
        if first:
            gain = seed_statistics.gain(own, first)
            last = [f"{100 * gain.relative:+.1f} %", _VERDICTS[gain.clear]]
        first = first or own
        shown = result_tables.shown_metrics(values, METRICS)
        rows.append([*map(str, line.point), line.why, line.model, *shown, *last])
    return header, rows


def name_of(line: Line) -> str:
    """Names a line of the table in the picture."""
    why = "" if line.why == CHOSEN else f" ({line.why})"
    return f"{line.point}: {line.model}{why}"
