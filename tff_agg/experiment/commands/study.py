"""What every study's command does: plan, perform, report.

A package of studies is a command of its task, and lists them. It needs
`subcommands(task)`, which returns the module of each study by its name. Such a module
has

  def command(task):
      return study.command(Fair, declare, report)

where `Fair` are its options, `declare(options)` returns the study, and
`report(options, results)` what is shown of it.
"""

import contextlib
import functools
import pathlib
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tff_agg.experiment.commands import Command
from tff_agg.experiment.study.declare import Study
from tff_agg.experiment.study.options import Performing
from tff_agg.experiment.study.report import Report
from tff_agg.experiment.study.results import Results

Options = TypeVar("Options", bound=Performing)


def command(
    options: type[Options],
    declare: Callable[[Options], Study],
    report: Callable[[Options, Results], Report],
) -> Command:
    """Returns the command of a study.

    Args:
      options: A dataclass of fields, which become the flags.
      declare: Returns the study.
      report: Returns what is shown of its results.
    """
    return Command(functools.partial(run, declare, report), (options,), False)


def run(
    declare: Callable[[Any], Study],
    report: Callable[[Any, Results], Report],
    options: Performing,
) -> int:
    """Performs a study, writes what it shows, and prints its tables."""
    from tff_agg.experiment import progress
    from tff_agg.experiment.study import estimate, search

    began = time.monotonic()
    options = options.prepared()
    study, out = declare(options), pathlib.Path(options.out)
    if options.dry_run:
        print(estimate.of_study(study, out))
        return 0
    if options.report_only:
        results = search.results(study, out)
    else:
        with contextlib.closing(progress.StageBar()) as bar:
            results = search.perform(
                study,
                out,
                processes=options.processes,
                address=options.address,
                cpus_per_job=options.cpus_per_job,
                on_progress=bar,
            )
    if not results.lines:
        print(f"There is nothing to show yet in {out}")
        return 0
    page = report(options, results)
    page.write(out)
    print(f"\n{page.shown()}\n\nTables, pictures and scores are in {out}")
    if not options.report_only:
        print(f"{time.monotonic() - began:.0f} s in all")
    return 0
