"""The fair comparison: every arm chooses its clip norm and server rate for itself.

The paper's rows differ in more than the aggregation: at ε = 18.9 UTA_tr trains with
clip norm 0.3 and server rate 2, the baseline with 1.0 and 0.5. Here every arm (a
training aggregation, with tree noise or with BLT noise made for the participation) has
the same grid of both, scored on validation data with seeds of its own. It chooses
twice: by the model that is broadcast and by the mean of the last checkpoints (UTA_inf).
The chosen points are then trained with the seeds of the tables and tested, beside the
paper's own settings.
"""

import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stackoverflow.paper_tables import SCALES, ReproduceConfig, Run
from stackoverflow.task import StackOverflow, StackOverflowConfig
from tff_agg.experiment import in_memory, run_folder

FIRST_SEED = 100  # the tables have 0, 1, 2, …
METRIC = StackOverflow.metrics[0]
BASELINE = "baseline"
ARMS: Mapping[str, dict[str, Any]] = {
    BASELINE: {"averager": "last"},
    "UTA_tr": {"averager": "uta", "k": 3},
    "EMA_tr": {"averager": "ema", "ema_decay": 0.95},
    "schedule-free": {
        "averager": "schedule_free",
        "step_from": "iterate",
        "server_momentum": 0.0,
        "gamma": 8.0,
    },
}
NOISES: Mapping[str, str] = {"tree": "honaker", "BLT": "blt"}
# (clip norm, server rate beside momentum 0.95). The paper's points are among them.
GRID = ((0.3, 0.5), (0.3, 2.0), (1.0, 0.5))


class Point(NamedTuple):
    """An arm at one point of the grid.

    Attributes:
      arm: One of `ARMS`.
      noise: One of `NOISES`.
      clip: The clip norm.
      rate: The server's rate beside momentum; without, as many times more as momentum
        would make of it.
    """

    arm: str
    noise: str
    clip: float
    rate: float

    @property
    def kind(self) -> str:
        """Its name in folders."""
        return f"fair_{self.arm}_{self.noise}_clip{self.clip:g}_rate{self.rate:g}"

    def config(
        self, base: StackOverflowConfig, seed: int, **changes: Any
    ) -> StackOverflowConfig:
        """Returns its configuration, for the rest like the baseline's."""
        arm = ARMS[self.arm]
        momentum = arm.get("server_momentum", base.server_momentum)
        return dataclasses.replace(
            base,
            **arm,
            seed=seed,
            mechanism=NOISES[self.noise],
            clip_norm=self.clip,
            server_learning_rate=self.rate
            * round((1 - momentum) / (1 - base.server_momentum)),
            **changes,
        )


def points() -> list[Point]:
    """Returns the grid of all arms."""
    every = itertools.product(ARMS, NOISES, GRID)
    return [Point(arm, noise, *both) for arm, noise, both in every]


def judging(scale: str, rounds: int) -> in_memory.Judging:
    """Returns how candidates are judged: as the tables' runs, by fewer methods."""
    found = SCALES[scale].judging
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
    """What a point has come to in the search.

    Attributes:
      point: The point.
      broadcast: Its value by the model that is broadcast.
      recycled: Its value by UTA_inf, with the best k.
    """

    point: Point
    broadcast: float
    recycled: float


def search(
    base: StackOverflowConfig, folder: pathlib.Path, scale: str, seeds: int = 1
) -> list[Found]:
    """Scores the whole grid on validation data; goes on where it was stopped."""
    from tff_agg.experiment import process_cache

    how = judging(scale, base.rounds)
    found = []
    for point in points():
        scores = []
        with contextlib.closing(process_cache.ProcessCache()) as cache:
            for seed in range(FIRST_SEED, FIRST_SEED + seeds):
                task = candidate(point, base, seed)
                scores.append(in_memory.remembered(task, how, folder, cache).values)
        means = {
            model: sum(one[model][METRIC.name] for one in scores) / len(scores)
            for model in scores[0]
        }
        broadcast = means.pop(in_memory.BROADCAST)
        found.append(Found(point, broadcast, max(means.values())))
    return found


def chosen(found: Sequence[Found]) -> dict[tuple[str, str, str], Point]:
    """Returns the best point by (arm, noise, what it was chosen for)."""
    best: dict[tuple[str, str, str], Found] = {}
    for one in found:
        for model in ("broadcast", "recycled"):
            key = (one.point.arm, one.point.noise, model)
            if key not in best or getattr(one, model) > getattr(best[key], model):
                best[key] = one
    return {key: one.point for key, one in best.items()}


class Line(NamedTuple):
    """A line of the table: runs with all seeds, and what is used of them.

    Attributes:
      point: Arm, noise, clip norm and rate.
      why: Why these: 'as published', or what they were chosen for.
      recycled: Whether UTA_inf is judged, not the last model that was broadcast.
    """

    point: Point
    why: str
    recycled: bool


