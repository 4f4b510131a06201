"""The fair comparison: every arm chooses its clip norm and server rate for itself.

The paper's rows differ in more than the aggregation: at ε = 18.9 UTA_tr trains with
clip norm 0.3 and server rate 2, the baseline with 1.0 and 0.5. Here every arm (a
training aggregation, with tree noise or with BLT noise made for the participation) has
a grid of both, as large as the others', scored on validation data with seeds of its
own. It chooses twice: by the model that is broadcast and by the mean of the last
checkpoints (UTA_inf). The chosen points are then trained with the seeds of the tables
and tested, beside the paper's own settings.
"""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stackoverflow import paper_tables, table_jobs
from stackoverflow.paper_tables import ReproduceConfig, Run
from stackoverflow.task import StackOverflow, StackOverflowConfig
from tff_agg.experiment import in_memory
from tff_agg.recycling.metrics import Values

BROADCAST = in_memory.BROADCAST
FIRST_SEED = 100  # the tables have 0, 1, 2, …
METRIC = StackOverflow.metrics[0]
# Perplexity says what the loss says.
METRICS = StackOverflow.metrics[:3]
BASELINE, UTA, EMA = "baseline", "UTA_tr", "EMA_tr"


class Arm(NamedTuple):
    """A way of training.

    Attributes:
      settings: What it changes in the baseline's configuration.
      pace: How many times the baseline's its server rates are.
    """

    settings: Mapping[str, Any]
    pace: float = 1.0


def arms(*, shift: bool) -> dict[str, Arm]:
    """Returns the arms by name.

    A step from the aggregate of EMA_tr moves it by 1 − β of the step, and without
    momentum 0.95 a step goes a twentieth as far: at a rate as many times higher both
    move as fast as the baseline. UTA_tr has the baseline's rates. Its steps are
    shorter, too, but at twice the rate it diverges: beside momentum the delay of its
    mean makes it unstable.
    """
    k = 5 if shift else 3  # the paper's
    decay = 0.95
    # With a warm-up its first steps would be 18 times as long.
    moving = {"averager": "ema", "ema_decay": decay, "ema_warm_up": False}
    free = {"averager": "schedule_free", "step_from": "iterate"}
    return {
        BASELINE: Arm({"averager": "last"}),
        UTA: Arm({"averager": "uta", "k": k}),
        EMA: Arm(moving, round(1 / (1 - decay))),
        "schedule-free": Arm(free | {"server_momentum": 0.0, "gamma": 8.0}, 20.0),
    }


TREE, BLT, NO_NOISE = "tree", "BLT", "none"
NOISES: Mapping[str, str] = {TREE: "honaker", BLT: "blt", NO_NOISE: "honaker"}
# By privacy level, (clip norm, server rate of the baseline).
GRIDS: Mapping[str, Sequence[tuple[float, float]]] = {
    "inf": ((0.3, 2.0), (1.0, 0.5), (1.0, 1.0), (1.0, 2.0)),
    "18.9": ((0.3, 0.5), (0.3, 1.0), (0.3, 2.0), (1.0, 0.5)),
    "8.2": ((0.3, 0.25), (0.3, 0.5), (0.3, 1.0), (1.0, 0.25)),
}


class Point(NamedTuple):
    """An arm at one point of the grid.

    Attributes:
      arm: One of `arms`.
      noise: One of `NOISES`.
      clip: The clip norm.
      rate: The server's rate.
    """

    arm: str
    noise: str
    clip: float
    rate: float

    def __str__(self) -> str:
        return f"{self.arm}, {self.noise}, clip {self.clip:g}, rate {self.rate:g}"

    def config(
        self, base: StackOverflowConfig, seed: int, **changes: Any
    ) -> StackOverflowConfig:
        """Returns its configuration, for the rest like the baseline's."""
        return dataclasses.replace(
            base,
            **arms(shift=base.pds)[self.arm].settings,
            seed=seed,
            mechanism=NOISES[self.noise],
            clip_norm=self.clip,
            server_learning_rate=self.rate,
            **changes,
        )


