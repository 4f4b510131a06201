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
import dataclasses
import functools
import pathlib
from typing import Any

from tff_agg import privacy
from tff_agg.experiment.build import Compiled
from tff_agg.experiment.commands import Command, interruption
from tff_agg.experiment.config import TrainConfig
from tff_agg.experiment.run import run
from tff_agg.experiment.run.run_folder import RunFolder
from tff_agg.experiment.task import Task, UserTask
from tff_agg.fields import described
from tff_agg.runtime.lanes.times import LaneTimes


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """What `train` has besides the configuration of the run."""

    out: str = described("", "the run's folder")
    dry_run: bool = described(
        False,
        "show plan, users, disk and time, try clients' rates on held-out data, measure "
        "models of other sizes; write nothing to --out",
    )
    minutes: float | None = described(
        None,
        "choose rounds, users in a round and examples of a user for so much time, by "
        "rounds that are measured; a run that is there already keeps its own",
    )

    def __post_init__(self) -> None:
        if not self.out:
            raise ValueError("--out must name the run's folder; it is empty")


def _dry_run(task: Task, out: str) -> int:
    """Shows what a run would be."""
    from tff_agg.experiment import terminal
    from tff_agg.experiment.run import estimate
    from tff_agg.experiment.study import show

    run.warn_about_delta(task)

    def tell(plan: privacy.Plan) -> None:
        print(terminal.plan_table(plan), flush=True)
        terminal.print_wrapped(run.told(task, plan))

    found = estimate.estimate(task, out, on_plan=tell)
    print(show.render(show.Table(["dry run", ""], found.lines())))
    if not found.done:
        _propose(task)
    if not found.disk.fits:
        print(f"The disk of {out} has too little room.")
        return 1
    return 0


def _propose(task: Task) -> None:
    """Shows clients' rates and sizes of the model to choose from."""
    from tff_agg.experiment import terminal
    from tff_agg.experiment.run import client_rate, sizing
    from tff_agg.experiment.study import show

    if not isinstance(task, UserTask):
        return
    if tried := client_rate.tried(task):
        rows = [[f"{rate:g}", f"{change:+.3f}"] for rate, change in tried]
        header = ["client_learning_rate", "change of held-out clients' own loss"]
        print("\n" + show.render(show.Table(header, rows)))
        terminal.print_wrapped([
            f"Their local steps like --client_learning_rate="
            f"{client_rate.proposed(tried):g} best; this run has "
            f"{task.config.client_learning_rate:g}."
        ])  # fmt: skip
    if sizes := [size.line() for size in sizing.sizes(task)]:
        header = ["model", "parameters", "a round", "all rounds", "noise / signal"]
        print("\n" + show.render(show.Table(header, sizes)))


def _sized(task: Task, out: str, minutes: float) -> Task:
    """Returns the task in the shape that fits the time, or that its folder has."""
    from tff_agg.experiment import terminal
    from tff_agg.experiment.run import sizing

    names = ["rounds", "clients_per_round", "min_separation"]
    if isinstance(task, UserTask) and task.examples_field:
        names.append(task.examples_field)
    if (pathlib.Path(out) / "config.json").exists():
        saved = RunFolder(out).saved_config()
        settings = {name: saved[name] for name in names}
    else:
        choice = sizing.choose(task, minutes)
        terminal.print_wrapped([f"For {minutes:g} min, {choice.describe()}."])
        settings = choice.settings
    return task.with_config(dataclasses.replace(task.config, **settings))


def train(
    task_class: type[Task], options: TrainOptions, config: Any, *data: Any
) -> int:
    """Runs a training; `data` says what the data are prepared from, where a task can.

    The flags have been read: a bad one must not cost minutes of preparation.
    """
    from tff_agg.experiment import terminal

    out = options.out
    ready = False

    def how_to_go_on() -> str:
        again = "run the same command again to go on."
        if not ready:
            return f"The data are not prepared yet; {again}"
        done = RunFolder(out).rounds_done
        return f"{done} of {config.rounds} rounds are done and saved in {out}; {again}"

    with interruption.plain_ending(how_to_go_on):
        task = task_class(task_class.prepared(config, *data))
        if options.minutes is not None:
            task = _sized(task, out, options.minutes)
        # A task may have found its number of rounds.
        config = task.config
        if options.dry_run:
            return _dry_run(task, out)
        ready = True
        # Closed before an error is reported, which would stand above it otherwise.
        times = LaneTimes()
        with (
            contextlib.closing(terminal.TrainingBar(task_class.metrics)) as bar,
            Compiled(times) as compiled,
        ):
            run.run(task, out, bar, compiled=compiled)
    on_ray = isinstance(config, TrainConfig) and config.runtime == "ray"
    if on_ray and len(rows := times.table()) > 1:
        print(terminal.lane_table(rows))
    return 0


def command(task: type[Task]) -> Command:
    """Returns the command of a task: a flag for each field of its configuration."""
    data = () if task.Data is None else (task.Data,)
    return Command(functools.partial(train, task), (TrainOptions, task.Config, *data))
