r"""What a run's shape is worth: rounds, users in a round, sentences of a user.

For each population and each budget of time, several shapes that cost the same by
`COSTS` are trained at one ε, all else as by default, and judged on validation data. The
shape that wins is trained at other ε, too. Prints what the rule of
`tff_agg.privacy.shapes` expected beside what was found, how well the two orders agree,
and what is lost by the rule's choice; draws the score over time, a line for each ε.
Noise seeds are known, so that the runs have the noise of ε and no guarantee. What was
trained already is not trained again.

    python -m benchmarks.shapes --out=results/shapes --processes=2
    python -m benchmarks.shapes --out=results/shapes --report_only
"""

import dataclasses
import functools
import itertools
import math
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks import populations
from benchmarks.populations import DIGITS, LISTS, MADE_UP, Population
from tff_agg.experiment import commands
from tff_agg.experiment.commands import Command, study
from tff_agg.experiment.study import figures, show
from tff_agg.experiment.study.declare import Arm, Line, Settings, Study, known
from tff_agg.experiment.study.options import Performing
from tff_agg.experiment.study.report import Report
from tff_agg.experiment.study.results import Curve, Results
from tff_agg.experiment.study.train import in_memory
from tff_agg.fields import described
from tff_agg.noise import cache
from tff_agg.privacy import shapes

CLIENTS = (50, 100, 200, 400, 800)
ROUNDS = (60, 2000)
_BEST = "best"


class Cost(NamedTuple):
    """What a run of a population costs on two quiet cores, in milliseconds.

    Attributes:
      round: Whoever takes part.
      user: For each of them, whatever they bring.
      example: For each example of each of them.
      examples: By the most that a user may bring, how many that is in the mean; empty
        where there is no such limit.
      share: Of the budgets, what is used.
    """

    round: float
    user: float
    example: float = 0.0
    examples: Mapping[int, float] = {}
    share: float = 1.0

    def rounds(self, seconds: float, clients: int, examples: int | None) -> int:
        """Returns how many rounds fit into a budget, to two digits."""
        mean = 0.0 if examples is None else self.examples[examples]
        users = clients * (self.user + self.example * mean)
        fitting = 1000 * self.share * seconds / (self.round + users)
        digits = 1 - math.floor(math.log10(max(fitting, 1)))
        return int(round(fitting, digits))


#: By population.
COSTS: Mapping[str, Cost] = {
    LISTS: Cost(10.0, 0.03, 0.1, {4: 4.0, 16: 14.8, 64: 31.4}),
    MADE_UP: Cost(10.0, 0.02, 0.055, {4: 4.0, 16: 14.1, 64: 23.4}),
    DIGITS: Cost(20.0, 0.3, share=0.5),
}
#: The clients' rate of each, so that shapes alone differ.
RATES: Mapping[str, float] = {LISTS: 1.0, MADE_UP: 1.0, DIGITS: 0.3}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShapesStudy(Performing):
    """What is trained."""

    out: str = described("results/shapes", "where data, scores, tables, pictures go")
    seeds: int = described(1, "seeds, from 0 on", at_least=1)
    populations: tuple[str, ...] = described((LISTS, MADE_UP), "which ones", (*COSTS,))
    budgets: tuple[float, ...] = described(
        (20.0, 80.0, 320.0), "seconds of a run, by the table of costs"
    )
    shapes: int = described(6, "shapes of a budget, at most", at_least=2)
    epsilons: tuple[float, ...] = described(
        (8.0, 2.0, math.inf),
        "the first for all shapes, the others for those that win; inf: no noise",
    )
    data_dir: str = described("../shared/data", "folder with rlists/, if it is there")


def of_budget(name: str, seconds: float, most: int) -> list[Settings]:
    """Returns shapes that cost so much, spread over those that there are."""
    cost, (least, largest) = COSTS[name], ROUNDS
    found: list[Settings] = []
    for examples, clients in itertools.product(cost.examples or (None,), CLIENTS):
        rounds = cost.rounds(seconds, clients, examples)
        if least <= rounds <= largest:
            settings: dict[str, Any] = {"rounds": rounds, "clients_per_round": clients}
            if examples is not None:
                settings["max_sentences"] = examples
            found.append(settings)
    if len(found) <= most:
        return found
    return [found[round(i * (len(found) - 1) / (most - 1))] for i in range(most)]


