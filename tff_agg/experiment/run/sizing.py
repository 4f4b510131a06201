"""Chooses the shape of a run for the time that there is, and compares model sizes.

More of a user's own examples in a round cost time and no privacy; more users in a
round and more rounds leave less noise for what the updates can move the model. A round
of each number of examples is measured, and the rule of `privacy.shapes` compares what
fits.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tff_agg.experiment.build import Compiled, build
from tff_agg.experiment.config import TrainConfig
from tff_agg.experiment.run import estimate
from tff_agg.experiment.task import Task, UserTask
from tff_agg.noise import cache
from tff_agg.privacy import shapes, signal
from tff_agg.privacy.signal import Signal

#: How many examples a user may bring, where a task can choose.
EXAMPLES = (4, 16, 64)
#: What validation, saving and the first round leave for rounds.
SHARE = 0.8
_MEASURED_CLIENTS = 100


class Choice(NamedTuple):
    """What a run gets for its time.

    Attributes:
      shape: Rounds, users, how far apart.
      settings: The fields of the configuration that it decides.
      seconds_per_client: As it was measured.
    """

    shape: shapes.Shape
    settings: dict[str, Any]
    seconds_per_client: float

    def describe(self) -> str:
        """Says it in a line.

        Example:
          >>> shape = shapes.Shape(500, 200, 60, 9, 0.02, 59.0, 16)
          >>> Choice(shape, {'max_sentences': 16}, 0.012).describe()
          'about 59 s: --max_sentences=16, by 12.0 ms for a user in a round'
        """
        flags = " ".join(f"--{k}={v}" for k, v in self.settings.items() if v)
        return (
            f"about {estimate.duration(self.shape.seconds or 0)}: {flags}, by "
            f"{1000 * self.seconds_per_client:.1f} ms for a user in a round"
        )


def choose(
    task: Task,
    minutes: float,
    clock: Callable[[], float] = time.monotonic,
) -> Choice:
    """Measures rounds, and returns what is expected to be best within the time.

    Args:
      task: A task of users, whose configuration has an ε to keep.
      minutes: The time that there is.
      clock: Returns seconds.

    Raises:
      ValueError: The unit is not a user, there is no ε, or nothing fits.
    """
    config = task.config
    if not isinstance(task, UserTask) or not isinstance(config, TrainConfig):
        raise ValueError(
            f"minutes={minutes:g}: the unit of {task.package} is an example; its steps "
            "follow from epsilon and noise_multiplier"
        )
    if config.epsilon is None:
        raise ValueError(
            f"minutes={minutes:g} needs epsilon, for which shapes are compared"
        )
    options = list(_options(task, clock))
    least = min(len(group.users) for group in task.population())
    cached = config.noise_cache or str(cache.default_folder())
    # What noise a shape has does not depend on how long it takes.
    plain = shapes.grid(
        least,
        epsilon=config.epsilon,
        delta=config.delta,
        parameters=task.num_parameters,
        noise_cache=cached,
        clients=[n for n in shapes.CLIENTS if n <= least] or [least],
    )
    timed = {
        shape._replace(
            seconds=shape.rounds * shape.clients * seconds,
            examples=settings.get(task.examples_field),
        ): (settings, seconds)
        for (settings, seconds), shape in itertools.product(options, plain)
    }
    best = shapes.recommend(list(timed), 60 * SHARE * minutes)
    settings, seconds = timed[best]
    return Choice(best, best.settings | settings, seconds)


class Size(NamedTuple):
    """A size of the model, and what it costs.

    Attributes:
      settings: The fields of the configuration that decide it.
      parameters: How many the model then has.
      round: Seconds, as measured.
      run: Seconds for all rounds.
      ratio: Noise over signal, see `tff_agg.privacy.Signal`.
    """

    settings: Mapping[str, Any]
    parameters: int
    round: float
    run: float
    ratio: float

    def line(self) -> list[str]:
        """Returns it as a row of a table."""
        flags = " ".join(f"--{name}={value}" for name, value in self.settings.items())
        said = f"{100 * self.ratio:.2g} %"
        if self.ratio > signal.HOPELESS:
            said += ": too much to learn"
        return [
            flags, f"{self.parameters:,}", f"{self.round:.2f} s",
            estimate.duration(self.run), said,
        ]  # fmt: skip


def sizes(task: Task, clock: Callable[[], float] = time.monotonic) -> Iterator[Size]:
    """Measures two rounds of each size of the model that a task names.

    Like all measured rounds they are thrown away; no model is judged.

    Args:
      task: The task.
      clock: Returns seconds.
    """
    for settings in task.model_sizes if isinstance(task, UserTask) else ():
        sized = task.with_config(dataclasses.replace(task.config, **settings))
        with Compiled() as compiled:
            built = build(sized, compiled)
            with built.running():
                first, later = estimate.time_rounds(built, clock)
        rounds = built.plan.rounds
        found = Signal.of(built.plan, sized.num_parameters)
        yield Size(
            settings, sized.num_parameters, later, first + (rounds - 1) * later,
            found.ratio,
        )  # fmt: skip


def _options(
    task: UserTask, clock: Callable[[], float]
) -> Iterator[tuple[dict[str, Any], float]]:
    """Yields how many examples a user may bring, and what one costs in a round."""
    field = task.examples_field
    choices: list[dict[str, Any]] = [{field: n} for n in EXAMPLES] if field else [{}]
    clients = min(_MEASURED_CLIENTS, min(len(g.users) for g in task.population()))
    # Two rounds of their own, with noise that is thrown away.
    measured = {
        "rounds": 2, "clients_per_round": clients, "participation": None,
        "min_separation": None, "max_participations": None, "epoch_length": None,
    }  # fmt: skip
    with Compiled() as compiled:
        for settings in choices:
            config = dataclasses.replace(task.config, **measured, **settings)
            built = build(task.with_config(config), compiled)
            with built.running():
                _, later = estimate.time_rounds(built, clock)
            yield settings, later / clients
