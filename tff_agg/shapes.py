"""Prints which shapes a run can have, what noise they leave, and which is best.

Rounds, users in a round, how often one of them comes: at one ε they decide how much
noise is in the model, against all that the updates can move it, and how long it takes.

Example:
  tff-agg shapes --population=12507 --epsilon=8 --parameters=64388 \
      --seconds_per_client=0.002 --minutes=30
"""

import dataclasses

from tff_agg import checks, fields
from tff_agg.experiment import commands
from tff_agg.fields import described
from tff_agg.noise import cache
from tff_agg.privacy import shapes, signal


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShapesOptions:
    """What is known of users, model and machine."""

    population: int = described(0, "how many users there are to train on")
    epsilon: float = described(8.0, "ε to keep")
    delta: float = described(1e-6, "δ of the guarantee")
    parameters: int = described(100_000, "how many numbers the model has", at_least=1)
    seconds_per_client: float | None = described(
        None, "what one user costs in a round, as `train --dry_run` measures it"
    )
    minutes: float | None = described(
        None, "the time that there is; not given: that of 1,000 rounds of 100"
    )
    noise_cache: str | None = described(
        str(cache.default_folder()), "folder where optimised mechanisms are kept",
        role="place",
    )  # fmt: skip

    def __post_init__(self) -> None:
        fields.check(self)
        checks.delta(self.delta)
        checks.epsilon(self.epsilon)
        if self.population < 2:
            raise ValueError(
                f"population={self.population} must say how many users there are"
            )
        if self.minutes is not None and self.seconds_per_client is None:
            raise ValueError(
                f"minutes={self.minutes} needs seconds_per_client, without which no "
                "shape knows its time"
            )


def answer(options: ShapesOptions) -> str:
    """Returns the grid as a table, and the flags of the one that is recommended."""
    from tff_agg.experiment.study import show

    found = shapes.grid(
        options.population,
        epsilon=options.epsilon,
        delta=options.delta,
        parameters=options.parameters,
        seconds_per_client=options.seconds_per_client,
        noise_cache=options.noise_cache,
    )
    seconds = None if options.minutes is None else 60 * options.minutes
    best = shapes.recommend(found, seconds)
    timed = options.seconds_per_client is not None
    header = ["rounds", "users a round", "apart", "times", "noise/signal %"]
    rows = [
        [s.rounds, s.clients, s.separation, s.participations, f"{100 * s.ratio:.2f}"]
        + ([f"{(s.seconds or 0) / 60:.1f}"] if timed else [])
        + [_verdict(s, best)]
        for s in found
    ]
    header += [*(["minutes"] if timed else []), ""]
    text = show.render(show.Table(header, rows))
    chosen = " ".join(
        f"--{name}={value}" for name, value in best.settings.items() if value
    )
    return f"{text}\nFlags: {chosen} --mechanism=blt --server_momentum=0"


def _verdict(shape: shapes.Shape, best: shapes.Shape) -> str:
    if shape == best:
        return "recommended"
    return "will not learn" if shape.ratio > signal.HOPELESS else ""


def run(options: ShapesOptions) -> int:
    """Prints the shapes."""
    print(answer(options))
    return 0


def command(task: object = None) -> commands.Command:
    """Returns the command, which needs no task."""
    del task
    return commands.Command(run, (ShapesOptions,), tensorflow=False)
