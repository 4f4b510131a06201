"""Choosing on validation data: settings and method of each line of a study."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from tff_agg.experiment.study.declare import (
    VALIDATION,
    Chosen,
    Line,
    Question,
    Settings,
    Trial,
    Use,
)
from tff_agg.experiment.study.standing import Standing
from tff_agg.recycling.methods import Method

Asked = list[tuple[Trial, list[Question]]]


class Choices(NamedTuple):
    """What can be chosen, and what has to be known for the rest.

    Attributes:
      chosen: By line; lines whose choice is not known yet are left out.
      asked: What was, or is to be, asked on validation data.
    """

    chosen: Mapping[Line, Chosen]
    asked: Asked


def choices(standing: Standing) -> Choices:
    """Chooses for every line, as far as the scores allow.

    Raises:
      ValueError: A method has not the metric that is chosen by, or lines take their
        settings from each other.
      RuntimeError: All candidates of a line have failed.
    """
    study = standing.study
    by_key: dict[tuple[str, str], Chosen] = {}
    asked: Asked = []
    waiting = list(study.lines)
    while waiting:
        ready = [line for line in waiting if line.like is None or line.like in by_key]
        waiting = [line for line in waiting if line not in ready]
        for line in ready:
            given = {} if line.like is None else by_key[line.like].settings
            settings = [{**given, **candidate} for candidate in line.arm.grid]
            found = _choose(standing, line, settings, asked)
            if found is not None:
                by_key[line.key] = found
        if not any(line.like in by_key for line in waiting):
            break
    _refuse_cycles(study.lines)
    chosen = {line: by_key[line.key] for line in study.lines if line.key in by_key}
    return Choices(chosen, asked)


def _choose(
    standing: Standing, line: Line, settings: Sequence[Settings], asked: Asked
) -> Chosen | None:
    """Chooses among candidates; adds what has to be known to `asked`."""
    if line.chosen_by is None:
        return _best(standing, line, settings, line.use, asked)
    if not standing.study.train.keeps:
        # What is trained again for a second look takes longer than to look at all.
        asked += _questions(standing, line, settings, line.use)
    first = _best(standing, line, settings, line.chosen_by, asked)
    if first is None:
        return None
    second = _best(standing, line, [first.settings], line.use, asked)
    if second is None or second.validation is not None:
        return second
    return second._replace(validation=first.validation)


def _questions(
    standing: Standing, line: Line, settings: Sequence[Settings], use: Use
) -> Asked:
    """Returns what is asked of the candidates; nothing where there is no choice."""
    if len(settings) * len(use.methods) == 1:
        return []
    return [
        (trial, [standing.question(trial, use, VALIDATION)])
        for candidate in settings
        for trial in standing.search_trials(line, candidate)
    ]


def _best(
    standing: Standing,
    line: Line,
    settings: Sequence[Settings],
    use: Use,
    asked: Asked,
) -> Chosen | None:
    """Picks settings and method; of equals the first. None while it is not known."""
    if len(settings) * len(use.methods) == 1:
        return Chosen(settings[0], use.methods[0], None)
    asked += _questions(standing, line, settings, use)
    metric = standing.study.task.metrics[0]
    best: tuple[float, Settings, Method] | None = None
    tried = [
        candidate
        for candidate in settings
        if not any(
            standing.is_given_up(trial)
            for trial in standing.search_trials(line, candidate)
        )
    ]
    if not tried:
        raise RuntimeError(
            f"line {line.key}: all of its candidates have failed; what they failed of "
            f"is in {standing.out / 'failed'}"
        )
    for candidate in tried:
        for method in use.methods:
            values = standing.validations(
                line, candidate, method, use.series, metric.name
            )
            if values is None:
                _refuse_without_metric(standing, line, candidate, method, use)
                return None
            value = fmean(v for of_seed in values for v in of_seed)
            if best is None or metric.better(value, best[0]):
                best = value, candidate, method
    assert best is not None
    return Chosen(best[1], best[2], best[0])


def _refuse_without_metric(
    standing: Standing, line: Line, settings: Settings, method: Method, use: Use
) -> None:
    """Refuses to choose by a metric that a method has not, though it was scored."""
    metric = standing.study.task.metrics[0].name
    for trial in standing.search_trials(line, settings):
        scored = standing.metrics(trial, use.series, method, VALIDATION)
        if scored and metric not in scored:
            raise ValueError(
                f"line {line.key}: {method} cannot be chosen by {metric!r}, which it "
                f"has not; it has {', '.join(scored)}"
            )


def _refuse_cycles(lines: Sequence[Line]) -> None:
    """Refuses lines that take their settings from each other."""
    by_key = {line.key: line for line in lines}
    for line in lines:
        seen = [line.key]
        while (other := by_key[seen[-1]].like) is not None:
            if other in seen:
                raise ValueError(
                    f"like={other!r} of the line {seen[-1]}: these lines take their "
                    "settings from each other"
                )
            seen.append(other)
