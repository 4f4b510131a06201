"""The demo: what do averaged checkpoints gain at the noise of one ε? `make demo`.

Generates the embedded data and trains DP-FTRL and schedule-free training until noise,
not time, limits them, over several seeds. Then it recycles the baseline's checkpoints:
the mean of the last ones (UTA_inf), at no privacy cost. `make demo-full` does so with
and without a periodic shift between questions and answers. Prints one table and draws
one picture. Every run is a folder that resumes: stop the demo and start it again.
"""

import contextlib
import csv
import dataclasses
import functools
import io
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from absl import flags

from stackoverflow import demo_runs
from stackoverflow.demo_runs import BASELINE, Curve, DemoConfig, Job
from stackoverflow.task import StackOverflow
from tff_agg import processes
from tff_agg.experiment import binaries
from tff_agg.experiment.commands import flags as flag_fields
from tff_agg.experiment.study.statistics import gain
from tff_agg.experiment.study.statistics import std as spread
from tff_agg.privacy import Plan

# By setting and method, a curve for each seed.
Results = dict[tuple[str, str], list[Curve]]
Halves = tuple[list[Job], list[Job]]


def halves(config: DemoConfig) -> Halves:
    """Divides the runs between two processes, so that few are compiled in both.

    Rounds of so small a model keep one core busy, not two.
    """
    jobs = config.jobs()
    middle = -(-len(jobs) // 2)
    return jobs[:middle], jobs[middle:]


@contextlib.contextmanager
def second_process(config: DemoConfig) -> Iterator[subprocess.Popen]:
    """Trains the second half of the runs beside this process, and ends with it."""
    pathlib.Path(config.out).mkdir(parents=True, exist_ok=True)
    arguments = [
        f"--{field.name}={getattr(config, field.name)}"
        for field in dataclasses.fields(config)
    ]
    with open(pathlib.Path(config.out) / "second_half.log", "w") as log:
        process = processes.start(
            [sys.executable, "-m", "stackoverflow.demo", *arguments, "--second_half"],
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def run_in_two_processes(config: DemoConfig, store: str) -> tuple[Results, Plan]:
    """Trains one half here and the other beside it, then gathers the results."""
    with second_process(config) as other:
        run_jobs(config, store, halves(config)[0])
        print("Waiting for the runs of the other process.", flush=True)
        other.wait()
    # Resumes, or fails with the reason, where the other process did not finish.
    return gather(config, store)


def run_jobs(
    config: DemoConfig, store: str, jobs: list[Job], *, quiet: bool = False
) -> tuple[dict[Job, dict[bool, Curve]], Plan | None]:
    """Trains and judges runs; returns what they have come to, and a plan."""
    from tff_agg.experiment import terminal
    from tff_agg.experiment.build import Compiled
    from tff_agg.experiment.run import recording

    found = {}
    plan: Plan | None = None
    with Compiled() as shared:
        for number, job in enumerate(jobs, start=1):
            label = f"{number:2}/{len(jobs)} {job.setting}, {job.training}, {job.seed}"
            watched = recording.Observer()
            if not quiet:
                watched = terminal.TrainingBar(
                    StackOverflow.metrics, label, show_plan=number == 1
                )
            folder = pathlib.Path(config.out) / "runs" / job.folder
            run_config = config.run_config(store, job)
            found[job], plan = demo_runs.run_one(run_config, folder, watched, shared)
    return found, plan


def gather(config: DemoConfig, store: str) -> tuple[Results, Plan]:
    """Returns what all runs have come to, by setting and method."""
    found, plan = run_jobs(config, store, config.jobs(), quiet=True)
    assert plan is not None
    results: Results = {}
    for setting in config.setting_names:
        for name in demo_runs.methods(setting):
            method = demo_runs.METHODS[name]
            training = demo_runs.trained_as(setting, method.training)
            results[setting, name] = [
                found[Job(setting, training, seed)][method.recycled]
                for seed in range(config.seeds)
            ]
    return results, plan


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
    for (setting, method), curves in results.items():
        found = [100 * curve.test for curve in curves]
        change = gains(results, setting, method)
        rows.append(
            [
                setting,
                method,
                f"{statistics.mean(found):.2f} ± {spread(found):.2f}",
            ]
            + (
                ["", "", ""]
                if method == BASELINE
                else [
                    f"{statistics.mean(change):+.2f}",
                    f"{spread(change):.2f}",
                    f"{sum(one > 0 for one in change)} of {len(change)}",
                ]
            )
        )
    return rows


def verdict(results: Results) -> list[str]:
    """Returns for each method whether its gain stands clear of the seeds' spread."""
    lines = []
    for setting, method in results:
        if method == BASELINE:
            continue
        own, base = (
            [100 * curve.test for curve in results[setting, name]]
            for name in (method, BASELINE)
        )
        found = gain(own, base)
        so_much = f"{found.mean:+.2f} points"
        place = "stands clear of" if found.clear else "is within"
        if found.clear is None:
            seeds = len(results[setting, method])
            lines.append(f"{setting}: {seeds} seeds are too few to tell.")
            continue
        lines.append(
            f"{setting}: {method} changes the test accuracy by {so_much} (standard "
            f"error {found.error:.2f}, same seeds and clients), which {place} the "
            "spread."
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


def report(config: DemoConfig, results: Results, plan: Plan) -> str:
    """Writes the CSV and the picture; returns the table for the terminal."""
    from tff_agg import files
    from tff_agg.experiment import terminal
    from tff_agg.experiment.study import figures

    out = pathlib.Path(config.out)
    rows = rows_of(results)
    text = io.StringIO()
    csv.writer(text).writerows([HEADER, *rows])
    files.write_text(out / "table.csv", text.getvalue())
    panels: dict[str, dict[str, figures.Curve]] = {}
    for (setting, method), found in results.items():
        curve = figures.Curve(found[0].rounds, [r.validation for r in found])
        panels.setdefault(setting, {})[method] = curve
    best = max(max(c.validation) for curves in results.values() for c in curves)
    figures.curves(
        out / "accuracy.png",
        panels,
        title=f"{noise_in_words(plan)}; mean and standard deviation over "
        f"{config.seeds} seeds; shaded: what the table is about",
        shaded=(max(0, config.rounds - demo_runs.PERIOD), config.rounds),
        bottom=100 * best / 2,  # the climb is not what it is about
    )
    lines = [
        terminal.table(HEADER, rows),
        f"test accuracy: mean over the last {demo_runs.PERIOD} rounds, ± over seeds; "
        f"UTA_inf: mean of the last {demo_runs.INFERENCE_K} checkpoints",
        "",
        f"{noise_in_words(plan)}: {plan.no_guarantee or 'guaranteed'}",
        f"table: {out / 'table.csv'}   picture: {out / 'accuracy.png'}",
        f"runs, with their privacy reports: {out / 'runs'}",
        "",
        *verdict(results),
    ]
    return "\n".join(lines)


def noise_in_words(plan: Plan) -> str:
    """Returns in words how much noise there is; of privacy only where there is some."""
    if plan.noise_seed_is_known:
        return f"noise of ε = {plan.nominal_epsilon:.3g}, known seed"
    if plan.no_guarantee:
        return f"privacy: {plan.no_guarantee}"
    return f"user-level ε = {plan.epsilon:.3g} at δ = {plan.delta:g}"


def main(values: flags.FlagValues) -> int:
    """Runs the demo."""
    from stackoverflow.data import prepared

    started = time.monotonic()
    names = [field.name for field in dataclasses.fields(DemoConfig)]
    config = DemoConfig(**{name: values[name].value for name in names})
    store = prepared.ensure_store(
        "synthetic",
        None,
        os.path.join(config.out, "data"),
        users=config.users,
        words=config.words,
    )
    if values.second_half:
        run_jobs(config, store, halves(config)[1])
        return 0
    results, plan = run_in_two_processes(config, store)
    print(f"\n{time.monotonic() - started:.0f} s in all\n")
    print(report(config, results, plan))
    return 0


def define_flags(values: flags.FlagValues) -> None:
    """Defines a flag for each field of `DemoConfig`."""
    define = functools.partial(flag_fields.define_one, values)
    define("string", "out", "results/demo", "where everything goes")
    text = f"with commas, of: {', '.join(demo_runs.SETTINGS)}"
    define("string", "settings", DemoConfig.settings, text)
    define("integer", "seeds", DemoConfig.seeds, "seeds of each combination")
    define("integer", "rounds", DemoConfig.rounds, "rounds of each run")
    define("integer", "users", DemoConfig.users, "users in the embedded data")
    define("integer", "words", DemoConfig.words, "different words in them")
    text = "ε that the noise is made for (known seeds)"
    define("float", "epsilon", DemoConfig.epsilon, text)
    text = "train the second half of the runs, report nothing"
    define("boolean", "second_half", False, text)


def entry_point() -> None:
    """Runs as the console command `tff-agg-demo`."""
    binaries.run_main(define_flags, main)


if __name__ == "__main__":
    entry_point()
