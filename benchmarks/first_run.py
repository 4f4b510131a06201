"""A stranger's first run: the defaults, beside the best settings known and no model.

Trains `train`'s defaults at ε = 8 on every population at hand, and the settings that
are the best known for it (BEST); what no run has found a better setting for has none.
Prints test scores, those of always the same answer, and how much of the best's gain
over that the defaults reach. Noise seeds are known, so that the runs have the noise of
ε and no guarantee. What was trained already is not trained again.

    python -m benchmarks.first_run --out=results/first_run
"""

import dataclasses
import math
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks import populations
from benchmarks.populations import (
    CLICKS,
    DIGITS,
    LARGE,
    LISTS,
    MADE_UP,
    PATIENTS,
    Population,
)
from tff_agg.experiment import commands
from tff_agg.experiment.commands import Command
from tff_agg.experiment.study.declare import Arm, Line, Settings, Study, known
from tff_agg.experiment.study.options import StudyOptions
from tff_agg.experiment.study.train import in_memory
from tff_agg.fields import described

#: The best settings known of each population, with everything else as by default: of
#: the runs of docs/first_run.md and docs/results.md. Found on validation data.
BEST: Mapping[str, Settings] = {
    LISTS: {"client_learning_rate": 1.0},
    DIGITS: {"server_learning_rate": 10.0},
    CLICKS: {"batch_size": 512},
    PATIENTS: {"server_learning_rate": 5.0 / 3, "client_learning_rate": 0.03},
}
EVERY = (LISTS, MADE_UP, DIGITS, PATIENTS, CLICKS, LARGE)
DEFAULTS, BEST_KNOWN = "the defaults", "the best known"
EPSILON = 8.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstRun(StudyOptions):
    """What is trained."""

    out: str = described("results/first_run", "where data, scores and the table go")
    seeds: int = described(1, "seeds, from 0 on", at_least=1)
    populations: tuple[str, ...] = described(EVERY, "which populations", EVERY)
    data_dir: str = described(
        "../shared/data", "folder with rlists/ and clicks/, if they are there"
    )
    rounds: int | None = described(
        None, "rounds, for a quick look; not given: as by default", at_least=1
    )


def here(options: FirstRun) -> Iterator[Population]:
    """Yields the populations at hand."""
    folder = str(pathlib.Path(options.out) / "data")
    return populations.at_hand(options.populations, options.data_dir, folder)


def private(options: FirstRun) -> Settings:
    """Returns all that a stranger gives."""
    given: dict[str, Any] = {"epsilon": EPSILON}
    return given if options.rounds is None else given | {"rounds": options.rounds}


def study_of(population: Population, options: FirstRun) -> Study:
    """Returns the runs of a population: the defaults, and the best known."""
    name, config = population.name, population.config(**private(options))
    arms: dict[str, Settings] = {DEFAULTS: {}}
    if name in BEST:
        arms[BEST_KNOWN] = BEST[name]
    lines = tuple(
        Line(name, label, Arm(label, config, (settings,)))
        for label, settings in arms.items()
    )
    return Study(
        population.task,
        lines,
        seeds=tuple(range(options.seeds)),
        train=in_memory(),
        seeding=known(1000),
        examples={"test": config.test_examples},
    )


def run(options: FirstRun) -> int:
    """Trains what is left, and prints the table."""
    from tff_agg.experiment.study import estimate, search, show

    rows = []
    for population in here(options):
        name, study = population.name, study_of(population, options)
        out = pathlib.Path(options.out) / name.replace(" ", "_")
        if options.dry_run:
            print(f"{name}:\n{estimate.of_study(study, out)}")
            continue
        if options.report_only:
            found = search.results(study, out)
        else:
            found = search.perform(study, out, processes=options.processes)
        metric = study.task.metrics[0]
        trivial = found.trivial().get(metric.name, math.nan)
        values = {line.name: found.values(line) for line in found.lines}
        shown = [
            show.mean_and_std(values[label], metric) if values.get(label) else ""
            for label in (DEFAULTS, BEST_KNOWN)
        ]
        share = _share(trivial, *(values.get(x) for x in (DEFAULTS, BEST_KNOWN)))
        seeds = max(map(len, values.values()), default=0)
        scores = [metric.show(trivial), *shown, share]
        rows.append([name, metric.label, *scores, seeds])
    if options.dry_run:
        return 0
    header = ["population", "metric", "always the same", DEFAULTS, BEST_KNOWN]
    table = show.Table([*header, "of the best's gain", "seeds"], rows)
    print(show.render(table))
    if rows:
        show.save(table, pathlib.Path(options.out) / "first_run.md")
    return 0


def _share(trivial: float, own: list[float] | None, best: list[float] | None) -> str:
    """Returns how much of the best's gain over always the same the defaults reach."""
    if not own or not best:
        return ""
    gains = [sum(values) / len(values) - trivial for values in (own, best)]
    return f"{100 * gains[0] / gains[1]:.0f} %" if gains[1] else ""


if __name__ == "__main__":
    commands.run(
        "python -m benchmarks.first_run",
        __doc__ or "",
        Command(run, (FirstRun,)),
        sys.argv[1:],
    )
