"""What a run would be: its plan, its users, its disk and its time; nothing is written.

Two rounds are computed for their time, from an initial state of their own: with a noise
seed of its own, which is thrown away with the state. Nothing that they compute is shown
or kept, only how long they took. The run's own seed is drawn when the run begins.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tff_agg import privacy
from tff_agg.experiment.build import Build, Compiled, build, needs
from tff_agg.experiment.run import recording
from tff_agg.experiment.run.run_folder import RunFolder
from tff_agg.experiment.task import Task


class Estimate(NamedTuple):
    """What is to be expected of a run.

    Attributes:
      plan: The privacy plan.
      members: Who takes part in which round.
      disk: What it takes on the disk.
      done: How many rounds the folder has behind it.
      first_round: The seconds of a first round, with compilation.
      later_round: The seconds of a round after it.
      validation: The seconds of one validation, θ and θ^AGG where they differ.
      validations: How many are left.
    """

    plan: privacy.Plan
    members: privacy.Sampler
    disk: needs.Disk
    done: int
    first_round: float
    later_round: float
    validation: float
    validations: int

    @property
    def seconds(self) -> float:
        """The time of what is left; saving and the test are not in it."""
        return self.seconds_for(self.plan.rounds - self.done, self.validations)

    def seconds_for(self, rounds: int, validations: int) -> float:
        """The time of so many rounds and validations of a run like this one."""
        if not rounds:
            return 0.0
        trained = self.first_round + (rounds - 1) * self.later_round
        return trained + validations * self.validation

    def lines(self) -> list[list[str]]:
        """Returns it as rows of a table."""
        short = {shortage.round for shortage in self.members.shortages}
        left = self.plan.rounds - self.done
        # In half an hour, all rounds together.
        users = int(1800 / max(self.later_round, 1e-9) * self.plan.cohort_size)
        return [
            ["rounds", f"{left:,} to do, {self.done:,} done"],
            ["clients", self.members.describe()],
            ["rounds with too few users", f"{len(short):,}"],
            ["disk", self.disk.describe()],
            [
                "time",
                f"{duration(self.seconds)}: a round {self.later_round:.2f} s (the "
                f"first {self.first_round:.1f} s, with compilation), "
                f"{self.validations} validations {self.validation:.2f} s each; saving "
                "and test not counted",
            ],
            [
                "in 30 min",
                f"{users:,} users, in all rounds together; --minutes=30 chooses how "
                "many rounds, and how much of each user's data",
            ],
        ]


def estimate(
    task: Task,
    out: str,
    clock: Callable[[], float] = time.monotonic,
    on_plan: Callable[[privacy.Plan], None] | None = None,
) -> Estimate:
    """Checks everything that a run would check, and measures two rounds.

    Args:
      task: Bound to its configuration.
      out: The run's folder; read if it is there.
      clock: Returns seconds.
      on_plan: Receives the plan before the users are looked at, who may be too few.

    Raises:
      IdentityError: The folder belongs to another configuration.
      sampler.ExhaustedError: The users do not suffice.
    """
    config = task.config
    with Compiled() as compiled:
        built = build(task, compiled)
        if on_plan is not None:
            on_plan(built.plan)
        members = built.sampler
        folder = RunFolder(out)
        folder.refuse_other(task)
        done = folder.rounds_done
        with built.running():
            first, later = time_rounds(built, clock)
            disk = needs.disk(built, out)
            validation = _time_validation(task, clock) * disk.models
    every = config.evaluate_every
    wanted = {*range(every, config.rounds + 1, every), config.rounds}
    left = [number for number in wanted if number > done]
    return Estimate(
        built.plan, members, disk, done, first, later, validation, len(left)
    )


def time_rounds(built: Build[Any], clock: Callable[[], float]) -> tuple[float, float]:
    """Returns the seconds of a first round and of one after it."""
    # A known seed is the run's own: rounds that are thrown away get another.
    state = built.initialize(throw_away=True)
    clients_of = built.clients_of
    seconds = []
    for number in (0, min(1, built.plan.rounds - 1)):
        begin = clock()
        clients = clients_of(number, state)
        state = built.process.next(state, list(clients.data)).state
        seconds.append(clock() - begin)
    return seconds[0], seconds[1]


def _time_validation(task: Task, clock: Callable[[], float]) -> float:
    """Returns the seconds of a validation after the first, which compiles."""
    wanted = task.config.validation_examples
    validate = recording.SampleScorer(task, "heldout", wanted)
    weights = task.initial_weights()
    validate(weights)
    begin = clock()
    validate(weights)
    return clock() - begin


def duration(seconds: float) -> str:
    """Writes a time in two units.

    Example:
      >>> duration(59.4), duration(3700), duration(200000)
      ('59 s', '1 h 1 min', '2 d 7 h')
    """
    whole = round(seconds)
    for (unit, size), (below, step) in (
        (("d", 86400), ("h", 3600)),
        (("h", 3600), ("min", 60)),
        (("min", 60), ("s", 1)),
    ):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // step} {below}"
    return f"{whole} s"
