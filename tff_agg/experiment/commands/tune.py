"""Tunes the aggregation of checkpoints: on validation data, tested once.

Inference aggregation (Algorithm 3) works over the checkpoints of finished runs;
training aggregation (Algorithm 2) trains one run for each parameter and start. Without
further flags the paper's grids are searched. Run the same command again to go on with a
search that was stopped.
"""

import contextlib
import dataclasses
import functools
import pathlib
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence

from absl import flags

from tff_agg import privacy, processes
from tff_agg.aliases import JsonObject
from tff_agg.experiment import progress, runs, tuning_report
from tff_agg.experiment.commands import evaluate
from tff_agg.experiment.commands import flags as flag_fields
from tff_agg.experiment.run import run_folder
from tff_agg.experiment.study import cost
from tff_agg.experiment.task import Task
from tff_agg.recycling import inference, tuning
from tff_agg.recycling.tuning import Candidate
from tff_agg.runtime import jobs

_OUTPUTS = ("OPA", "OMV")
_TO_BE_CONTINUED = (
    "Trials that failed: {}. The test data were not looked at. Run the same command "
    "again: it comes to an end without a trial that fails twice."
)


@dataclasses.dataclass(frozen=True)
class InferenceConfig:
    """A search over inference aggregations.

    Attributes:
      runs: The run folders; values are averaged over them.
      out: Where journal, table and picture go.
      grid: The methods and their parameters.
      examples: The size of the validation and test samples.
      name: Which checkpoints: 'iterate' (θ_t) or 'aggregate' (θ^AGG_t).
      memory_budget: In bytes, for OPA and OMV.
      data: Where the data are, if they are not where the runs found them.
    """

    runs: tuple[str, ...]
    out: str
    grid: inference.Grid = dataclasses.field(default_factory=lambda: paper_grid())
    examples: int = 10_000
    name: str = "iterate"
    memory_budget: int = 1 << 30
    data: str | None = None


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """A search over training aggregations.

    Attributes:
      out: Where trials, journal, table and picture go.
      averager: 'uta' or 'ema'.
      parameters: The values of k or β.
      starts: The values of τ.
      train_flags: Flags of the binary `train` that all trials share.
      ema_convention: What β means, 'decay' or 'weight'.
      examples: The size of the validation and test samples.
      at_once: How many trials run side by side.
      address: A Ray cluster to spread them over, which sees the same storage; None:
        they run here.
      cpus_per_trial: How many CPUs of the cluster a trial takes.
    """

    out: str
    averager: str
    parameters: tuple[float, ...]
    starts: tuple[int, ...] = tuning.STACKOVERFLOW_STARTS
    train_flags: tuple[str, ...] = ()
    ema_convention: str = "decay"
    examples: int = 10_000
    at_once: int = 1
    address: str | None = None
    cpus_per_trial: float = 1

    def __post_init__(self):
        if self.averager not in ("uta", "ema"):
            raise ValueError(f"averager={self.averager!r} must be 'uta' or 'ema'")

    def grid(self) -> list[Candidate]:
        """Returns the candidates (p, τ)."""
        whole = int if self.averager == "uta" else float
        method = f"{self.averager.upper()}_tr"
        return [
            Candidate(method, whole(p), start)
            for start in self.starts
            for p in self.parameters
        ]

    def folder(self, candidate: Candidate) -> pathlib.Path:
        """Returns the run folder of a candidate."""
        name = f"{self.averager}-{candidate.parameter:g}-from-{candidate.start}"
        return pathlib.Path(self.out) / "trials" / name

    def folders(self) -> list[pathlib.Path]:
        """Returns the folders of all trials that were begun, whatever their grid."""
        return sorted((pathlib.Path(self.out) / "trials").glob("*/"))

    def command(self, package: str, candidate: Candidate) -> list[str]:
        """Returns the command that trains a candidate, or resumes it."""
        parameter = f"k={candidate.parameter}"
        if self.averager == "ema":
            parameter = f"ema_{self.ema_convention}={candidate.parameter}"
        return [
            sys.executable,
            "-m",
            f"{package}.train",
            *self.train_flags,
            # Last of its name, so it counts: the test data are for the choice alone.
            "--test_examples=0",
            f"--averager={self.averager}",
            f"--{parameter}",
            f"--start_round={candidate.start}",
            f"--out={self.folder(candidate)}",
        ]


def paper_grid() -> inference.Grid:
    """Returns the paper's grids for inference aggregation."""
    return inference.Grid(uta=tuning.KS, outputs=tuning.KS, ema=tuning.INFERENCE_BETAS)