def declare(population: Population, options: ShapesStudy) -> Study:
    """Returns the study of a population: a row for each budget, a line for each ε."""
    first, *others = options.epsilons
    config = population.config(
        **_private(first),
        client_learning_rate=RATES[population.name],
        noise_cache=str(cache.default_folder()),
        # Side by side runs have a core each.
        lanes=1 if options.processes > 1 else None,
    )
    lines = []
    for seconds in options.budgets:
        grid = tuple(of_budget(population.name, seconds, options.shapes))
        row = f"{seconds:g} s"
        lines.append(Line(row, _BEST, Arm(f"{row}, ε {first:g}", config, grid)))
        for epsilon in others:
            arm = Arm(f"{row}, ε {epsilon:g}", config, (_private(epsilon),))
            lines.append(Line(row, f"{epsilon:g}", arm, like=(row, _BEST)))
    return Study(
        population.task,
        tuple(lines),
        seeds=tuple(range(options.seeds)),
        train=in_memory(),
        seeding=known(1000),
        final="heldout",
    )


def _private(epsilon: float) -> Settings:
    """Returns the settings of an ε."""
    if math.isinf(epsilon):
        return {"epsilon": None, "noise_multiplier": 0.0}
    return {"epsilon": epsilon}


# What it shows.


class Tried(NamedTuple):
    """A shape, what was expected of it and what was found.

    Attributes:
      settings: The shape.
      ratio: Noise over signal, see `tff_agg.privacy.Signal`.
      expected: By the rule, on a scale of its own; less is better.
      found: By the metric's name, the mean over seeds.
    """

    settings: Settings
    ratio: float
    expected: float
    found: Mapping[str, float]


def tried(population: Population, results: Results, line: Line) -> list[Tried]:
    """Returns the shapes of a budget, those that are trained."""
    names = [metric.name for metric in population.task.metrics]
    by_metric = {
        name: {
            tuple(settings.items()): fmean(values)
            for settings, _, values in results.candidates(line, name)
        }
        for name in names
    }
    found = []
    config: Any = line.arm.config
    task = population.task(dataclasses.replace(config, **line.arm.grid[0]))
    users = min(len(group.users) for group in task.population())
    for key in by_metric[names[0]]:
        settings = dict(key)
        ratio = 0.0
        if config.epsilon is not None:
            ratio = shapes.shape(
                users, settings["rounds"], settings["clients_per_round"],
                epsilon=config.epsilon, delta=config.delta,
                parameters=task.num_parameters, noise_cache=config.noise_cache,
            ).ratio  # fmt: skip
        expected = shapes.expected_excess(
            ratio, settings["rounds"], settings.get("max_sentences")
        )
        found.append(
            Tried(settings, ratio, expected, {n: by_metric[n][key] for n in names})
        )
    return found


def report(population: Population, options: ShapesStudy, results: Results) -> Report:
    """Returns a row for each shape, one for each budget, and the picture."""
    metrics = population.task.metrics[:3]
    first = metrics[0]
    rows: list[list[object]] = []
    budgets: list[list[object]] = []
    for line in results.study.lines:
        if line.name != _BEST or not (found := tried(population, results, line)):
            continue
        found.sort(key=lambda t: first.scale * t.found[first.name], reverse=True)
        if not first.higher_is_better:
            found.reverse()
        rule = min(found, key=lambda t: t.expected)
        for shape in found:
            rows.append([
                line.row, _words(shape.settings), f"{100 * shape.ratio:.2f} %",
                f"{shape.expected:.3f}",
                *(metric.show(shape.found[metric.name]) for metric in metrics),
                "the rule's" if shape is rule else "",
            ])  # fmt: skip
        lost = first.scale * (found[0].found[first.name] - rule.found[first.name])
        # The rule is about losses, where the task has one.
        judge = next((m for m in metrics if m.name == "loss"), first)
        sign = -1 if judge.higher_is_better else 1
        agree = rank_correlation(
            [t.expected for t in found], [sign * t.found[judge.name] for t in found]
        )
        at = [_at(results, line.row, name, first) for name in _others(options)]
        budgets.append(
            [line.row, len(found), _words(found[0].settings),
             first.show(found[0].found[first.name]), *at,
             f"{abs(lost):.2f}", "" if agree is None else f"{agree:.2f}"]
        )  # fmt: skip
    epsilons = [_epsilon(name) for name in _others(options)]
    title = f"{population.name}, ε = {options.epsilons[0]:g}, validation data"
    every = show.Table(
        ["budget", "rounds × users × examples", "noise / signal", "expected excess",
         *(metric.label for metric in metrics), ""],
        rows, f"{title}, the best first",
    )  # fmt: skip
    summary = show.Table(
        ["budget", "shapes", "the best", first.label, *epsilons,
         "lost by the rule's", "rank correlation"],
        budgets, title,
    )  # fmt: skip
    draw = functools.partial(_draw, {population.name: over_time(results, options)})
    return Report(
        {"shapes": every, "budgets": summary},
        {"shapes": every},
        {"shapes": functools.partial(draw, metric=first)},
    )


