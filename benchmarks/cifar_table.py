r"""The paper's CIFAR tables from runs of one's own: trains, tunes, prints.

    python -m benchmarks.cifar_table --rows=c100_baseline_eps1,c100_uta_eps1 \
        --learning_rates=2,4,8 --seeds=5 --out=results/cifar

For every row (a flag file of cifar/configs): one run for each learning rate, under
seed 100, judged on validation data; then `--seeds` runs at the best one, all steps. For
inference, parameters are chosen on validation data over all seeds; the test data are
scored once, at the chosen ones. All runs share one process; start the same command
again to go on. Writes table.json to --out.
"""

import dataclasses
import json
import pathlib
import statistics
import time
from typing import Any

from absl import flags

from benchmarks import own_flags
from cifar.task import Cifar, CifarConfig
from tff_agg import files
from tff_agg.experiment import flag_fields, process_cache, recording, tables, terminal
from tff_agg.experiment.drivers import evaluate, train
from tff_agg.recycling import inference

_FLAGS = own_flags.OwnFlags()
_ROWS = _FLAGS.list("rows", ["c100_baseline_eps1"], "Flag files of cifar/configs.")
_RATES = _FLAGS.list("learning_rates", [], "To choose from; none: the row's own.")
_SEEDS = _FLAGS.integer("seeds", 5, "Runs of each row.")
_MORE = _FLAGS.list("more", [], "Further flags of cifar.train for all runs.")
_OUT = _FLAGS.string("out", "results/cifar", "Folder.")

_CONFIGS = pathlib.Path(__file__).parent.parent / "cifar" / "configs"
_TUNING_SEED = 100
_GRID = inference.Grid(
    uta=(2, 3, 5, 10, 20, 50, 100),
    outputs=(2, 3, 5, 10, 20, 50, 100),
    ema=(0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99),
)
# Every run: the checkpoints that the grid needs, one validation at the end.
_SAVING = ["--keep_last=100", "--keep_every=0", "--evaluate_every=1000000"]


def config_of(row: str, more: list[str]) -> CifarConfig:
    """Returns the configuration of a flag file, with further flags."""
    values = flags.FlagValues()
    flag_fields.define(CifarConfig, values)
    given = [f"--flagfile={_CONFIGS / row}.cfg", *_SAVING, *more]
    values(["cifar.train", *given])
    return flag_fields.read(CifarConfig, values)


class _Clock(recording.Observer):
    """Says when a run is done."""

    def on_end(self, outcome: recording.Outcome) -> None:
        """Prints the score."""
        found = outcome.test["aggregate"].get("all", {})
        print(f"{time.strftime('%H:%M:%S')} {outcome.folder} {found}", flush=True)


class Study:
    """Runs of all rows in one folder."""

    def __init__(self, out: pathlib.Path, more: list[str], rates: list[float]):
        """Takes the folder, flags for all runs, and the learning rates."""
        self._out, self._more, self._rates = out, more, rates
        self._cache = process_cache.ProcessCache()

    def _train(self, config: CifarConfig, name: str) -> pathlib.Path:
        folder = self._out / "runs" / name
        train.run(Cifar(config), folder, _Clock(), cache=self._cache)
        return folder

    def learning_rate(self, row: str) -> tuple[float, dict[float, float]]:
        """Returns the best learning rate on validation data, and what each gave."""
        own = config_of(row, self._more)
        if not self._rates:
            return own.learning_rate, {}
        found = {}
        for rate in self._rates:
            config = dataclasses.replace(
                own, learning_rate=rate, seed=_TUNING_SEED, test_examples=0
            )
            folder = self._train(config, f"{row}/tune_{rate:g}")
            found[rate] = _last(folder)
        return max(found, key=lambda rate: found[rate]), found

    def runs(self, row: str, rate: float, seed: int) -> pathlib.Path:
        """Trains one run of a row."""
        config = dataclasses.replace(
            config_of(row, self._more), learning_rate=rate, seed=seed
        )
        return self._train(config, f"{row}/seed{seed}")

    def scores(self, folders: list[pathlib.Path], name: str) -> dict[str, Any]:
        """Returns mean and deviation on test data, parameters chosen on validation."""
        grid = _GRID if name == "iterate" else inference.Grid(baseline=False)

        def summary(split: str) -> list[dict[str, Any]]:
            config = evaluate.EvaluateConfig(
                runs=tuple(map(str, folders)),
                out=str(self._out),
                grid=grid,
                split=split,
                name=name,
            )
            rows = evaluate.evaluate_runs(Cifar, config)
            return evaluate.summarise(rows, Cifar.metrics[:1])

        best: dict[str, dict[str, Any]] = {}
        for row in summary("heldout"):
            method = row["method"]
            if method not in best or row["accuracy"] > best[method]["accuracy"]:
                best[method] = row
        tested = {(r["method"], r["parameter"]): r["accuracy"] for r in summary("test")}
        return {
            method: {
                "parameter": row["parameter"],
                "test": tested[method, row["parameter"]],
            }
            for method, row in best.items()
        }


def _last(folder: pathlib.Path) -> float:
    """Returns the last validation accuracy of what the run trained on."""
    rows = tables.read_rows(folder / "validation.csv")
    wanted = [r for r in rows if (r["weights"], r["group"]) == ("aggregate", "all")]
    return float(wanted[-1]["accuracy"])


def main(argv: list[str]) -> None:
    """Trains what is missing and prints the table."""
    del argv
    from tff_agg import runtime

    runtime.set_up_tensorflow()
    out = pathlib.Path(_OUT.value)
    study = Study(out, _MORE.value, [float(rate) for rate in _RATES.value])
    chosen = {row: study.learning_rate(row) for row in _ROWS.value}
    for seed in range(_SEEDS.value):
        for row in _ROWS.value:
            study.runs(row, chosen[row][0], seed)
    found = {}
    for row in _ROWS.value:
        folders = [out / "runs" / row / f"seed{seed}" for seed in range(_SEEDS.value)]
        rate, searched = chosen[row]
        seconds = [_seconds(folder) for folder in folders]
        found[row] = {
            "learning_rate": rate,
            "validation_by_learning_rate": searched,
            "seconds_per_run": statistics.fmean(seconds),
            "trained": study.scores(folders, "aggregate")["last"],
            "recycled": study.scores(folders, "iterate"),
        }
    files.write_text(out / "table.json", json.dumps(found, indent=2) + "\n")
    print(table(found))


def _seconds(folder: pathlib.Path) -> float:
    return sum(float(row["seconds"]) for row in tables.read_rows(folder / "timing.csv"))


def table(found: dict[str, Any]) -> str:
    """Lays the figures out, a line for each row."""
    methods = list(dict.fromkeys(m for row in found.values() for m in row["recycled"]))

    def cell(score: dict[str, Any]) -> str:
        mean, spread = score["test"]
        shown = f"{100 * mean:.2f}"
        shown += "" if spread is None else f" ± {100 * spread:.2f}"
        at = score["parameter"]
        return shown if at is None else f"{shown} ({at:g})"

    lines = [
        [name, f"{row['learning_rate']:g}", cell(row["trained"])]
        + [cell(row["recycled"][m]) if m in row["recycled"] else "" for m in methods]
        for name, row in found.items()
    ]
    return terminal.table(["row", "lr", "trained", *methods], lines)


if __name__ == "__main__":
    _FLAGS.run(main)