def candidates_of(grid: inference.Grid, checkpoints: int) -> list[Candidate]:
    """Lists the candidates of a grid; no k beyond the checkpoints that there are."""
    found = [Candidate("last")]
    for method, parameter in grid.methods():
        is_count = method in ("UTA_inf", *_OUTPUTS)
        if not is_count or (parameter or 0) <= checkpoints:
            found.append(Candidate(method, parameter))
    return found


def grid_of(grid: inference.Grid, candidates: Sequence[Candidate]) -> inference.Grid:
    """Cuts a grid down to what some candidates need."""

    def parameters(*methods: str) -> tuple:
        found = [c.parameter for c in candidates if c.method in methods]
        return tuple(dict.fromkeys(found))

    return dataclasses.replace(
        grid,
        uta=parameters("UTA_inf"),
        outputs=parameters(*_OUTPUTS),
        ema=parameters("EMA_inf"),
        pda=parameters("PDA"),
        baseline=any(c.method == "EMA_baseline" for c in candidates),
    )


def tune_inference(
    task_class: type[Task],
    config: InferenceConfig,
    on_progress: evaluate.Progress | None = None,
) -> dict[str, tuning.Choice]:
    """Algorithm 3 over finished runs; writes journal, table and picture."""
    metric = task_class.metrics[0]
    opened = runs.open_runs(task_class, config.runs, config.data)
    fewest = min(len(run.rounds(config.name)) for run in opened)
    settings: JsonObject = {
        "algorithm": "inference",
        "runs": [str(run.folder.resolve().name) for run in opened],
        "rounds": [run.rounds(config.name)[-1] for run in opened],
        "examples": config.examples,
        "name": config.name,
        "ema": [config.grid.ema_convention, config.grid.ema_warm_up],
    }
    journal = tuning.Journal(
        run_folder.results_folder(config.out) / "journal.jsonl", settings
    )

    def scores(candidates: Sequence[Candidate], split: str) -> dict[Candidate, float]:
        rows = evaluate.evaluate_runs(
            task_class,
            evaluate.EvaluateConfig(
                runs=config.runs,
                out=config.out,
                grid=grid_of(config.grid, candidates),
                split=split,
                examples=config.examples,
                name=config.name,
                memory_budget=config.memory_budget,
                data=config.data,
            ),
            on_progress,
        )
        found: dict[Candidate, list[evaluate.Row]] = {}
        for row in rows:
            key = Candidate(row["method"], row["parameter"])
            found.setdefault(key, []).append(row)
        for candidate in candidates:
            values = {
                one.name: statistics.fmean(row[one.name] for row in found[candidate])
                for one in task_class.metrics
                if one.name in found[candidate][0]
            }
            journal.note_metrics(split, candidate, values)
        known = journal.metrics(split)
        return {candidate: known[candidate][metric.name] for candidate in candidates}

    def validate(candidates: list[Candidate]) -> Iterator[tuple[Candidate, float]]:
        found = scores(candidates, "heldout")
        return ((candidate, found[candidate]) for candidate in candidates)

    choices = tuning.tune_inference(
        candidates_of(evaluate.applicable(task_class, config.grid), fewest),
        validate,
        lambda candidate: scores([candidate], "test")[candidate],
        journal,
        metric,
    )
    folders = [run.folder for run in opened]
    # All that the journal knows: an earlier grid was looked at as well.
    searched = cost.of_inference(folders, len(journal.values("trial")))
    tuning_report.write(config.out, list(choices.values()), searched, metric, journal)
    cost.add_to_reports(folders, config.out, searched)
    return choices


def tune_training(
    task_class: type[Task],
    config: TrainingConfig,
    run_command: Callable[[list[str]], None] | None = None,
    on_trial: Callable[[int, int, Candidate, float | None], None] | None = None,
) -> tuning.Choice:
    """Algorithm 2 with one training run per candidate; writes the same files.

    Trials leave the test data alone; the model of the chosen one is scored here, once.

    Args:
      task_class: What is trained.
      config: The search.
      run_command: Runs a trial's command and raises if it fails.
      on_trial: Receives every trial, see `tuning.tune_training`.
    """
    metric = task_class.metrics[0]
    run_command = run_command or _run_command
    settings: JsonObject = {
        "algorithm": "training",
        "averager": config.averager,
        "train_flags": list(config.train_flags),
        "ema_convention": config.ema_convention,
        "examples": config.examples,
    }
    journal = tuning.Journal(
        run_folder.results_folder(config.out) / "journal.jsonl", settings
    )

    def value(candidate: Candidate, split: str) -> float:
        run = runs.Run.open(task_class, config.folder(candidate))
        last = run.rounds("aggregate")[-1]
        if last < run.config.rounds:
            raise RuntimeError(f"{run.folder} ends at round {last}")
        score = run.scorer(split, config.examples)
        found = score(run.load(last, "aggregate"))
        journal.note_metrics(split, candidate, found)
        return found[metric.name]

    def trial(candidate: Candidate) -> float:
        run_command(config.command(task_class.package, candidate))
        return value(candidate, "heldout")

    def tell(
        number: int, total: int, candidate: Candidate, found: float | None
    ) -> None:
        # After every trial: also the reports of a search that is never ended must say
        # how many runs were looked at.
        cost.add_to_reports(config.folders(), config.out, searched())
        if on_trial is not None:
            on_trial(number, total, candidate, found)

    def searched() -> privacy.SearchCost | None:
        return cost.of_training(config.folders(), journal.runs_looked_at())

    choice = tuning.tune_training(
        config.grid(),
        trial,
        lambda candidate: value(candidate, "test"),
        journal,
        tell,
        metric,
        functools.partial(
            jobs.spread,
            at_once=config.at_once,
            address=config.address,
            cpus_per_job=config.cpus_per_trial,
        ),
    )
    tuning_report.write(config.out, [choice], searched(), metric, journal)
    return choice


