"""The demo: does training on averaged checkpoints help at one ε? `make demo`.

Generates the embedded data and trains the private baseline (the last checkpoint) and
uniform tail averaging, with and without a periodic shift between questions and
answers, over several seeds. Prints one table and draws one picture. Every run is a
folder that resumes: stop the demo and start it again.
"""

import csv
import dataclasses
import itertools
import math
import os
import pathlib
import statistics
import time
from typing import Any

from absl import app, flags

from stackoverflow import config as configs

SETTINGS: dict[str, dict[str, Any]] = {
    "original": {},
    "periodic shift": {"pds": True, "pds_period": 40},
}
# Both methods were given the better of two server learning rates, 1 and 3 for the
# baseline and twice these for UTA: a step from the mean of three moves half as far.
METHODS: dict[str, dict[str, Any]] = {
    "DP-FTRL baseline": {"averager": "last", "server_learning_rate": 1.0},
    "UTA_tr, k=3": {"averager": "uta", "k": 3, "server_learning_rate": 2.0},
}


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    """The sizes of the demo.

    Attributes:
      out: Where data, runs, table and picture go.
      seeds: How many seeds each of the four combinations is trained with.
      rounds: Training rounds of each run.
      users: Users in the embedded data.
      epsilon: The ε of every run.
    """

    out: str
    seeds: int = 3
    rounds: int = 100
    users: int = 8000
    epsilon: float = 8.0

    def __post_init__(self):
        if self.seeds < 1 or self.rounds < 1:
            raise ValueError(
                f"seeds and rounds must be at least 1; got {self.seeds}, {self.rounds}"
            )

    def run_config(
        self, store: str, setting: str, method: str, seed: int
    ) -> configs.TrainConfig:
        """Returns the configuration of one run."""
        return configs.TrainConfig(
            store=store,
            seed=seed,
            # Known noise seeds make the demo's table the same wherever it runs. The
            # data are made up: there is nobody to protect.
            insecure_noise_seed=1000 + seed,
            rounds=self.rounds,
            clients_per_round=50,
            max_sentences=64,
            embedding_size=24,
            lstm_size=48,
            client_learning_rate=0.5,
            server_momentum=0.9,
            clip_norm=0.5,
            epsilon=self.epsilon,
            evaluate_every=5,
            validation_sentences=1500,
            test_sentences=3000,
            state_every=50,
            **SETTINGS[setting],
            **METHODS[method],
        )


def run_all(config: DemoConfig, store: str) -> dict[tuple[str, str], list[Any]]:
    """Trains every combination; returns the runs' outcomes by setting and method."""
    from stackoverflow import terminal, training, workshop

    outcomes: dict[tuple[str, str], list[Any]] = {}
    shared = workshop.Workshop()
    jobs = list(itertools.product(SETTINGS, METHODS, range(config.seeds)))
    for number, (setting, method, seed) in enumerate(jobs, start=1):
        label = f"{number:2}/{len(jobs)} {setting}, {method}, seed {seed}"
        name = "".join(c if c.isalnum() else "_" for c in f"{setting} {method} {seed}")
        outcome = training.run(
            config.run_config(store, setting, method, seed),
            pathlib.Path(config.out) / "runs" / name,
            terminal.ProgressBar(config.rounds, label, show_plan=number == 1),
            workshop=shared,
        )
        outcomes.setdefault((setting, method), []).append(outcome)
    shared.close()
    return outcomes


def rows_of(outcomes: dict[tuple[str, str], list[Any]]) -> list[list[str]]:
    """Returns the table: test accuracy of the broadcast model, over seeds."""
    baseline_name = next(iter(METHODS))
    rows = []
    for (setting, method), runs in outcomes.items():
        found = [100 * run.test["aggregate"]["all"]["accuracy"] for run in runs]
        base = [
            100 * run.test["aggregate"]["all"]["accuracy"]
            for run in outcomes[setting, baseline_name]
        ]
        gains = [a - b for a, b in zip(found, base, strict=True)]
        rows.append(
            [
                setting,
                method,
                f"{statistics.mean(found):.2f} ± {_spread(found):.2f}",
                "" if method == baseline_name else f"{statistics.mean(gains):+.2f}",
                "" if method == baseline_name else f"{_spread(gains):.2f}",
                ""
                if method == baseline_name
                else f"{sum(gain > 0 for gain in gains)} of {len(gains)}",
            ]
        )
    return rows