CHOSEN = "chosen"
# Trainings of the paper; what everything is compared with comes first.
PUBLISHED = (BASELINE, UTA)


def noises(epsilon: str) -> tuple[str, ...]:
    """Returns the kinds of noise at a privacy level."""
    return (NO_NOISE,) if epsilon == "inf" else (TREE, BLT)


def published(config: ReproduceConfig, epsilon: str) -> list[Point]:
    """Returns the paper's own settings at a privacy level, from its flag files.

    None without noise: there the paper's rates are too high for a small population.
    """
    if epsilon == "inf":
        return []
    found = []
    for arm in PUBLISHED:
        own = Run(_table(config), epsilon, arm, 0).config("full", config.store)
        found.append(Point(arm, TREE, own.clip_norm, own.server_learning_rate))
    return found


def points(config: ReproduceConfig, epsilon: str) -> list[Point]:
    """Returns the grids of all arms."""
    every = itertools.product(_arms(config).items(), noises(epsilon), GRIDS[epsilon])
    return [
        Point(name, noise, clip, rate * arm.pace)
        for (name, arm), noise, (clip, rate) in every
    ]


def _arms(config: ReproduceConfig) -> dict[str, Arm]:
    return arms(shift=config.shift)


def _table(config: ReproduceConfig) -> str:
    return "pds" if config.shift else "stackoverflow"


def judging(config: ReproduceConfig, rounds: int) -> in_memory.Judging:
    """Returns how candidates are judged: as the tables' runs, by fewer methods."""
    found = paper_tables.judging(config.scale, shift=config.shift)
    judged = range(rounds, rounds - found.span - 1, -found.every)
    return in_memory.Judging(found.grid.uta, tuple(sorted(judged)))


def candidate(
    point: Point, base: StackOverflowConfig, seed: int = FIRST_SEED
) -> StackOverflow:
    """Returns the task of a candidate in the search."""
    # Of what is only searched nothing is released; known seeds make it repeatable.
    known = {"insecure_noise_seed": 1000 + seed, "test_examples": 0}
    return StackOverflow(point.config(base, seed, **known))


class Found(NamedTuple):
    """The result of a point in the search.

    Attributes:
      point: The point.
      values: By the model ('broadcast', 'UTA_inf 100'), the metrics on validation data.
      curve: (round, metrics) of what was broadcast, over the whole training.
    """

    point: Point
    values: Mapping[str, Values]
    curve: Sequence[tuple[int, Values]] = ()

    def best(self, *, recycled: bool) -> str:
        """Returns the best model: what is broadcast, or UTA_inf with the best k."""
        names = [name for name in self.values if name != in_memory.BROADCAST]
        return max(names, key=self.accuracy) if recycled else BROADCAST

    def accuracy(self, model: str) -> float:
        """Returns what a model is judged by."""
        return self.values[model][METRIC.name]


class Line(NamedTuple):
    """A line of the table: runs with all seeds, and what is used of them.

    Attributes:
      point: Arm, noise, clip norm and rate.
      why: Why these: 'as published', or what they were chosen for.
      model: What is judged: what is broadcast, or UTA_inf.
    """

    point: Point
    why: str
    model: str


# Of each line, the values of the metrics on test data for every seed.
Scores = Mapping[Line, Sequence[Mapping[str, float]]]
# Header and rows.
Table = tuple[list[str], list[list[str]]]


def accuracies(values: Sequence[Mapping[str, float]]) -> list[float]:
    """Returns what a line is judged by, for every seed."""
    return [one[METRIC.name] for one in values]