def _run_command(command: list[str]) -> None:
    """Runs a trial; its output goes to the terminal."""
    processes.run(command, check=True)


def define_flags(task_class: type[Task], flag_values: flags.FlagValues) -> None:
    """Defines the flags of this driver."""
    define = functools.partial(flag_fields.define_one, flag_values)
    evaluate.define_run_flags(task_class, flag_values, 10_000)
    algorithms = ["inference", "training"]
    define("enum", "algorithm", "inference", algorithms, "what is tuned")
    define("string", "out", "results/tune", "where everything goes")
    define("enum", "averager", "uta", ["uta", "ema"], "training: the aggregation")
    define("list", "parameters", [], "training: k or β; the paper's if not given")
    define("list", "starts", ["0"], "training: the values of τ")
    define("string", "train_flags", "", "training: flags that all trials share")
    define("integer", "at_once", 1, "training: trials side by side", 1)
    text = "training: a Ray cluster to spread trials over; its machines see --out"
    define("string", "address", None, text)
    define("float", "cpus_per_trial", 1, "training: CPUs of the cluster for a trial")
    evaluate.define_grid_flags(flag_values)


def inference_config_from_flags(
    task_class: type[Task], values: flags.FlagValues
) -> InferenceConfig:
    """Makes the search over inference aggregations that the flags describe."""
    grid = evaluate.grid_from_flags(values)
    if not (grid.uta or grid.outputs or grid.ema or grid.pda):
        grid = dataclasses.replace(
            grid, uta=tuning.KS, outputs=tuning.KS, ema=tuning.INFERENCE_BETAS
        )
    return InferenceConfig(
        runs=tuple(values.runs),
        out=values.out,
        grid=grid,
        examples=values.examples,
        name=values.name,
        memory_budget=values.memory_mb << 20,
        data=evaluate.data_from_flags(task_class, values),
    )


def training_config_from_flags(values: flags.FlagValues) -> TrainingConfig:
    """Makes the search over training aggregations that the flags describe."""
    defaults = {"uta": tuning.KS, "ema": tuning.TRAINING_BETAS}[values.averager]
    return TrainingConfig(
        out=values.out,
        averager=values.averager,
        parameters=tuple(float(p) for p in values.parameters) or defaults,
        starts=tuple(int(t) for t in values.starts),
        train_flags=tuple(shlex.split(values.train_flags)),
        ema_convention=values.ema_convention,
        examples=values.examples,
        at_once=values.at_once,
        address=values.address,
        cpus_per_trial=values.cpus_per_trial,
    )


def main(task_class: type[Task], values: flags.FlagValues) -> int:
    """Runs the search that the flags describe."""
    metric = task_class.metrics[0]
    if values.algorithm == "inference":
        config = inference_config_from_flags(task_class, values)
        with contextlib.closing(progress.StageBar()) as bar:
            choices = tune_inference(task_class, config, bar)
        print(tuning_report.table(list(choices.values()), metric))
    else:

        def say(
            number: int, total: int, candidate: Candidate, value: float | None
        ) -> None:
            found = "failed" if value is None else metric.show(value, 3)
            print(f"[{number}/{total}] {candidate}: {found}", flush=True)

        choice = tune_training(
            task_class, training_config_from_flags(values), None, say
        )
        print(tuning_report.table([choice], metric))
        if choice.test is None:
            print(_TO_BE_CONTINUED.format(len(choice.failed)))
    print(tuning_report.metrics_table(pathlib.Path(values.out), task_class.metrics))
    note = pathlib.Path(values.out) / "privacy_of_tuning.md"
    if note.exists():
        print(note.read_text())
    print(f"Everything is in {values.out}")
    return 0