def verdict(outcomes: dict[tuple[str, str], list[Any]]) -> list[str]:
    """Says for each setting whether the gain stands clear of the seeds' spread."""
    baseline_name, *others = METHODS
    lines = []
    for setting, method in itertools.product(SETTINGS, others):
        gains = [
            100
            * (
                one.test["aggregate"]["all"]["accuracy"]
                - other.test["aggregate"]["all"]["accuracy"]
            )
            for one, other in zip(
                outcomes[setting, method], outcomes[setting, baseline_name], strict=True
            )
        ]
        if len(gains) < 3:
            lines.append(f"{setting}: {len(gains)} seeds are too few to tell.")
            continue
        mean, error = statistics.mean(gains), _spread(gains) / math.sqrt(len(gains))
        clear = abs(mean) > 2 * error
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


def report(config: DemoConfig, outcomes: dict[tuple[str, str], list[Any]]) -> str:
    """Writes the CSV and the picture; returns the table for the terminal."""
    from stackoverflow import figures, terminal
    from tff_agg import tables

    out = pathlib.Path(config.out)
    rows = rows_of(outcomes)
    temporary = out / "table.csv.new"
    with open(temporary, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEADER, *rows])
    os.replace(temporary, out / "table.csv")
    panels: dict[str, dict[str, figures.Curve]] = {}
    for (setting, method), runs in outcomes.items():
        where = {"weights": "aggregate", "group": "all"}
        found = [
            tables.read_columns(run.folder / "validation.csv", where) for run in runs
        ]
        curve = figures.Curve(found[0]["round"], [f["accuracy"] for f in found])
        panels.setdefault(setting, {})[method] = curve
    plan = next(iter(outcomes.values()))[0].plan
    figures.accuracy_curves(
        out / "accuracy.png",
        panels,
        title=f"user-level ε = {plan.epsilon:.3g} at δ = {plan.delta:g}; "
        f"mean and standard deviation over {config.seeds} seeds",
    )
    lines = [terminal.table(HEADER, rows), "", *verdict(outcomes), ""]
    lines.append(f"table: {out / 'table.csv'}   picture: {out / 'accuracy.png'}")
    lines.append(f"runs, with their privacy reports: {out / 'runs'}")
    return "\n".join(lines)


def _spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def main(argv: list[str]) -> int:
    """Runs the demo."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    from stackoverflow import stores, terminal

    started = time.monotonic()
    with terminal.plain_errors():
        names = [field.name for field in dataclasses.fields(DemoConfig)]
        config = DemoConfig(**{name: getattr(flags.FLAGS, name) for name in names})
        store = stores.ensure_store(
            "synthetic", None, os.path.join(config.out, "data"), users=config.users
        )
        outcomes = run_all(config, store)
        print()
        print(report(config, outcomes))
        print(f"{time.monotonic() - started:.0f} s in all")
    return 0


def define_flags() -> None:
    """Defines a flag for each field of `DemoConfig`."""
    flags.DEFINE_string("out", "results/demo", "where everything goes")
    flags.DEFINE_integer("seeds", DemoConfig.seeds, "seeds of each combination")
    flags.DEFINE_integer("rounds", DemoConfig.rounds, "rounds of each run")
    flags.DEFINE_integer("users", DemoConfig.users, "users in the embedded data")
    flags.DEFINE_float("epsilon", DemoConfig.epsilon, "ε of every run")


def entry_point() -> None:
    """Runs as the console command `tff-agg-demo`."""
    from stackoverflow import terminal

    terminal.run_binary(main, define_flags)


if __name__ == "__main__":
    entry_point()
