"""The demo: what do averaged checkpoints gain at the noise of one ε? `make demo`.

Generates the embedded data and trains the private baseline and uniform tail averaging
in training (UTA_tr), with and without a periodic shift between questions and answers,
over several seeds. Then it recycles the checkpoints of both: the mean of the last ones
(UTA_inf), at no privacy cost. Prints one table and draws one picture. Every run is a
folder that resumes: stop the demo and start it again.
"""

import contextlib
import csv
import dataclasses
import functools
import io
import itertools
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from absl import flags

from stackoverflow.task import StackOverflow, StackOverflowConfig
from tff_agg import processes
from tff_agg.experiment import binaries, flag_fields

PERIOD = 40
# Of 5, 10, 20, 40 and 60 the best on the validation sample, with other seeds than
# the demo's.
INFERENCE_K = 10
SETTINGS: dict[str, dict[str, Any]] = {
    "original": {},
    "periodic shift": {"pds": True, "pds_period": PERIOD},
}
# Rates were chosen in the same way, of three each. A step from the mean of three
# checkpoints moves half as far: UTA_tr gets twice the learning rate.
TRAININGS: dict[str, dict[str, Any]] = {
    "baseline": {"averager": "last", "server_learning_rate": 0.5},
    "UTA_tr": {"averager": "uta", "k": 3, "server_learning_rate": 1.0},
}
METHODS = {
    "DP-FTRL baseline": ("baseline", False),
    "baseline + UTA_inf": ("baseline", True),
    "UTA_tr": ("UTA_tr", False),
    "UTA_tr + UTA_inf": ("UTA_tr", True),
}
BASELINE = "DP-FTRL baseline"


class Result(NamedTuple):
    """What one seed of one method has come to.

    Attributes:
      rounds: Where the validation accuracy was measured.
      validation: The accuracies there, shares between 0 and 1.
      test: The accuracy of the last round's model on the test sample.
    """

    rounds: list[float]
    validation: list[float]
    test: float


Results = dict[tuple[str, str], list[Result]]


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    """The sizes of the demo.

    Attributes:
      out: Where data, runs, table and picture go.
      seeds: How many seeds each combination is trained with.
      rounds: Training rounds of each run.
      users: Users in the embedded data.
      epsilon: The ε that the noise of every run is made for. The seeds are known, so
        that no run has a guarantee.
    """

    out: str
    seeds: int = 3
    rounds: int = 100
    users: int = 6000
    epsilon: float = 8.0

    def __post_init__(self):
        if self.seeds < 1 or self.rounds < 1:
            raise ValueError(
                f"seeds and rounds must be at least 1; got {self.seeds}, {self.rounds}"
            )

    def run_config(
        self, store: str, setting: str, training: str, seed: int
    ) -> StackOverflowConfig:
        """Returns the configuration of one run."""
        return StackOverflowConfig(
            store=store,
            seed=seed,
            # Known noise seeds make the demo's table the same wherever it runs. The
            # data are made up: there is nobody to protect.
            insecure_noise_seed=1000 + seed,
            rounds=self.rounds,
            clients_per_round=20,
            max_sentences=32,
            batch_size=32,
            embedding_size=24,
            lstm_size=48,
            client_learning_rate=2.0,
            server_momentum=0.9,
            clip_norm=0.5,
            epsilon=self.epsilon,
            evaluate_every=10,
            validation_examples=1500,
            test_examples=3000,
            # One lane: the same sums, to the last bit, on any number of cores.
            lanes=1,
            **SETTINGS[setting],
            **TRAININGS[training],
        )