def search(config: ReproduceConfig, epsilon: str) -> list[Found]:
    """Scores the whole grid on validation data; resumes where it was stopped."""
    job = functools.partial(score, config.anywhere(), epsilon)
    return table_jobs.run_all(
        config,
        job,
        points(config, epsilon),
        f"search, ε = {epsilon}",
        lambda point: _scored(config, epsilon, point, FIRST_SEED, "heldout"),
    )


def _scored(
    config: ReproduceConfig, epsilon: str, point: Point, seed: int, split: str
) -> bool:
    task = candidate(point, base_config(config, epsilon), seed)
    return in_memory.score_file(task, _scores(config), split).exists()


def _scores(config: ReproduceConfig) -> pathlib.Path:
    return config.results / "scores"


def score(config: ReproduceConfig, epsilon: str, point: Point) -> Found:
    """Scores one point on validation data, or reads its scores."""
    return Found(point, *_score(config, epsilon, point, FIRST_SEED, "heldout"))


def _score(
    config: ReproduceConfig, epsilon: str, point: Point, seed: int, split: str
) -> in_memory.Scored:
    """Trains and scores, or reads the scores; nothing else is kept."""
    base = base_config(config, epsilon)
    table_jobs.set_up(config, base.lanes)
    from tff_agg.experiment.build import Compiled

    task = candidate(point, base, seed)
    how = dataclasses.replace(judging(config, base.rounds), split=split)
    with Compiled() as cache:
        models = functools.partial(in_memory.train, task, cache)
        return in_memory.remembered(task, how, _scores(config), models)


def lines_of(found: Sequence[Found], paper: Sequence[Point]) -> list[Line]:
    """Returns the lines of the table: the paper's settings, then the chosen ones.

    Every arm with its noise chooses twice: by what it broadcasts and by UTA_inf. The
    paper's settings are judged by what they broadcast; UTA_inf's k was not searched
    for them where they are not in the grid.
    """
    lines = [Line(point, "as published", BROADCAST) for point in paper]
    for arm, noise in dict.fromkeys(one.point[:2] for one in found):
        own = [one for one in found if one.point[:2] == (arm, noise)]
        for recycled in (False, True):
            best = max(own, key=lambda one: one.accuracy(one.best(recycled=recycled)))
            model = best.best(recycled=recycled)
            lines.append(Line(best.point, CHOSEN, model))
    return list(dict.fromkeys(lines))


def test(
    config: ReproduceConfig, epsilon: str, job: tuple[Point, int]
) -> in_memory.Scored:
    """Trains a point with a seed of the tables and scores it on test data, once."""
    point, seed = job
    return _score(config, epsilon, point, seed, "test")


def base_config(config: ReproduceConfig, epsilon: str) -> StackOverflowConfig:
    """Returns what all arms have in common: the baseline's configuration."""
    run = Run(_table(config), epsilon, BASELINE, 0)
    return run.config(config.scale, config.store)


def jobs(config: ReproduceConfig) -> list[tuple[str, StackOverflow, int]]:
    """Lists the search: (name, task, rounds done). What it chooses is trained later."""
    found = []
    for epsilon in config.epsilons:
        for point in points(config, epsilon):
            task = candidate(point, base_config(config, epsilon))
            scored = _scored(config, epsilon, point, FIRST_SEED, "heldout")
            done = task.config.rounds if scored else 0
            found.append((f"search {point} at ε = {epsilon}", task, done))
    return found


def tests_of(
    config: ReproduceConfig, epsilon: str, lines: Sequence[Line]
) -> dict[Point, list[in_memory.Scored]]:
    """Tests the points of the lines, each with every seed."""
    every = list(dict.fromkeys(line.point for line in lines))
    found = table_jobs.run_all(
        config,
        functools.partial(test, config.anywhere(), epsilon),
        list(itertools.product(every, range(config.seeds))),
        f"test, ε = {epsilon}",
        lambda job: _scored(config, epsilon, *job, "test"),
    )
    of_point = iter(found)
    return {point: list(itertools.islice(of_point, config.seeds)) for point in every}