def _others(options: ShapesStudy) -> list[str]:
    return [f"{epsilon:g}" for epsilon in options.epsilons[1:]]


def _epsilon(name: str) -> str:
    return "no noise" if name == "inf" else f"ε = {name}"


def _at(results: Results, row: str, name: str, metric: Any) -> str:
    line = results.line(row, name)
    values = results.values(line, metric) if line in results.lines else []
    return metric.show(fmean(values)) if values else ""


def _words(settings: Settings) -> str:
    """Writes a shape.

    Example:
      >>> _words({'rounds': 190, 'clients_per_round': 100, 'max_sentences': 4})
      '190 × 100 × 4'
    """
    return " × ".join(str(value) for value in settings.values())


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Returns Spearman's; None where one of them is constant.

    Example:
      >>> rank_correlation([1, 2, 3, 4], [10, 30, 20, 40])
      0.8
    """
    from scipy import stats

    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return round(float(stats.spearmanr(first, second).statistic), 10)


def over_time(results: Results, options: ShapesStudy) -> dict[str, Curve]:
    """Returns for each ε the score of the best shape over the budgets, in minutes."""
    curves = {}
    for name in (_BEST, *_others(options)):
        minutes, values = [], []
        for seconds in options.budgets:
            line = results.line(f"{seconds:g} s", name)
            if line in results.lines and (found := results.values(line)):
                minutes.append(seconds / 60)
                values.append(found)
        if minutes:
            shown = f"{options.epsilons[0]:g}" if name == _BEST else name
            curves[_epsilon(shown)] = Curve(minutes, [*zip(*values, strict=True)])
    return curves


def _draw(
    panels: Mapping[str, Mapping[str, Curve]], path: pathlib.Path, metric: Any
) -> None:
    """Draws a panel for each population: the score over minutes, a line for each ε."""
    figure, axes = figures.new_figure(len(panels), share_y=False)
    for axis, (name, curves) in zip(axes, panels.items(), strict=True):
        for colour, (label, curve) in zip(
            figures.COLOURS[1:], curves.items(), strict=False
        ):
            shown = [metric.scale * fmean(v) for v in zip(*curve.values, strict=True)]
            axis.plot(curve.rounds, shown, "o-", color=colour, label=label)
        axis.set(xscale="log", xlabel="minutes of a run", title=name)
        minutes = sorted({x for curve in curves.values() for x in curve.rounds})
        axis.set_xticks(minutes, [f"{x:.2g}" for x in minutes])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"validation {metric.label}")
    figures.legends(figure, axes)
    figures.save(figure, path)


def run(options: ShapesStudy) -> int:
    """Trains what is left of every population, and prints the tables."""
    out = pathlib.Path(options.out)
    panels = {}
    metric = None
    for population in _here(options):
        folder = out / population.name.replace(" ", "_")
        own = dataclasses.replace(options, out=str(folder))
        study.run(
            functools.partial(declare, population),
            functools.partial(report, population),
            own,
        )
        if not options.dry_run:
            found = search_results(population, own)
            panels[population.name] = over_time(found, own)
            metric = population.task.metrics[0]
    if any(panels.values()):
        _draw(panels, out / "shapes.png", metric)
    return 0


def search_results(population: Population, options: ShapesStudy) -> Results:
    """Returns what is there of a population."""
    from tff_agg.experiment.study import search

    return search.results(declare(population, options), options.out)


def _here(options: ShapesStudy) -> Iterator[Population]:
    data = str(pathlib.Path(options.out) / "data")
    return populations.at_hand(options.populations, options.data_dir, data)


if __name__ == "__main__":
    commands.run(
        "python -m benchmarks.shapes",
        __doc__ or "",
        Command(run, (ShapesStudy,)),
        sys.argv[1:],
    )
