"""What the checkpoints of a few runs come to: chosen on validation, tested once.

For the runs of one arm that differ in their seeds: every inference aggregation of a
grid is scored on validation data at some of the last rounds, the best parameter of each
method is chosen by the mean over runs and rounds, and only that one is scored on test
data. Both are written to the results folder and read back, so that a second call costs
nothing and the test data are looked at once.
"""

import dataclasses
import json
import os
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tff_agg import files
from tff_agg.experiment import old_evaluate as evaluate
from tff_agg.experiment.old_evaluate import Candidate, Row
from tff_agg.experiment.study import cost
from tff_agg.experiment.task import Task
from tff_agg.recycling import inference
from tff_agg.recycling.metrics import Metric

LAST = "last"


@dataclasses.dataclass(frozen=True)
class Judging:
    """How runs are judged.

    Attributes:
      grid: The inference aggregations and their parameters.
      examples: The size of the validation and of the test sample.
      span: How many of the last rounds count; 0: the last one alone.
      every: The rounds between two that count.
      name: Which checkpoints: 'iterate' (θ_t) or 'aggregate' (θ^AGG_t).
    """

    grid: inference.Grid
    examples: int = 10_000
    span: int = 0
    every: int = 10
    name: str = "aggregate"


class Recycled(NamedTuple):
    """What the runs of one arm have come to.

    Attributes:
      rows: The scores on validation data, as `evaluate.evaluate_runs` gives them.
      chosen: The candidate of each method.
      tests: By method, the values of the metrics on test data, for each run.
    """

    rows: Sequence[Row]
    chosen: Mapping[str, Candidate]
    tests: Mapping[str, Sequence[Mapping[str, float]]]

    @property
    def chosen_rows(self) -> list[Row]:
        """The scores on validation data of what was chosen."""
        chosen = set(self.chosen.values())
        return [row for row in self.rows if _candidate(row) in chosen]


def recycle(
    task_class: type[Task],
    folders: Sequence[str | os.PathLike],
    out: str | os.PathLike,
    judging: Judging,
    on_progress: evaluate.Progress | None = None,
) -> Recycled:
    """Chooses each method's parameter on validation data and tests it.

    Args:
      task_class: What was trained.
      folders: The folders of finished runs that differ in their seeds only.
      out: Where the scores are kept: heldout.json and test.json.
      judging: How.
      on_progress: Receives how it goes.
    """
    metric = task_class.metrics[0]
    made = files.results_folder(str(out))
    names = [str(folder) for folder in folders]
    grid = evaluate.applicable(task_class, judging.grid)

    def scores(split: str, grid: inference.Grid) -> list[Row]:
        config = _config(names, made, judging, split, grid)
        return _remembered(made / f"{split}.json", task_class, config, on_progress)

    rows = scores("heldout", grid)
    chosen = {
        method: evaluate.pick(trials, metric).candidate
        for method, trials in _trials(rows, metric).items()
    }
    runs = [pathlib.Path(name) for name in names]
    searched = cost.of_inference(runs, len({_candidate(row) for row in rows}))
    cost.add_to_reports(runs, made, searched)
    tested = scores("test", evaluate.cut_down(grid, list(chosen.values())))
    tests = {
        method: [_mean(tested, candidate, name, task_class) for name in names]
        for method, candidate in chosen.items()
    }
    return Recycled(rows, chosen, tests)


def is_known(
    task_class: type[Task],
    folders: Sequence[str | os.PathLike],
    out: str | os.PathLike,
    judging: Judging,
) -> bool:
    """Returns whether `recycle` would only read what an earlier call has written."""
    made = pathlib.Path(out)
    names = [str(folder) for folder in folders]
    grid = evaluate.applicable(task_class, judging.grid)
    wanted = _config(names, made, judging, "heldout", grid)
    scored = _saved(made / "heldout.json", wanted) is not None
    # Tested are the runs that were scored, as soon as they are.
    return scored and (made / "test.json").exists()


def best(found: Recycled, metric: Metric) -> str:
    """Returns the method that is best on validation data, the last iterate included."""
    trials = _trials(found.rows, metric)
    return evaluate.pick(
        [evaluate.pick(of_method, metric) for of_method in trials.values()], metric
    ).candidate.method


def _config(
    names: Sequence[str],
    out: pathlib.Path,
    judging: Judging,
    split: str,
    grid: inference.Grid,
) -> evaluate.EvaluateConfig:
    return evaluate.EvaluateConfig(
        runs=tuple(names),
        out=str(out),
        grid=grid,
        split=split,
        examples=judging.examples,
        name=judging.name,
        span=judging.span,
        every=judging.every,
    )


def _remembered(
    path: pathlib.Path,
    task_class: type[Task],
    config: evaluate.EvaluateConfig,
    on_progress: evaluate.Progress | None,
) -> list[Row]:
    """Returns the scores of a configuration, from the file if it holds them."""
    if (rows := _saved(path, config)) is None:
        rows = evaluate.evaluate_runs(task_class, config, on_progress)
        content = {"of": dataclasses.asdict(config), "rows": rows}
        files.write_text(path, json.dumps(content) + "\n")
    return rows


def _saved(path: pathlib.Path, config: evaluate.EvaluateConfig) -> list[Row] | None:
    """Returns the scores in a file, if they are those of a configuration."""
    if not path.exists():
        return None
    saved = json.loads(path.read_text())
    # As the file gives it back: tuples are lists there.
    what = json.loads(json.dumps(dataclasses.asdict(config)))
    return saved["rows"] if saved["of"] == what else None


def _candidate(row: Row) -> Candidate:
    return Candidate(row["method"], row["parameter"])


def _trials(rows: Sequence[Row], metric: Metric) -> dict[str, list[evaluate.Trial]]:
    """Returns each method's candidates with their means over runs and rounds."""
    values: dict[Candidate, list[float]] = {}
    for row in rows:
        values.setdefault(_candidate(row), []).append(row[metric.name])
    found: dict[str, list[evaluate.Trial]] = {}
    for candidate, several in values.items():
        trial = evaluate.Trial(candidate, statistics.fmean(several))
        found.setdefault(candidate.method, []).append(trial)
    return found


def _mean(
    rows: Sequence[Row], candidate: Candidate, run: str, task_class: type[Task]
) -> dict[str, Any]:
    """Returns a run's values, means over rounds; what a method has not is left out."""
    own = [row for row in rows if row["run"] == run and _candidate(row) == candidate]
    return {
        metric.name: statistics.fmean(row[metric.name] for row in own)
        for metric in task_class.metrics
        if all(metric.name in row for row in own)
    }
