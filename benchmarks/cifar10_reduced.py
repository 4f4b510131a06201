r"""CIFAR-10 with a small WideResNet: the paper's arms at a size that two cores can do.

    python -m benchmarks.cifar10_reduced --data_dir=../shared/data --out=results/cifar10

WRN-10-1 in place of WRN-16-4, the images that are there (of five training files those
that are), 100 steps of 128 images. Nothing is tuned: β and k are those of the paper's
rows for ε = 8, the learning rate is 2 as in most of them, τ is two thirds of the run.
The seeds are known, so that the figures can be had again: such runs have no guarantee.
Goes on where it stopped.
"""

import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from benchmarks import cifar_arms as arms
from benchmarks.cifar_lanes import TRAINED, Bundle, Settings, Wanted
from cifar.task import CifarConfig
from tff_agg.experiment import binaries, flag_fields, terminal
from tff_agg.experiment.seed_statistics import spread
from tff_agg.recycling import inference

STEPS, START = 100, 67
GRID = inference.Grid(uta=(10,), outputs=(5,), ema=(0.9,))
COLUMNS = (
    *(TRAINED, "last", "EMA_baseline"),
    *("EMA_inf 0.9", "UTA_inf 10", "OPA 5", "OMV 5"),
)
# The paper's k of the rows for ε = 8.
K = {arms.ORIGINAL: 2, arms.SHIFT: 5}


def settings_of(task: str, rate: float) -> dict[str, Settings]:
    """Returns the arms of a task at a learning rate."""
    return {
        arms.BASELINE: arms.plain(rate),
        arms.EMA: arms.ema(rate, 0.6, START),
        arms.UTA: arms.uta(rate, K[task], START),
    }


def base(task: str, data_dir: str, seed: int) -> dict[str, Any]:
    """Returns what the arms share, as fields of a CifarConfig."""
    shift = {"pds": True, "pds_period": 50} if task == arms.SHIFT else {}
    return {
        "data_dir": data_dir,
        "dataset": "cifar10",
        "model": "wide_resnet",
        "depth": 10,
        "width": 1,
        "rounds": STEPS,
        "batch_size": 128,
        "noise_multiplier": 0.6,
        "seed": seed,
        "insecure_noise_seed": seed,
        **shift,
    }


def table(tests: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Lays the lines out: mean ± standard deviation over seeds, in percent."""

    def cell(values: Sequence[float]) -> str:
        return f"{100 * statistics.fmean(values):.2f} ± {100 * spread(values):.2f}"

    rows = [
        [line, *(cell([found[column] for found in several]) for column in COLUMNS)]
        for line, several in tests.items()
    ]
    return terminal.table(["line", *COLUMNS], rows)


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags."""
    flag_fields.define_one(
        values, "string", "data_dir", "../shared/data", "folder with cifar10/"
    )
    flag_fields.define_one(values, "string", "out", "results/cifar10", "folder")
    flag_fields.define_one(values, "integer", "seeds", 2, "runs of each line")
    flag_fields.define_one(values, "list", "tasks", list(K), "with and without a shift")
    flag_fields.define_one(values, "float", "rate", 2.0, "learning rate of all arms")


def main(values: flags.FlagValues) -> int:
    """Trains what is missing and prints the table."""
    out, tests = pathlib.Path(values.out), {}
    for task in values.tasks:
        settings = settings_of(task, values.rate)
        bundles = [
            Bundle(
                CifarConfig(**base(task, values.data_dir, seed)),
                list(settings.values()),
                out / task,
            )
            for seed in range(values.seeds)
        ]
        for bundle in bundles:
            bundle.run(Wanted(GRID, ("test",)), lambda text: print(text, flush=True))
        for arm, one in settings.items():
            found = [bundle.scores(one)["scores"]["test"] for bundle in bundles]
            tests[f"{task}, {arm}"] = found
    print(table(tests))
    return 0


if __name__ == "__main__":
    binaries.run_main(define_flags, main, needs_tensorflow=False)
