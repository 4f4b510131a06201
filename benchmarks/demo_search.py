"""Chooses the demo's hyperparameters: on validation, with seeds that the demo has not.

    python -m benchmarks.demo_search --out=results/demo_search

Every arm has a grid of six candidates, and every candidate is trained with the same
seeds in the same settings at the demo's sizes. A candidate's score is its mean accuracy
on the validation sample over the last period of the shift, so that no phase of it
counts more than another. The baseline's runs are judged twice: by their iterates, and
by the mean of their last checkpoints (UTA_inf). The test sample is left alone.

Nothing is saved but the table: a row for each finished run, from which a stopped search
goes on.
"""

import csv
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import flags

from stackoverflow import demo_runs
from stackoverflow.task import StackOverflow, StackOverflowConfig
from tff_agg.experiment import binaries, in_memory
from tff_agg.experiment.commands import flags as flag_fields

FIRST_SEED = 100  # the demo has 0, 1, 2, …


def _grid(names: str, *rows: tuple[Any, ...], **fixed: Any) -> list[dict[str, Any]]:
    return [fixed | dict(zip(names.split(), row, strict=True)) for row in rows]


_RATE = "server_momentum server_learning_rate"
# Rates are a factor of two apart.
_BESIDE_MOMENTUM = ((0.9, 0.25), (0.9, 0.5), (0.9, 1.0))
_WITHOUT_MOMENTUM = ((0.0, 2.5), (0.0, 5.0), (0.0, 10.0))
GRIDS: Mapping[str, list[dict[str, Any]]] = {
    "baseline": _grid(
        _RATE,
        *((0.9, 0.25), (0.9, 0.5), (0.9, 1.0)),
        *((0.95, 0.125), (0.95, 0.25), (0.95, 0.5)),
        averager="last",
    ),
    "schedule-free": _grid(
        "server_learning_rate gamma",
        *itertools.product((2.0, 4.0, 8.0), (2.0, 6.0)),
        averager="schedule_free",
        step_from="iterate",
        server_momentum=0.0,
    ),
    "UTA_tr": _grid(_RATE, *_BESIDE_MOMENTUM, *_WITHOUT_MOMENTUM, averager="uta", k=3),
    "EMA_tr": _grid(
        _RATE, *_BESIDE_MOMENTUM, *_WITHOUT_MOMENTUM, averager="ema", ema_decay=0.5
    ),
}
COLUMNS = ("arm", "setting", "seed", "candidate", "broadcast", "recycled")


def score(config: StackOverflowConfig, cache: Any) -> tuple[float, float]:
    """Trains a candidate; returns what it broadcasts and UTA_inf come to, in %."""
    k = demo_runs.INFERENCE_K
    judging = in_memory.Judging((k,), tuple(demo_runs.judged_rounds(config)))
    task = StackOverflow(config)
    found = in_memory.score(task, judging, in_memory.train(task, cache)).values
    models = (in_memory.BROADCAST, in_memory.recycled(k))
    broadcast, recycled = (100 * found[model]["accuracy"] for model in models)
    return broadcast, recycled


def search(
    sizes: demo_runs.DemoConfig,
    store: str,
    table: pathlib.Path,
    seeds: int,
    arms: list[str],
) -> None:
    """Trains what the table does not have yet, and adds a row for each run."""
    from tff_agg.experiment.build import Compiled

    if not table.exists():
        table.write_text(",".join(COLUMNS) + "\n")
    done = {tuple(row[:4]) for row in _rows(table)}
    for arm in arms:
        for candidate in GRIDS[arm]:
            cache = Compiled()
            for setting, seed in itertools.product(
                sizes.setting_names, range(FIRST_SEED, FIRST_SEED + seeds)
            ):
                key = (arm, setting, str(seed), in_words(candidate))
                if key in done:
                    continue
                config = dataclasses.replace(
                    sizes.sizes(store, setting, seed), test_examples=0, **candidate
                )
                scores = [f"{value:.2f}" for value in score(config, cache)]
                with open(table, "a", newline="") as file:
                    csv.writer(file).writerow([*key, *scores])
                print(*key, *scores, flush=True)
            cache.close()


def in_words(candidate: Mapping[str, Any]) -> str:
    """Names a candidate by its numbers."""
    numbers = {k: v for k, v in candidate.items() if not isinstance(v, str)}
    return " ".join(f"{name}={value:g}" for name, value in numbers.items())


def summary(table: pathlib.Path) -> list[list[str]]:
    """Returns a row for each candidate and setting: means over seeds, the best marked.

    A mark is for the best of an arm's six in that setting, by what is used: `*` by the
    broadcast model, `+` by the mean of the last checkpoints.
    """
    scores: dict[tuple[str, str], dict[str, list[list[float]]]] = {}
    for arm, setting, _, candidate, *values in _rows(table):
        of_arm = scores.setdefault((arm, setting), {})
        of_arm.setdefault(candidate, []).append([float(v) for v in values])
    rows = []
    for (arm, setting), of_arm in scores.items():
        means = {c: np.mean(found, axis=0) for c, found in of_arm.items()}
        highest = np.max(list(means.values()), axis=0)
        for candidate, mean in means.items():
            cells = [
                f"{value:.2f}{mark if value == best else ''}"
                for value, best, mark in zip(mean, highest, "*+", strict=True)
            ]
            seeds = str(len(of_arm[candidate]))
            rows.append([arm, setting, candidate, *cells, seeds])
    return rows


def _rows(table: pathlib.Path) -> list[list[str]]:
    with open(table, newline="") as file:
        return list(csv.reader(file))[1:]


def main(values: flags.FlagValues) -> int:
    """Searches and prints the table."""
    from stackoverflow.data import prepared
    from tff_agg.experiment import terminal

    out = pathlib.Path(values.out)
    out.mkdir(parents=True, exist_ok=True)
    sizes = demo_runs.DemoConfig(
        out=str(out), rounds=values.rounds, settings=values.settings
    )
    store = prepared.ensure_store(
        "synthetic", None, str(out / "data"), users=sizes.users, words=sizes.words
    )
    arms = values.arms.split(",") if values.arms else list(GRIDS)
    table = out / "demo_search.csv"
    search(sizes, store, table, values.seeds, arms)
    header = ["arm", "setting", "candidate", "broadcast %", "UTA_inf %", "seeds"]
    print(terminal.table(header, summary(table)))
    return 0


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the binary."""
    define = functools.partial(flag_fields.define_one, values)
    define("string", "out", "results/demo_search", "where data and table go")
    define("integer", "seeds", 2, f"seeds of each candidate, from {FIRST_SEED} on")
    define("integer", "rounds", demo_runs.DemoConfig.rounds, "rounds of each run")
    text = f"with commas, of: {', '.join(demo_runs.SETTINGS)}"
    define("string", "settings", demo_runs.DemoConfig.settings, text)
    define("string", "arms", "", f"of {', '.join(GRIDS)}, with commas; all if empty")


if __name__ == "__main__":
    binaries.run_main(define_flags, main)
