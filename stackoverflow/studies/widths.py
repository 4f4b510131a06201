"""Error bars of checkpoints against those of independent runs, for a study's runs.

They belong to sets of runs, so they are no scores. Checkpoints are taken as they follow
each other, which is the paper's way, some rounds apart, where they depend less on each
other, and as far apart as their predictions say, widened.
"""

import contextlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stackoverflow.task import StackOverflow
from tff_agg import digests
from tff_agg.experiment.study import widths
from tff_agg.experiment.study.declare import Line, Trial
from tff_agg.experiment.study.options import StudyOptions
from tff_agg.experiment.study.results import Results
from tff_agg.experiment.study.show import Table
from tff_agg.recycling import uncertainty


class Comparison(NamedTuple):
    """What is compared: runs that differ in their seeds.

    Attributes:
      name: What the runs are called.
      folders: Theirs.
      separation: How many rounds the checkpoints are apart; 0: as found.
      examples: The sentences of the validation sample.
      out: Where the widths are written.
    """

    name: str
    folders: tuple[str, ...]
    separation: int
    examples: int
    out: pathlib.Path


def table(
    options: StudyOptions,
    results: Results,
    lines: Mapping[str, Line],
    *,
    separations: Sequence[int],
    examples: int,
) -> Table:
    """Compares where that is not done yet, and lays the widths out.

    Args:
      options: Say how many comparisons run side by side, and whether any are made;
        without, those that are there are shown.
      results: The study's.
      lines: By the name of runs, a line that was chosen for them.
      separations: How many rounds the checkpoints are apart, one comparison for each.
      examples: The sentences of the validation sample.
    """
    comparisons = [
        _comparison(results, name, line, separation, examples)
        for separation in separations
        for name, line in lines.items()
    ]
    if not options.report_only:
        trials = [
            trial
            for line in lines.values()
            for trial in results.study.trials(line, {}, results.seeds)
        ]
        _compare_all(options, [c for c in comparisons if not _is_done(c)], trials)
    compared: dict[str, dict[str, uncertainty.Comparison]] = {}
    for comparison in filter(_is_done, comparisons):
        (own,) = widths.read(comparison.out / "widths.csv").values()
        compared.setdefault(comparison.name, {}).update(own)
    return widths.table(compared)


def _comparison(
    results: Results, name: str, line: Line, separation: int, examples: int
) -> Comparison:
    """Names its folder by the very runs: other weights have other widths."""
    what = f"{results.runs(line)} {examples}"
    digest = digests.of_bytes(what.encode())[:8]
    return Comparison(
        name,
        tuple(str(folder.absolute()) for folder in results.folders(line)),
        separation,
        examples,
        results.out.absolute() / "widths" / f"{name}_separation{separation}_{digest}",
    )


def _compare_all(
    options: StudyOptions, left: Sequence[Comparison], trials: Sequence[Trial]
) -> None:
    """Compares, side by side if that is wanted."""
    if not left:
        return
    from tff_agg.experiment import progress
    from tff_agg.experiment.study import search
    from tff_agg.runtime.spread import spread

    beside = options.processes > 1 or options.address is not None
    set_up = search.set_up(trials, side_by_side=beside)
    if not beside:
        set_up()
    with contextlib.closing(progress.StageBar()) as bar:
        bar("error bars", 0, len(left))
        jobs = spread(
            _compare,
            left,
            processes=options.processes,
            address=options.address,
            cpus_per_job=options.cpus_per_job,
            set_up=set_up if beside else None,
        )
        with contextlib.closing(jobs):
            for done, ended in enumerate(jobs, 1):
                ended.result()
                bar("error bars", done, len(left))


def _compare(comparison: Comparison) -> None:
    """Compares one kind of runs, in whichever process."""
    from tff_agg.experiment.commands import uncertainty as command

    command.run(
        StackOverflow,
        command.UncertaintyConfig(
            runs=comparison.folders,
            out=str(comparison.out),
            examples=comparison.examples,
            series="aggregate",
            separation=comparison.separation,
        ),
    )


def _is_done(comparison: Comparison) -> bool:
    # The picture comes last.
    return (comparison.out / "widths.png").exists()
