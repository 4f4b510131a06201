r"""Reproduces the paper's tables on StackOverflow, and compares its arms fairly.

  python -m stackoverflow.reproduce --table=pds --scale=tiny --seeds=2
  python -m stackoverflow.reproduce --table=stackoverflow --scale=full --seeds=5 \
      --store=data/stackoverflow --out=results/reproduce
  python -m stackoverflow.reproduce --table=fair --scale=small --seeds=3 --store=…

Runs every training of the table, chooses every inference aggregation on validation
data, tests it once, and writes the table in the paper's layout (Markdown and CSV), the
curves over the last rounds and the tables of confidence widths. What is done is
skipped: stop it whenever you like, and run the same command again. `--jobs=4` trains
and recycles four at a time. `--dry_run` lists the runs with their estimated time.

`--table=fair` gives every arm a grid of clip norm × server rate of the same size on
validation data and shows the paper's settings and the chosen ones side by side; with
`--shift` under the periodic shift.
"""

import dataclasses
import functools
import itertools
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from absl import flags

from stackoverflow import fair, paper_tables, table_jobs
from stackoverflow.paper_tables import FAIR, SCALES, TRAININGS, ReproduceConfig, Run
from stackoverflow.task import StackOverflow
from tff_agg.experiment import binaries
from tff_agg.experiment.commands import flags as flag_fields
from tff_agg.experiment.run import ledger


def with_store(config: ReproduceConfig) -> ReproduceConfig:
    """Returns the configuration with a token store, the embedded data by default."""
    from stackoverflow.data import prepared

    if config.store:
        return config
    sizes = SCALES[config.scale].synthetic
    if sizes is None:
        raise ValueError(
            f"--scale={config.scale} needs --store, a token store that "
            "stackoverflow prepare has written; only 'tiny' has embedded data"
        )
    folder = os.path.join(config.out, "data")
    store = prepared.ensure_store(
        "synthetic", None, folder, users=sizes["users"], words=sizes["words"]
    )
    return dataclasses.replace(config, store=store)


def train_all(config: ReproduceConfig, runs: Sequence[Run]) -> None:
    """Trains what is not trained yet."""
    if config.side_by_side:
        left = [run for run in runs if not _is_done(config, run)]
        train = functools.partial(_train_alone, config.anywhere())
        table_jobs.run_all(config, train, left, "training")
    numbered = itertools.groupby(enumerate(runs, 1), lambda pair: pair[1].kind)
    for _, alike in numbered:
        _train_alike(config, len(runs), list(alike))


def _train_alone(config: ReproduceConfig, run: Run) -> None:
    """Trains one run in a process that has no terminal."""
    task = config.task(run)
    table_jobs.set_up(config, task.config.lanes)
    from tff_agg.experiment.run import run as training

    training.run(task, config.folder(run))


def _train_alike(
    config: ReproduceConfig, total: int, alike: Sequence[tuple[int, Run]]
) -> None:
    """Trains runs that differ in their seeds, which share what was compiled."""
    table_jobs.set_up(config, None)
    from tff_agg.experiment import terminal
    from tff_agg.experiment.build import Compiled
    from tff_agg.experiment.run import run as training

    with Compiled() as cache:
        for number, run in alike:
            label = f"{number:2}/{total} {run.folder}"
            bar = terminal.TrainingBar(StackOverflow.metrics, label, show_plan=False)
            training.run(config.task(run), config.folder(run), bar, compiled=cache)


def estimate(config: ReproduceConfig) -> str:
    """Lists the runs with their time, by two measured rounds of the first one left."""
    from tff_agg.experiment.run import estimate as estimates
    from tff_agg.experiment.study import show

    if config.table == FAIR:
        planned = fair.jobs(config)
    else:
        planned = [
            (r.folder, config.task(r), _done(config.folder(r))) for r in config.runs()
        ]
    rows: list[list[Any]] = []
    measured: estimates.Estimate | None = None
    total = 0.0
    for name, task, done in planned:
        left = task.config.rounds - done
        seconds = 0.0
        if left:
            if measured is None:
                # Of a run of its own, wherever that would be.
                measured = estimates.estimate(task, str(config.results / "dry_run"))
            validations = -(-left // task.config.evaluate_every)
            seconds = measured.seconds_for(left, validations)
        total += seconds
        rows.append([name, done, left, estimates.duration(seconds)])
    table = show.render(show.Table(["run", "rounds done", "left", "time"], rows))
    return (
        f"{table}\n{estimates.duration(total)} in all, by two measured rounds; saving, "
        "inference aggregation and test are not counted"
    )


def _is_done(config: ReproduceConfig, run: Run) -> bool:
    rounds = run.config(config.scale, config.store).rounds
    return _done(config.folder(run)) >= rounds


def _done(folder: pathlib.Path) -> int:
    history = ledger.Ledger(folder).read()
    return 0 if history is None else max(history.last, 0)


def main(values: flags.FlagValues) -> int:
    """Reproduces what the flags describe."""
    from stackoverflow import fair_report, table_report
    from tff_agg.experiment.study import show

    config = with_store(
        ReproduceConfig(
            table=values.table,
            scale=values.scale,
            seeds=values.seeds,
            store=values.store,
            out=values.out,
            epsilons=tuple(values.epsilons),
            trainings=tuple(values.trainings),
            address=values.address,
            shift=values.shift,
            jobs=values.jobs,
        )
    )
    if values.dry_run:
        print(estimate(config))
        return 0
    if config.table == FAIR:
        for epsilon in config.epsilons:
            print(f"ε = {epsilon}")
            for table in fair_report.run(config, epsilon):
                print(show.render(show.Table(*table)))
    else:
        train_all(config, config.runs())
        print(table_report.report(config))
        if config.seeds > 1:
            print(table_report.widths(config))
    print(f"Tables and pictures are in {config.results}")
    return 0


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the binary."""
    define = functools.partial(flag_fields.define_one, values)
    tables = [*paper_tables.TABLES, FAIR]
    define("enum", "table", "stackoverflow", tables, "which table")
    define("enum", "scale", "tiny", list(SCALES), "how large the runs are")
    define("integer", "seeds", 5, "seeds of each training, from 0 on")
    define("string", "store", "", "the token store; tiny: empty for embedded data")
    define("string", "out", "results/reproduce", "where runs and results go")
    define("list", "epsilons", list(paper_tables.EPSILONS), "the rows of the table")
    define("list", "trainings", list(TRAININGS), "the trainings of each row")
    define("bool", "shift", False, "--table=fair: with the periodic shift")
    define("integer", "jobs", 1, "runs at the same time on this machine", 1)
    define("string", "address", None, "a Ray cluster to spread the runs over")
    define("bool", "dry_run", False, "list the runs with their time, and train nothing")


def entry_point() -> None:
    """Runs as the console command `tff-agg-reproduce`."""
    binaries.run_main(define_flags, main)


if __name__ == "__main__":
    entry_point()
