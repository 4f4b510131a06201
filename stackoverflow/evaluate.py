"""Evaluates every way to use a run's checkpoints at inference.

  python -m stackoverflow.evaluate --runs=runs/seed0,runs/seed1 --out=results/evaluate \
      --uta_k=3,10,50 --output_k=3,10,50 --ema=0.9,0.99 --span=100 --every=10

Prints a table for the last round, writes scores.csv and, over rounds, accuracy.png:
the mean over runs that differ in their seeds only, with a band of one standard
deviation. For parameters chosen on validation data see `stackoverflow.tune`.
"""

import csv
import dataclasses
import functools
import io
import pathlib
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from absl import app, flags

from tff_agg.checkpoints import blobs
from tff_agg.experiment import runs as recycling
from tff_agg.recycling import inference

FLAGS = flags.FLAGS

COLUMNS = (
    "run",
    "kind",
    "seed",
    "split",
    "method",
    "parameter",
    "round",
    "correct",
    "total",
    "accuracy",
)
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """What to evaluate.

    Attributes:
      runs: The run folders.
      out: Where table and picture go.
      grid: The methods and their parameters.
      split: 'heldout' or 'test'.
      sentences: The size of the sample.
      name: Which checkpoints: 'iterate' (θ_t) or 'aggregate' (θ^AGG_t).
      span: How many of the last rounds the curve covers.
      every: The rounds between two points of the curve.
      memory_budget: In bytes, for OPA and OMV.
      store: The token store, if it is not where the runs found it.
    """

    runs: tuple[str, ...]
    out: str
    grid: inference.Grid = dataclasses.field(default_factory=inference.Grid)
    split: str = "heldout"
    sentences: int = 10_000
    name: str = "iterate"
    span: int = 0
    every: int = 10
    memory_budget: int = 1 << 30
    store: str | None = None

    def __post_init__(self):
        if self.every < 1 or self.span < 0 or self.sentences < 1:
            raise ValueError(
                f"every={self.every} and sentences={self.sentences} must be at least 1 "
                f"and span={self.span} must not be negative"
            )


def curve_rounds(members: Sequence[int], span: int, every: int) -> list[int]:
    """Returns the rounds to evaluate: the last one and those before it in the span."""
    last = members[-1]
    wanted = range(last, max(last - span, members[0]) - 1, -every)
    return sorted(set(wanted) & set(members))


