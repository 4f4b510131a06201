"""How uncertain are predictions, from one run's checkpoints and from independent runs?

For every prediction on the validation sample: the 95 % confidence interval of the
highest mean score over N models, averaged over all predictions. The models are the
final ones of N runs, or N checkpoints of a single run. Prints both for several N with
their ratio, and writes widths.csv and widths.png.

A run's predictions say how far apart its checkpoints have to be to count as
independent; their intervals are widened by what they still fall short. With
--separation they are taken so far apart, and the intervals left as they are.

Where one run is given, there is nothing to compare: what its checkpoints say stands
alone, beside the standard deviation that they give the metrics (metrics.csv).
"""

import contextlib
import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from tff_agg import files
from tff_agg.experiment import error_bars, progress, runs
from tff_agg.experiment.commands import Command
from tff_agg.experiment.commands.of_runs import OfRuns
from tff_agg.experiment.study import show, widths
from tff_agg.experiment.study.widths import Compared
from tff_agg.experiment.task import SAMPLE_SEEDS, Task
from tff_agg.fields import described
from tff_agg.recycling import theory, uncertainty
from tff_agg.recycling.methods import Progress
from tff_agg.recycling.metrics import Metric
from tff_agg.recycling.series import IN_WORDS

# Mean, spread, scores and difference in double precision; the scores twice in single.
_BYTES_PER_SCORE = 4 * 8 + 2 * 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class UncertaintyConfig(OfRuns):
    """What to compare: runs that differ in their seeds, or checkpoints of one run."""

    out: str = described("results/uncertainty", "where table and picture go")
    sizes: tuple[int, ...] = described(
        (2, 3, 5, 10, 20, 50, 100),
        "the numbers of models N; those beyond the number of runs, or of checkpoints "
        "of a single run, are left out",
    )
    repeats: int = described(5, "how many times runs are drawn", at_least=1)
    split: str = described("heldout", "the data", SAMPLE_SEEDS)
    examples: int = described(1000, "the size of the sample", at_least=1)
    separation: int = described(
        0, "the rounds between two checkpoints; 0: as their predictions ask for"
    )
    burn_in: int = described(
        0, "the first round whose checkpoint may be used; 0 with separation=0: the "
        "middle of the run",
    )  # fmt: skip
    smoothness: float = described(
        0.0, "M, of a loss that is 1-strongly convex and M-smooth: says κ_1 and κ_2 of "
        "Theorem 5.1; 0: says nothing",
    )  # fmt: skip
    bias: float = described(0.01, "Δ of Theorem 5.1")
    level: float = described(0.95, "the confidence")
    seed: int = described(0, "seeds the drawing of runs")


class Spread(NamedTuple):
    """How much the noise makes a metric vary, by one run's checkpoints.

    Attributes:
      metric: The metric.
      last: Its value for the newest checkpoint.
      deviation: √S, the standard deviation of a single checkpoint's value.
      of_mean: √S of the mean of the checkpoints' values: with the weights p_i = 1/N.
      rounds: Of the checkpoints that it was estimated from.
    """

    metric: Metric
    last: float
    deviation: float
    of_mean: float
    rounds: tuple[int, ...]


class Findings(NamedTuple):
    """Interval widths, and for a single run the metrics' spreads.

    Attributes:
      runs: What the runs are called.
      apart: The rounds between two checkpoints; 0: as their predictions ask for.
      widths: By both estimators, as far as there are both.
      spreads: Of a single run.
      notes: What is to be said of the checkpoints, in sentences.
    """

    runs: str
    apart: int
    widths: uncertainty.Comparison
    spreads: tuple[Spread, ...]
    notes: tuple[str, ...] = ()

    @property
    def compared(self) -> Compared:
        """The widths as they are shown."""
        return {self.runs: {widths.in_words(self.apart): self.widths}}


