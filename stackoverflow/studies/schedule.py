"""Draws how the share of the shift's two populations moves over the rounds.

Figure 1 of the paper: the chance that a client of a round comes from either group.
"""

import dataclasses
import functools
import pathlib

from pds import schedule
from stackoverflow.task import TYPES, StackOverflow, StackOverflowConfig
from tff_agg import fields
from tff_agg.experiment.commands import Command
from tff_agg.fields import described

_PERIOD = StackOverflowConfig.pds_period
_SHAPES = ("linear", "cosine", "step")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """Which schedule."""

    out: str = described("results/schedule", "where the picture goes")
    pds_schedule: str = described("linear", "shape of the shift", _SHAPES)
    pds_period: int = described(_PERIOD, "rounds in a period of the shift", at_least=2)
    rounds: int = described(3 * _PERIOD, "rounds that are drawn", at_least=2)

    def __post_init__(self) -> None:
        fields.check(self)


def draw(options: ScheduleOptions, names: tuple[str, str]) -> pathlib.Path:
    """Draws the schedule.

    Args:
      options: Which.
      names: Of the two groups.

    Returns:
      The picture's path.
    """
    from tff_agg.experiment.study import figures
    from tff_agg.experiment.study.results import Curve
    from tff_agg.recycling.metrics import Metric

    shift = schedule.Schedule(options.pds_schedule, period=options.pds_period)
    rounds = range(options.rounds)
    first = [shift.share(t) for t in rounds]
    second = [1 - share for share in first]
    drawn = {
        f"{name}s": Curve(rounds, [shares])
        for name, shares in zip(names, (first, second), strict=True)
    }
    path = pathlib.Path(options.out) / "figure1.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figures.curves(
        path,
        {shift.describe(): drawn},
        Metric("chance", is_share=True),
        y_label="chance that a client is drawn from a group %",
    )
    return path


def run(names: tuple[str, str], options: ScheduleOptions) -> int:
    """Draws, and says where."""
    print(f"The schedule is in {draw(options, names)}")
    return 0


def command(task: type[StackOverflow]) -> Command:
    """Returns the command."""
    return Command(functools.partial(run, TYPES), (ScheduleOptions,), False)
