"""Trains a task with differential privacy, from a configuration to a run folder.

The folder of a run:
```
config.json environment.json      what was run, and on what
ledger.jsonl                      what the run is, and every round it has released
privacy_report.md .json           the guarantee, in words and in numbers
metrics.csv validation.csv test.csv   no test.csv if test_examples is 0; ε so far in
                                  metrics.csv is for a stopping round fixed in advance
timing.csv                        seconds per round, apart: all else is reproducible
tensorboard/                      the same numbers as event files
checkpoints/                      θ_t, θ^AGG_t and the state (a CheckpointStore)
```
"""

import contextlib

from absl import flags

from tff_agg.experiment.build import Compiled
from tff_agg.experiment.commands import flags as flag_fields
from tff_agg.experiment.commands import interruption
from tff_agg.experiment.config import TrainConfig
from tff_agg.experiment.run import ledger, run
from tff_agg.experiment.task import Task
from tff_agg.runtime import lane_times


def _dry_run(task: Task, out: str) -> int:
    """Shows what a run would be."""
    from tff_agg.experiment import terminal
    from tff_agg.experiment.run import estimate

    run.warn_about_delta(task)
    found = estimate.estimate(
        task, out, on_plan=lambda plan: print(terminal.plan_table(plan), flush=True)
    )
    print(terminal.wrapped_table(["dry run", ""], found.lines()))
    if found.disk.total > found.disk.free:
        print(f"The disk of {out} has too little room.")
        return 1
    return 0


def define_flags(task_class: type[Task], values: flags.FlagValues) -> None:
    """Defines the flags of this driver: one for each field of the configuration."""
    flag_fields.define_one(values, "string", "out", None, "the run's folder")
    text = "show plan, users, disk and time, and write nothing to --out"
    flag_fields.define_one(values, "bool", "dry_run", False, text)
    flag_fields.define(task_class.Config, values)
    task_class.define_data_flags(values)


def main(task_class: type[Task], values: flags.FlagValues) -> int:
    """Runs the training that the flags describe."""
    from tff_agg.experiment import terminal

    if not values.out:
        raise ValueError("--out must name the run's folder; it is empty")
    # Before the data: bad flags must not cost minutes of preparation.
    config = flag_fields.read(task_class.Config, values)
    ready = False

    def how_to_go_on() -> str:
        again = "run the same command again to go on."
        if not ready:
            return f"The data are not prepared yet; {again}"
        done = run.rounds_done(ledger.Ledger(values.out))
        return (
            f"{done} of {config.rounds} rounds are done and saved in {values.out}; "
            f"{again}"
        )

    with interruption.plain_ending(how_to_go_on):
        config = task_class.with_data(config, values)
        task = task_class(config)
        # A task may have found its number of rounds.
        config = task.config
        if values.dry_run:
            return _dry_run(task, values.out)
        ready = True
        # Closed before an error is reported, which would stand above it otherwise.
        times = lane_times.LaneTimes()
        with (
            contextlib.closing(terminal.TrainingBar(task_class.metrics)) as bar,
            Compiled(times) as compiled,
        ):
            run.run(task, values.out, bar, compiled=compiled)
    on_ray = isinstance(config, TrainConfig) and config.runtime == "ray"
    if on_ray and len(rows := times.table()) > 1:
        print(terminal.lane_table(rows))
    return 0