def compare(
    task_class: type[Task],
    config: UncertaintyConfig,
    on_progress: Progress | None = None,
) -> Findings:
    """Compares both estimators over the runs of a configuration."""
    if len(kinds := runs.kinds(task_class, config.runs, config.data)) > 1:
        raise ValueError(
            f"runs must differ in their seeds only; there are {len(kinds)} kinds: "
            + "; ".join(f"{kind.name} ({kind.in_words()})" for kind in kinds)
        )
    opened = runs.open_runs(task_class, config.runs, config.data)
    task = opened[0].task
    rows = task.flat_sample(task.fixed_sample(config.split, config.examples))
    per_row = task.classes * task.positions_per_example * _BYTES_PER_SCORE
    count = max(1, config.memory_budget // per_row)
    chunks = [rows[i : i + count] for i in range(0, len(rows), count)]
    predict = task.predictor()

    @functools.cache
    def bars(run: int) -> error_bars.ErrorBars:
        if config.separation:
            rounds = _usable(opened[run], config)
            return error_bars.ErrorBars(tuple(rounds), apart=config.separation)
        burn_in = config.burn_in or None
        return error_bars.of_run(
            opened[run], chunks, config.series, burn_in, on_progress
        )

    single = len(opened) == 1
    most, unit = bars(0).most, f"checkpoints of {opened[0].folder}"
    if not single and len(opened) <= most:
        most, unit = len(opened), "runs given"
    sizes = [n for n in config.sizes if 2 <= n <= most]
    if not sizes:
        raise ValueError(f"sizes={config.sizes} has none from 2 to the {most} {unit}")

    def scores(handle: error_bars.Handle, chunk: object) -> np.ndarray:
        weights = opened[handle.run].load(handle.round, config.series)
        return predict(weights, chunk).scores

    both = error_bars.compare(
        [run.rounds(config.series)[-1] for run in opened],
        bars,
        scores,
        chunks,
        sizes,
        repeats=config.repeats,
        seed=config.seed,
        level=config.level,
        on_progress=on_progress,
    )
    notes = [bars(0).in_words(), f"Checkpoints of {IN_WORDS[config.series]}."]
    of_metrics: tuple[Spread, ...] = ()
    if single:
        of_metrics = spreads(opened[0], config, bars(0), max(sizes))
        notes[1:1] = theory_lines(opened[0], config, bars(0))
    return Findings(kinds[0].name, config.separation, both, of_metrics, tuple(notes))


def _usable(run: runs.Run, config: UncertaintyConfig) -> list[int]:
    """Returns the rounds `separation` apart, as far back as there are checkpoints."""
    have = run.rounds(config.series)
    wanted = uncertainty.checkpoint_rounds(
        have[-1], burn_in=config.burn_in, separation=config.separation
    )
    missing = set(wanted) - set(have)
    return [t for t in wanted if not missing or t > max(missing)]


def spreads(
    run: runs.Run,
    config: UncertaintyConfig,
    bars: error_bars.ErrorBars,
    count: int,
) -> tuple[Spread, ...]:
    """Estimates how much each metric varies from one run's checkpoints."""
    rounds = bars.checkpoints(count)
    score = run.scorer(config.split, config.examples)
    values = [score(run.load(t, config.series)) for t in rounds]
    widening = bars.widening(rounds)
    mean = np.full(count, 1 / count)

    def spread(metric: Metric) -> Spread:
        column = np.array([scores[metric.name] for scores in values])
        of_last, of_mean = (
            widening * float(np.sqrt(uncertainty.variance_estimate(column, weights)))
            for weights in (None, mean)
        )
        return Spread(metric, float(column[-1]), of_last, of_mean, tuple(rounds))

    return tuple(spread(metric) for metric in run.task.metrics)


def theory_lines(
    run: runs.Run, config: UncertaintyConfig, bars: error_bars.ErrorBars
) -> list[str]:
    """Says what Theorem 5.1 says of the run."""
    rounds, burn_in = bars.rounds[-1], max(1, bars.burn_in)
    counts = theory.samples(rounds, burn_in, bars.separation)
    lines = [
        f"From {rounds} rounds of one budget: {counts.checkpoints} checkpoints "
        f"(1 + (T − t_1)/γ, t_1 = {burn_in}, γ = {bars.separation}), or {counts.runs} "
        "independent runs (T/t_1)."
    ]
    if config.smoothness:
        start, end = run.task.initial_weights(), run.load(rounds, config.series)
        apart = sum(float(np.square(end[n] - start[n]).sum()) for n in end)
        times = theory.mixing(
            config.smoothness, run.task.num_parameters, apart**0.5, config.bias
        )
        lines.append(
            f"For a loss of smoothness {config.smoothness:g}, if it were 1-strongly "
            f"convex: κ_1 = {times.burn_in:.1f} and κ_2 = {times.separation:.1f} of "
            f"summed learning rates keep the bias to the order of {config.bias:g}."
        )
    return lines


def table(findings: Findings) -> str:
    """Formats the findings for the terminal."""
    repeated = len(findings.widths.checkpoints) > 1
    text = show.render(widths.table(findings.compared, digits=5, errors=repeated))
    for spread in findings.spreads:
        metric = spread.metric
        text += (
            f"\n{metric.label}: {metric.show(spread.last)} ± "
            f"{metric.show(spread.deviation)}, the mean of all ± "
            f"{metric.show(spread.of_mean)} (standard deviations, from "
            f"{len(spread.rounds)} checkpoints of the rounds {spread.rounds[0]} to "
            f"{spread.rounds[-1]})"
        )
    return "\n".join([text, *findings.notes])


def write(findings: Findings, out: str) -> None:
    """Writes widths.csv and widths.png, and metrics.csv for a single run."""
    folder = files.results_folder(out)
    show.save(widths.data(findings.compared), folder / "widths.csv")
    if findings.spreads:
        header = ["metric", "last", "standard_deviation", "of_mean"]
        header += ["checkpoints", "first_round", "last_round"]
        rows = [
            [s.metric.name, s.last, s.deviation, s.of_mean, len(s.rounds), *ends]
            for s in findings.spreads
            for ends in [(s.rounds[0], s.rounds[-1])]
        ]
        show.save(show.Table(header, rows), folder / "metrics.csv")
    widths.draw(findings.compared, folder / "widths.png")


def run(
    task_class: type[Task],
    config: UncertaintyConfig,
    on_progress: Progress | None = None,
) -> Findings:
    """Compares, writes the results and returns them."""
    findings = compare(task_class, config, on_progress)
    write(findings, config.out)
    return findings


def uncertain(task_class: type[Task], config: UncertaintyConfig) -> int:
    """Compares, and shows the results."""
    with contextlib.closing(progress.StageBar()) as bar:
        findings = run(task_class, config, bar)
    print(table(findings))
    print(f"Everything is in {config.out}")
    return 0


def command(task: type[Task]) -> Command:
    """Returns the command of a task."""
    return Command(functools.partial(uncertain, task), (UncertaintyConfig,))
