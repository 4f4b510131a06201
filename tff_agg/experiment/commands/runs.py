"""Lists runs with the settings in which they differ, ε, rounds done and scores.

With one folder: all runs in it. With two run folders: everything in which they differ.
"""

import functools
import pathlib
from collections.abc import Sequence

from tff_agg.experiment import run_list
from tff_agg.experiment.commands import Command
from tff_agg.experiment.run import ledger
from tff_agg.experiment.task import Task
from tff_agg.recycling import series


def run(task_class: type[Task], arguments: Sequence[str]) -> int:
    """Lists the runs of a folder, or compares two."""
    from tff_agg.experiment.study import show

    whose = f"Scores are of {series.IN_WORDS[series.BROADCAST]}."
    if len(arguments) == 2:
        both = [run_list.summary(task_class, pathlib.Path(a)) for a in arguments]
        lines = run_list.compare(task_class, *both)
        print(show.render(show.Table(["", *arguments], lines)))
        print(whose)
        return 0
    if len(arguments) != 1:
        raise ValueError(
            "name a folder with runs, or two run folders to compare; got "
            f"{len(arguments)} folders"
        )
    (top,) = arguments
    summaries, damaged = [], []
    for folder in run_list.find(top):
        try:
            summaries.append(run_list.summary(task_class, folder))
        except (ValueError, ledger.ResumeError) as error:
            damaged.append(f"{folder}: {error}")
    metric = task_class.metrics[0].label
    header = ["run", "rounds", "ε", f"validation {metric}", f"test {metric}"]
    lines = run_list.rows(task_class, summaries, top)
    if summaries:
        header.append("settings that differ")
        print(show.render(show.Table(header, lines)))
        print(whose)
    for line in damaged:
        print(f"Left out: {show.visible(line)}")
    return 1 if damaged else 0


def command(task: type[Task]) -> Command:
    """Returns the command of a task."""
    return Command(
        functools.partial(run, task), tensorflow=False, arguments="FOLDER [OTHER]"
    )