# The paper's recipe: what everything is compared with, first.
PAPER = (
    Point(BASELINE, "tree", 1.0, 0.5),
    Point("UTA_tr", "tree", 0.3, 2.0),
    Point("EMA_tr", "tree", 1.0, 0.5),
)


def lines_of(found: Sequence[Found]) -> list[Line]:
    """Returns the lines of the table: the paper's settings, then the chosen ones."""
    lines = [
        Line(point, "as published", recycled)
        for point in PAPER
        for recycled in (False, True)
    ]
    for (_, _, model), point in chosen(found).items():
        lines.append(Line(point, f"chosen by {model}", model == "recycled"))
    return lines


def rows_of(
    lines: Sequence[Line], tests: Mapping[Point, Any]
) -> tuple[list[str], list[list[str]]]:
    """Returns header and rows of the table; gains are over the first line."""
    from tff_agg.experiment import result_tables, seed_statistics

    header = ["arm", "noise", "clip", "rate", "settings", "model"]
    header += [f"test {METRIC.label}", "gain", "clear of the spread"]
    rows, first = [], None
    for line in lines:
        method = "UTA_inf" if line.recycled else "last"
        values = [one[METRIC.name] for one in tests[line.point].tests[method]]
        first = first or values
        gain = seed_statistics.gain(values, first)
        model = str(tests[line.point].chosen[method]) if line.recycled else "broadcast"
        cells = [line.point.arm, line.point.noise, line.point.clip, line.point.rate]
        verdict = {True: "yes", False: "no", None: "too few seeds"}[gain.clear]
        rows.append(
            [
                *map(str, cells),
                line.why,
                model,
                result_tables.shown(values, METRIC),
                "" if values is first else f"{100 * gain.relative:+.1f} %",
                "" if values is first else verdict,
            ]
        )
    return header, rows


def folder_of(point: Point, seed: int, epsilon: str) -> str:
    """Returns the name of a run's folder; the paper's settings are the table's runs."""
    if point in PAPER:
        return Run("stackoverflow", epsilon, point.arm, seed).folder
    return f"{point.kind}_eps{epsilon}-seed{seed}"


def levels(config: ReproduceConfig) -> list[str]:
    """Returns the privacy levels to compare at: without noise there is no choice."""
    return [epsilon for epsilon in config.epsilons if epsilon != "inf"]


def base_config(config: ReproduceConfig, epsilon: str) -> StackOverflowConfig:
    """Returns what all arms have in common: the baseline's configuration."""
    run = Run("stackoverflow", epsilon, BASELINE, 0)
    return run.config(config.scale, config.store)


def jobs(config: ReproduceConfig) -> list[tuple[str, StackOverflow, int]]:
    """Lists the search: (name, task, rounds done). What it chooses is trained later."""
    found = []
    for epsilon, point in itertools.product(levels(config), points()):
        task = candidate(point, base_config(config, epsilon))
        scored = in_memory.score_file(task, config.results / "search").exists()
        name = f"search {point.kind} eps{epsilon}"
        found.append((name, task, task.config.rounds if scored else 0))
    return found


def run(config: ReproduceConfig, epsilon: str) -> tuple[list[str], list[list[str]]]:
    """Searches, trains what was chosen, tests it; writes the table and returns it."""
    from tff_agg import files
    from tff_agg.experiment import process_cache, recycled_runs, result_tables
    from tff_agg.experiment.drivers import train

    base = base_config(config, epsilon)
    results = run_folder.results_folder(str(config.results))
    found = search(base, results / "search", config.scale)
    header = ["arm", "noise", "clip", "rate", "broadcast %", "UTA_inf %"]
    rows = [
        [*map(str, one.point), METRIC.show(one.broadcast), METRIC.show(one.recycled)]
        for one in found
    ]
    text = result_tables.markdown(header, rows)
    files.write_text(results / f"search_eps{epsilon}.md", text)
    how = SCALES[config.scale].judging
    averages = dataclasses.replace(how.grid, outputs=(), ema=())
    how = dataclasses.replace(how, grid=averages)
    lines, tests = lines_of(found), {}
    for point in dict.fromkeys(line.point for line in lines):
        folders = []
        with contextlib.closing(process_cache.ProcessCache()) as cache:
            for seed in range(config.seeds):
                name = folder_of(point, seed, epsilon)
                folders.append(pathlib.Path(config.out) / "runs" / name)
                task = StackOverflow(point.config(base, seed))
                train.run(task, folders[-1], None, cache=cache)
        tests[point] = recycled_runs.recycle(
            StackOverflow, folders, results / f"{point.kind}_eps{epsilon}", how
        )
    table = rows_of(lines, tests)
    text = result_tables.markdown(*table)
    files.write_text(results / f"table_eps{epsilon}.md", text)
    return table