def evaluate_runs(
    config: EvaluateConfig,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> list[Row]:
    """Evaluates all runs and returns one row for each score."""
    runs = recycling.open_runs(config.runs, config.store)
    sizes = runs[0].sizes
    rows: list[Row] = []
    for kind, members in recycling.kinds(runs).items():
        for run in members:
            rounds = run.rounds(config.name)
            examples = run.rows(config.split, config.sentences)
            scores = inference.evaluate(
                run.loader(config.name),
                rounds,
                curve_rounds(rounds, config.span, config.every),
                config.grid,
                score=recycling.scorer(sizes, examples),
                predict=recycling.predictor(sizes),
                examples=examples,
                classes=sizes.num_ids,
                positions_per_example=sizes.max_tokens,
                memory_budget=config.memory_budget,
                on_progress=on_progress,
            )
            common = {
                "run": str(run.folder),
                "kind": kind,
                "seed": run.config.get("seed"),
                "split": config.split,
            }
            rows += [
                {**common, **score._asdict(), "accuracy": score.accuracy}
                for score in scores
            ]
    return rows


def summarise(rows: Iterable[Row]) -> list[Row]:
    """Returns mean and standard deviation over runs at each kind's last round."""
    rows = list(rows)
    last: dict[str, int] = {}
    for row in rows:
        last[row["run"]] = max(last.get(row["run"], 0), row["round"])
    grouped: dict[tuple, list[float]] = {}
    for row in rows:
        if row["round"] == last[row["run"]]:
            key = (row["kind"], row["method"], row["parameter"])
            grouped.setdefault(key, []).append(row["accuracy"])
    return [
        {
            "kind": kind,
            "method": method,
            "parameter": parameter,
            "runs": len(values),
            "mean": statistics.fmean(values),
            "spread": statistics.stdev(values) if len(values) > 1 else 0.0,
        }
        for (kind, method, parameter), values in grouped.items()
    ]


def table(summary: Sequence[Row]) -> str:
    """Formats the summary for the terminal."""
    from tff_agg.experiment import terminal

    several = len({row["kind"] for row in summary}) > 1
    header = (["kind"] if several else []) + [
        "method",
        "parameter",
        "accuracy %",
        "± over runs",
        "runs",
    ]
    lines = []
    for row in summary:
        parameter = "" if row["parameter"] is None else f"{row['parameter']:g}"
        lines.append(
            ([row["kind"]] if several else [])
            + [
                row["method"],
                parameter,
                terminal.percent(row["mean"], 3),
                terminal.percent(row["spread"], 3),
                row["runs"],
            ]
        )
    return terminal.table(header, lines)


def shown_parameters(summary: Sequence[Row], split: str) -> dict[tuple[str, str], Any]:
    """Chooses the parameter that the picture shows, by (kind, method).

    On validation data it is the best; test data must not be used to choose, so there
    it is the first that was asked for.
    """
    shown: dict[tuple[str, str], Row] = {}
    for row in summary:
        key = (row["kind"], row["method"])
        better = key not in shown or (
            split != "test" and row["mean"] > shown[key]["mean"]
        )
        if better:
            shown[key] = row
    return {key: row["parameter"] for key, row in shown.items()}


def draw(rows: Sequence[Row], split: str, path: pathlib.Path) -> None:
    """Draws accuracy over rounds, a panel for each kind of run."""
    from tff_agg.experiment import figures

    shown = shown_parameters(summarise(rows), split)
    panels: dict[str, dict[str, figures.Curve]] = {}
    for (kind, method), parameter in shown.items():
        by_run: dict[str, dict[int, float]] = {}
        for row in rows:
            if (row["kind"], row["method"], row["parameter"]) == (
                kind,
                method,
                parameter,
            ):
                points = by_run.setdefault(row["run"], {})
                points[row["round"]] = row["accuracy"]
        common = sorted(set.intersection(*(set(p) for p in by_run.values())))
        if not common:
            continue
        label = method if parameter is None else f"{method} ({parameter:g})"
        panels.setdefault(kind, {})[label] = figures.Curve(
            common, [[points[t] for t in common] for points in by_run.values()]
        )
    figures.accuracy_curves(path, panels, y_label=f"{split} accuracy (%)")


def write_csv(rows: Sequence[Row], path: pathlib.Path) -> None:
    """Writes the scores, as a whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        none_as_empty = {k: "" if v is None else v for k, v in row.items()}
        writer.writerow(none_as_empty)
    blobs.write_file(path, text.getvalue().encode())


def run(
    config: EvaluateConfig,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> list[Row]:
    """Evaluates, writes scores.csv and accuracy.png, and returns the summary."""
    rows = evaluate_runs(config, on_progress)
    out = pathlib.Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    write_csv(rows, out / "scores.csv")
    draw(rows, config.split, out / "accuracy.png")
    return summarise(rows)


class ProgressBars:
    """One tqdm bar for each stage."""

    def __init__(self):
        self._bars: dict[str, tuple] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Moves the stage's bar on; a new one where the stage starts again."""
        import tqdm

        bar, before = self._bars.get(stage, (None, 0))
        if bar is None or done <= before:
            if bar is not None:
                bar.close()
            bar, before = tqdm.tqdm(total=total, desc=stage, mininterval=0.5), 0
        bar.update(done - before)
        self._bars[stage] = (bar, done)
        if done >= total:
            bar.close()


def define_grid_flags(flag_values: flags.FlagValues = FLAGS) -> None:
    """Defines the flags that make an `inference.Grid`."""
    define = functools.partial(define_flag, flag_values)
    define("list", "uta_k", [], "UTA_inf: how many checkpoints to average")
    define("list", "output_k", [], "OPA and OMV: how many checkpoints to combine")
    define("list", "ema", [], "EMA_inf: the values of β")
    define("list", "pda", [], "PDA: the values of γ")
    define(
        "enum",
        "ema_convention",
        "decay",
        ["decay", "weight"],
        "what β is the weight of: the old average (decay) or the newest checkpoint",
    )
    define("bool", "ema_warm_up", True, "forget the first checkpoints sooner")


def grid_from_flags(values: flags.FlagValues = FLAGS) -> inference.Grid:
    """Makes the grid that the flags describe."""
    return inference.Grid(
        uta=tuple(int(k) for k in values.uta_k),
        outputs=tuple(int(k) for k in values.output_k),
        ema=tuple(float(b) for b in values.ema),
        pda=tuple(float(g) for g in values.pda),
        ema_convention=values.ema_convention,
        ema_warm_up=values.ema_warm_up,
    )


def define_flags(flag_values: flags.FlagValues = FLAGS) -> None:
    """Defines the flags of this binary."""
    define = functools.partial(define_flag, flag_values)
    define("list", "runs", [], "the run folders")
    define("string", "out", "results/evaluate", "where table and picture go")
    define("enum", "split", "heldout", list(recycling.SPLITS), "the data")
    define("integer", "sentences", 10_000, "the size of the sample")
    define("enum", "name", "iterate", ["iterate", "aggregate"], "checkpoints: θ, θ^AGG")
    define("integer", "span", 0, "how many of the last rounds the curve covers")
    define("integer", "every", 10, "the rounds between two points of the curve")
    define("integer", "memory_mb", 1024, "the memory for OPA and OMV, in MB")
    define("string", "store", None, "the token store, if it has been moved")
    define_grid_flags(flag_values)


def define_flag(flag_values: flags.FlagValues, kind: str, *arguments: Any) -> None:
    """Defines one flag of a kind ('list', 'string', …) on some flag values."""
    getattr(flags, f"DEFINE_{kind}")(*arguments, flag_values=flag_values)


def config_from_flags(values: flags.FlagValues = FLAGS) -> EvaluateConfig:
    """Makes the configuration that the flags describe."""
    return EvaluateConfig(
        runs=tuple(values.runs),
        out=values.out,
        grid=grid_from_flags(values),
        split=values.split,
        sentences=values.sentences,
        name=values.name,
        span=values.span,
        every=values.every,
        memory_budget=values.memory_mb << 20,
        store=values.store,
    )


def main(argv: list[str]) -> int:
    """Evaluates what the flags describe."""
    from tff_agg.experiment import terminal

    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    with terminal.plain_errors():
        config = config_from_flags()
        print(table(run(config, ProgressBars())))
        print(f"Everything is in {config.out}")
    return 0


def entry_point() -> None:
    """Runs as the console command `tff-agg-evaluate`."""
    from tff_agg.experiment import terminal

    terminal.run_binary(main, define_flags)


if __name__ == "__main__":
    entry_point()