@contextlib.contextmanager
def second_process(config: DemoConfig, training: str) -> Iterator[subprocess.Popen]:
    """Trains the runs of one kind beside this process, and ends with it."""
    pathlib.Path(config.out).mkdir(parents=True, exist_ok=True)
    arguments = [
        f"--{field.name}={getattr(config, field.name)}"
        for field in dataclasses.fields(config)
    ]
    with open(pathlib.Path(config.out) / f"{training}.log", "w") as log:
        process = processes.start(
            [sys.executable, "-m", "stackoverflow.demo", *arguments,
             f"--only={training}"],
            stdout=log,
            stderr=log,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def run_in_two_processes(config: DemoConfig, store: str) -> tuple[Results, Any]:
    """Trains the baseline here and UTA_tr beside it, then gathers the results.

    Rounds of so small a model keep one core busy, not two.
    """
    first, second = TRAININGS
    with second_process(config, second) as other:
        run_all(config, store, only=first)
        print(f"Waiting for the runs of {second} in the other process.", flush=True)
        other.wait()
    # Goes on, or fails with the reason, where the other process did not finish.
    return run_all(config, store, quiet=True)


def run_all(
    config: DemoConfig, store: str, *, only: str = "", quiet: bool = False
) -> tuple[Results, Any]:
    """Trains and recycles the combinations; returns the results and the plan."""
    from tff_agg.experiment import process_cache, recording, terminal
    from tff_agg.experiment.drivers import train

    results: Results = {}
    plan = None
    shared = process_cache.ProcessCache()
    names = [name for name in TRAININGS if only in ("", name)]
    jobs = list(itertools.product(SETTINGS, names, range(config.seeds)))
    for number, (setting, name, seed) in enumerate(jobs, start=1):
        label = f"{number:2}/{len(jobs)} {setting}, {name}, seed {seed}"
        folder = "".join(c if c.isalnum() else "_" for c in f"{setting} {name} {seed}")
        run_config = config.run_config(store, setting, name, seed)
        outcome = train.run(
            StackOverflow(run_config),
            pathlib.Path(config.out) / "runs" / folder,
            recording.Observer()
            if quiet
            else terminal.TrainingBar(
                StackOverflow.metrics, label, show_plan=number == 1
            ),
            cache=shared,
        )
        plan = outcome.plan
        if only:
            continue
        for method, (trained, recycled) in METHODS.items():
            if trained == name:
                result = _recycle(run_config, outcome) if recycled else _as_is(outcome)
                results.setdefault((setting, method), []).append(result)
    shared.close()
    return results, plan


def _as_is(outcome: Any) -> Result:
    """The model that training broadcasts."""
    from tff_agg.experiment import tables

    found = tables.read_columns(
        outcome.folder / "validation.csv", {"weights": "aggregate", "group": "all"}
    )
    accuracy = outcome.test["aggregate"]["all"]["accuracy"]
    return Result(found["round"], found["accuracy"], accuracy)


def _recycle(config: StackOverflowConfig, outcome: Any) -> Result:
    """The mean of the last checkpoints at every validation, and on the test sample."""
    from tff_agg import averaging, checkpoints
    from tff_agg.experiment import recording

    task = StackOverflow(config)
    validate = recording.Evaluation(task, "heldout", config.validation_examples)
    store = checkpoints.CheckpointStore(outcome.folder / "checkpoints")
    iterates = (theta for _, theta in store.iterate("iterate"))
    rounds, accuracies, mean = [], [], None
    for t, mean in enumerate(averaging.fold(averaging.uta(INFERENCE_K), iterates)):
        if t and (t % config.evaluate_every == 0 or t == config.rounds):
            rounds.append(float(t))
            accuracies.append(validate(mean)["all"]["accuracy"])
    test = recording.Evaluation(task, "test", config.test_examples)
    assert mean is not None
    return Result(rounds, accuracies, test(mean)["all"]["accuracy"])


def gains(results: Results, setting: str, method: str) -> list[float]:
    """Returns a method's gain in test accuracy over the baseline, seed by seed."""
    return [
        100 * (one.test - other.test)
        for one, other in zip(
            results[setting, method], results[setting, BASELINE], strict=True
        )
    ]


def rows_of(results: Results) -> list[list[str]]:
    """Returns the table: test accuracy over seeds, and the gain over the baseline."""
    rows = []
    for setting, method in itertools.product(SETTINGS, METHODS):
        found = [100 * result.test for result in results[setting, method]]
        change = gains(results, setting, method)
        rows.append(
            [setting, method, f"{statistics.mean(found):.2f} ± {_spread(found):.2f}"]
            + (
                ["", "", ""]
                if method == BASELINE
                else [
                    f"{statistics.mean(change):+.2f}",
                    f"{_spread(change):.2f}",
                    f"{sum(gain > 0 for gain in change)} of {len(change)}",
                ]
            )
        )
    return rows


def verdict(results: Results) -> list[str]:
    """Says for each method whether its gain stands clear of the seeds' spread."""
    from scipy import stats

    lines = []
    for setting, method in itertools.product(SETTINGS, METHODS):
        change = gains(results, setting, method)
        if method == BASELINE:
            continue
        if len(change) < 3:
            lines.append(f"{setting}: {len(change)} seeds are too few to tell.")
            continue
        mean = statistics.mean(change)
        error = _spread(change) / math.sqrt(len(change))
        # Student's 95 %: with three seeds the usual two errors would say far too much.
        clear = abs(mean) > stats.t.ppf(0.975, len(change) - 1) * error
        lines.append(
            f"{setting}: {method} changes the test accuracy by {mean:+.2f} points "
            f"(standard error {error:.2f}, same seeds and clients), which "
            + ("stands clear of the spread." if clear else "is within the spread.")
        )
    return lines


HEADER = [
    "setting",
    "method",
    "test accuracy %",
    "gain",
    "± over seeds",
    "seeds better",
]


def report(config: DemoConfig, results: Results, plan: Any) -> str:
    """Writes the CSV and the picture; returns the table for the terminal."""
    from tff_agg import files
    from tff_agg.experiment import figures, terminal

    out = pathlib.Path(config.out)
    rows = rows_of(results)
    text = io.StringIO()
    csv.writer(text).writerows([HEADER, *rows])
    files.write_text(out / "table.csv", text.getvalue())
    panels: dict[str, dict[str, figures.Curve]] = {}
    for (setting, method), found in results.items():
        curve = figures.Curve(found[0].rounds, [r.validation for r in found])
        panels.setdefault(setting, {})[method] = curve
    figures.metric_curves(
        out / "accuracy.png",
        panels,
        title=f"{noise_in_words(plan)}; "
        f"mean and standard deviation over {config.seeds} seeds",
    )
    lines = [terminal.table(HEADER, rows), "", *verdict(results), ""]
    lines.append(f"{noise_in_words(plan)}: {plan.no_guarantee or 'guaranteed'}")
    lines.append(f"table: {out / 'table.csv'}   picture: {out / 'accuracy.png'}")
    lines.append(f"runs, with their privacy reports: {out / 'runs'}")
    return "\n".join(lines)


def noise_in_words(plan: Any) -> str:
    """Says how much noise there is, and nothing of privacy where there is none."""
    if plan.noise_seed_is_known:
        return f"noise of ε = {plan.nominal_epsilon:.3g}, known seed"
    if plan.no_guarantee:
        return f"privacy: {plan.no_guarantee}"
    return f"user-level ε = {plan.epsilon:.3g} at δ = {plan.delta:g}"


def _spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def main(values: flags.FlagValues) -> int:
    """Runs the demo."""
    from stackoverflow.data import prepared

    started = time.monotonic()
    names = [field.name for field in dataclasses.fields(DemoConfig)]
    config = DemoConfig(**{name: values[name].value for name in names})
    store = prepared.ensure_store(
        "synthetic", None, os.path.join(config.out, "data"), users=config.users
    )
    if values.only:
        run_all(config, store, only=values.only)
        return 0
    results, plan = run_in_two_processes(config, store)
    print()
    print(report(config, results, plan))
    print(f"{time.monotonic() - started:.0f} s in all")
    return 0


def define_flags(values: flags.FlagValues) -> None:
    """Defines a flag for each field of `DemoConfig`."""
    define = functools.partial(flag_fields.define_one, values)
    define("string", "out", "results/demo", "where everything goes")
    define("integer", "seeds", DemoConfig.seeds, "seeds of each combination")
    define("integer", "rounds", DemoConfig.rounds, "rounds of each run")
    define("integer", "users", DemoConfig.users, "users in the embedded data")
    text = "ε that the noise is made for (known seeds)"
    define("float", "epsilon", DemoConfig.epsilon, text)
    define("enum", "only", "", ["", *TRAININGS], "train these runs, report nothing")


def entry_point() -> None:
    """Runs as the console command `tff-agg-demo`."""
    binaries.run_main(define_flags, main)


if __name__ == "__main__":
    entry_point()
