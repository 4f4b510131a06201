"""Tunes the aggregation of checkpoints: on validation data, tested once.

Inference aggregation (Algorithm 3) works over the checkpoints of finished runs;
training aggregation (Algorithm 2) trains one run for each parameter and start. Without
further flags the paper's grids for the task are searched. Run the same command again to
go on with a search that was stopped.
"""

import contextlib
import dataclasses
import functools
import pathlib
import shlex
import statistics
import sys
from collections.abc import Callable, Collection, Iterator, Sequence

from tff_agg import fields, files, privacy, processes
from tff_agg.aliases import JsonObject
from tff_agg.experiment import progress, runs, tuning_report
from tff_agg.experiment.commands import Command, evaluate, flags
from tff_agg.experiment.commands.of_runs import OfRuns
from tff_agg.experiment.study import cost
from tff_agg.experiment.task import Task
from tff_agg.fields import described
from tff_agg.recycling import inference, tuning
from tff_agg.recycling.grids import Grids
from tff_agg.recycling.methods import Method
from tff_agg.recycling.tuning import Candidate
from tff_agg.runtime import jobs

_OUTPUTS = ("OPA", "OMV")
_TO_BE_CONTINUED = (
    "Trials that failed: {}. The test data were not looked at. Run the same command "
    "again: it comes to an end without a trial that fails twice."
)


_TRAINING = ("algorithm", ("training",))
_OF_INFERENCE = ("runs", "methods", "series", "memory_mb", "data")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneOptions(OfRuns):
    """What `tune` is asked for."""

    algorithm: str = described("inference", "what is tuned", ("inference", "training"))
    out: str = described("results/tune", "where everything goes")
    methods: tuple[Method, ...] = described(
        (), "inference: the grid, such as 'uta:10,50 opa:10'; the paper's if not given"
    )
    averager: str = described(
        "uta", "training: the aggregation", ("uta", "ema"), only_with=_TRAINING
    )
    parameters: tuple[float, ...] = described(
        (), "training: k or β; the paper's if not given", only_with=_TRAINING
    )
    starts: tuple[int, ...] = described(
        (), "training: the values of τ; the paper's if not given", only_with=_TRAINING
    )
    train_flags: str = described(
        "", "training: flags that all trials share", only_with=_TRAINING
    )
    ema_convention: str = described(
        "decay",
        "training: what β is the weight of: the old average (decay) or the newest "
        "checkpoint (weight)",
        ("decay", "weight"),
        only_with=("averager", ("ema",)),
    )
    at_once: int = described(
        1, "training: trials side by side", at_least=1, only_with=_TRAINING
    )
    address: str | None = described(
        None,
        "training: a Ray cluster to spread trials over; its machines see --out",
        only_with=_TRAINING,
    )
    cpus_per_trial: float = described(
        1.0, "training: CPUs of the cluster for a trial", only_with=_TRAINING
    )

    def without_effect(self, given: Collection[str]) -> list[str]:
        """Returns which of the given fields change nothing; a text for each."""
        found = fields.without_effect(self, given)
        if self.algorithm == "training":
            needs = "needs algorithm=inference; it is training"
            found += [f"{name} {needs}" for name in _OF_INFERENCE if name in given]
        return found


@dataclasses.dataclass(frozen=True)
class InferenceConfig:
    """A search over inference aggregations.

    Attributes:
      runs: The run folders; values are averaged over them.
      out: Where journal, table and picture go.
      grid: The methods and their parameters; None: the paper's, for the task.
      examples: The size of the validation and test samples.
      name: Which checkpoints: 'iterate' (θ_t) or 'aggregate' (θ^AGG_t).
      memory_budget: In bytes, for OPA and OMV.
      data: Where the data are, if they are not where the runs found them.
    """

    runs: tuple[str, ...]
    out: str
    grid: inference.Grid | None = None
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
      train_flags: Flags of `train` that all trials share.
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
    starts: tuple[int, ...] = (0,)
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
            package,
            "train",
            *self.train_flags,
            # Last of its name, so it counts: the test data are for the choice alone.
            "--test_examples=0",
            f"--averager={self.averager}",
            f"--{parameter}",
            f"--start_round={candidate.start}",
            f"--out={self.folder(candidate)}",
        ]


def paper_grid(grids: Grids) -> inference.Grid:
    """Returns what is searched at inference."""
    return inference.Grid(uta=grids.ks, outputs=grids.ks, ema=grids.inference_betas)


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
    grid = config.grid or paper_grid(task_class.grids(opened[0].config))
    fewest = min(len(run.rounds(config.name)) for run in opened)
    settings: JsonObject = {
        "algorithm": "inference",
        "runs": [str(run.folder.resolve().name) for run in opened],
        "rounds": [run.rounds(config.name)[-1] for run in opened],
        "examples": config.examples,
        "name": config.name,
        "ema": [grid.ema_convention, grid.ema_warm_up],
    }
    journal = tuning.Journal(
        files.results_folder(config.out) / "journal.jsonl", settings
    )

    def scores(candidates: Sequence[Candidate], split: str) -> dict[Candidate, float]:
        rows = evaluate.evaluate_runs(
            task_class,
            evaluate.EvaluateConfig(
                runs=config.runs,
                out=config.out,
                grid=grid_of(grid, candidates),
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
        candidates_of(evaluate.applicable(task_class, grid), fewest),
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
        files.results_folder(config.out) / "journal.jsonl", settings
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


def inference_config(options: TuneOptions) -> InferenceConfig:
    """Returns the search over inference aggregations that is asked for."""
    return InferenceConfig(
        runs=options.runs,
        out=options.out,
        grid=evaluate.grid_of(options.methods) if options.methods else None,
        examples=options.examples,
        name=options.series,
        memory_budget=options.memory_budget,
        data=options.data,
    )


def training_config(task_class: type[Task], options: TuneOptions) -> TrainingConfig:
    """Returns the search over training aggregations that is asked for."""
    train_flags = tuple(shlex.split(options.train_flags))
    grids = task_class.grids(flags.parse_some(train_flags, task_class.Config))
    betas = options.averager == "ema"
    return TrainingConfig(
        out=options.out,
        averager=options.averager,
        parameters=options.parameters or (grids.training_betas if betas else grids.ks),
        starts=options.starts or grids.starts,
        train_flags=train_flags,
        ema_convention=options.ema_convention,
        examples=options.examples,
        at_once=options.at_once,
        address=options.address,
        cpus_per_trial=options.cpus_per_trial,
    )


def tune(task_class: type[Task], options: TuneOptions) -> int:
    """Runs a search and shows what it chose."""
    metric = task_class.metrics[0]
    if options.algorithm == "inference":
        with contextlib.closing(progress.StageBar()) as bar:
            choices = tune_inference(task_class, inference_config(options), bar)
        print(tuning_report.table(list(choices.values()), metric))
    else:

        def say(
            number: int, total: int, candidate: Candidate, value: float | None
        ) -> None:
            found = "failed" if value is None else metric.show(value, 3)
            print(f"[{number}/{total}] {candidate}: {found}", flush=True)

        choice = tune_training(
            task_class, training_config(task_class, options), None, say
        )
        print(tuning_report.table([choice], metric))
        if choice.test is None:
            print(_TO_BE_CONTINUED.format(len(choice.failed)))
    print(tuning_report.metrics_table(pathlib.Path(options.out), task_class.metrics))
    note = pathlib.Path(options.out) / "privacy_of_tuning.md"
    if note.exists():
        print(note.read_text())
    print(f"Everything is in {options.out}")
    return 0


def command(task: type[Task]) -> Command:
    """Returns the command of a task."""
    return Command(functools.partial(tune, task), (TuneOptions,))
