r"""The paper's pCVR table on the proxy data: AUC-loss and its spread over seeds.

    python -m benchmarks.pcvr_table --data=../shared/data/clicks/sessions.parquet \
        --out=results/pcvr

Every arm has four candidates, chosen on heldout clicks with seeds 100 and 101. The best
of each is trained with seeds 0 to 4 and judged on test clicks. The inference
aggregations use the checkpoints of the chosen baseline. Then comes the baseline without
noise, with more of it, and at a higher rate. The noise seeds are known, so that the
figures can be had again; such runs have no guarantee. Trainer, sampler and aggregations
are the library's, in memory, without run folders. Goes on where it was stopped.
"""

import csv
import io
import json
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from absl import flags

from pcvr.task import Pcvr, PcvrConfig
from tff_agg import files
from tff_agg.experiment import binaries
from tff_agg.experiment.build import Compiled, build
from tff_agg.experiment.commands import flags as flag_fields
from tff_agg.experiment.study import figures
from tff_agg.recycling import inference
from tff_agg.sample.dp_sgd import DPSGDProcess
from tff_agg.server import state as states

PROXY = (
    "a proxy: news sessions stand in for ad clicks, and that the reader went on past "
    "two clicks for a conversion"
)
TUNING_SEEDS, SEEDS = (100, 101), (0, 1, 2, 3, 4)
STEPS, BATCH = 1000, 512
EXAMPLES = 40_000
KEEP_LAST, KEEP_EVERY = 200, 10

Settings = Mapping[str, Any]


def _ema(decay: float, rate: float, start: int) -> Settings:
    rest = {"ema_warm_up": False, "learning_rate": rate, "start_round": start}
    return {"averager": "ema", "ema_decay": decay, **rest}


def _uta(k: int, rate: float, start: int) -> Settings:
    return {"averager": "uta", "k": k, "learning_rate": rate, "start_round": start}


# From the aggregate a step moves (1 − decay) or 2 / (k + 1) as far: the rates of the
# candidates without a later start make up for it.
BASELINE = "DP-SGD"
ARMS: Mapping[str, Sequence[Settings]] = {
    BASELINE: [{"learning_rate": rate} for rate in (2.0, 4.0, 6.0, 8.0)],
    "EMA_tr": [_ema(0.5, 4, 0), _ema(0.9, 20, 0), _ema(0.5, 4, 700), _ema(0.9, 4, 700)],
    "UTA_tr": [_uta(3, 4, 0), _uta(5, 6, 0), _uta(3, 4, 700), _uta(5, 4, 700)],
}
GRID = inference.Grid(
    uta=(10, 50, 100, 200),
    outputs=(10, 25, 50, 100),
    ema=(0.5, 0.8, 0.9, 0.95),
    baseline=False,
    votes=False,
)

PROBE = inference.Grid(uta=(10, 100), outputs=(10, 100), baseline=False, votes=False)


class Study:
    """Runs on one data file; what they score is kept in one folder."""

    def __init__(self, data: str, out: str):
        """Nothing is trained yet."""
        self._data, self.folder = data, pathlib.Path(out)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._cache = Compiled()
        self._read: Pcvr | None = None

    def _task(self, settings: Settings, seed: int) -> Pcvr:
        """Returns the task of a run; the clicks are read once."""
        plain: dict[str, Any] = {
            "data": self._data, "data_note": PROXY, "rounds": STEPS,
            "batch_size": BATCH, "delta": 1e-6, "seed": seed,
            "insecure_noise_seed": seed,
        }  # fmt: skip
        config = PcvrConfig(**plain | dict(settings))
        if self._read is None:
            self._read = Pcvr(config)
            self._read.fingerprint  # noqa: B018  All copies have its digests.
        return self._read.with_config(config)

    def noise(self, epsilon: float) -> float:
        """Returns the noise multiplier of an ε, found once."""
        path = self.folder / f"noise_{epsilon:g}.txt"
        if not path.exists():
            plan = build(self._task({"epsilon": epsilon}, 0), self._cache).plan
            files.write_text(path, repr(plan.noise_multiplier))
        return float(path.read_text())

    def scores(
        self, name: str, settings: Settings, seed: int, split: str, grid: inference.Grid
    ) -> dict[str, Any]:
        """Trains a run and returns AUC-losses; those of an earlier call are read.

        Returns:
          'last' (the model that the run ends with), 'method parameter' for each of the
          grid, and under 'curve' the heldout AUC-loss every 100 steps.
        """
        path = self.folder / f"{name}_{seed}_{split}.json"
        if not path.exists():
            found = self._train(self._task(settings, seed), split, grid)
            files.write_text(path, json.dumps(found, indent=1))
        found = json.loads(path.read_text())
        print(name, seed, split, found["last"], flush=True)
        return found

    def _train(self, task: Pcvr, split: str, grid: inference.Grid) -> dict[str, Any]:
        """Runs the library's trainer in memory, without a run folder."""
        built = build(task, self._cache)
        process = built.process
        assert isinstance(process, DPSGDProcess)
        read = built.clients_of
        state: Any = built.initialize()
        evaluate = task.evaluator()
        heldout, sample = (task.fixed_sample(s, EXAMPLES) for s in ("heldout", split))
        kept: dict[int, Any] = {}
        curve = {}
        for step in range(1, STEPS + 1):
            state = process.next(state, read(step - 1, state).data).state
            if step % KEEP_EVERY == 0 or step > STEPS - KEEP_LAST:
                kept[step] = jax.device_get(states.iterate(state))
            if step % 100 == 0:
                model = jax.device_get(states.aggregate(state))
                curve[step] = evaluate(model, heldout)["all"]["auc_loss"]
        last = evaluate(jax.device_get(states.aggregate(state)), sample)
        found: dict[str, Any] = {"last": last["all"]["auc_loss"], "curve": curve}
        if grid.methods():
            for score in inference.score_grid(
                kept.__getitem__, list(kept), [STEPS], grid,
                score=lambda weights: evaluate(weights, sample)["all"],
                judge=task.judge(), predict=task.predictor(),
                examples=task.flat_sample(sample), classes=task.classes,
            )[1:]:  # fmt: skip
                name = f"{score.method} {score.parameter:g}"
                found[name] = score.values["auc_loss"]
        return found


def study(data: str, out: str) -> list[dict[str, Any]]:
    """Runs everything; returns the rows of the tables, seeds in columns."""
    made = Study(data, out)
    noise = {"noise_multiplier": made.noise(6.0)}
    nothing = inference.Grid(baseline=False)
    rows: list[dict[str, Any]] = []

    def add(part: str, arm: str, what: Any, values: Sequence[float]) -> None:
        print(part, arm, what, [f"{v:.5f}" for v in values], flush=True)
        rows.append({"part": part, "arm": arm, "candidate": what} | {
            f"run{i}": value for i, value in enumerate(values)
        })  # fmt: skip

    def add_all(part: str, runs: Sequence[Mapping[str, Any]]) -> None:
        for key in runs[0]:
            if key not in ("last", "curve"):
                method, parameter = key.split()
                add(part, method, parameter, [run[key] for run in runs])

    chosen: dict[str, Settings] = {}
    for arm, candidates in ARMS.items():
        least = math.inf
        for number, settings in enumerate(candidates):
            name, given = f"tune_{arm}_{number}", noise | dict(settings)
            values = [
                made.scores(name, given, seed, "heldout", nothing)["last"]
                for seed in TUNING_SEEDS
            ]
            add("tuning", arm, dict(settings), values)
            if (mean := statistics.fmean(values)) < least:
                least, chosen[arm] = mean, settings
    given = noise | dict(chosen[BASELINE])
    runs = [
        made.scores("tune_inference", given, seed, "heldout", GRID)
        for seed in TUNING_SEEDS
    ]
    add_all("tuning", runs)
    best = _best(runs)
    only = inference.Grid(
        uta=(int(best["UTA_inf"]),), outputs=(int(best["OPA"]),),
        ema=(best["EMA_inf"],), baseline=False, votes=False,
    )  # fmt: skip
    for arm, settings in chosen.items():
        grid = only if arm == BASELINE else nothing
        runs = [
            made.scores(f"final_{arm}", noise | dict(settings), seed, "test", grid)
            for seed in SEEDS
        ]
        add("ε = 6", arm, dict(settings), [run["last"] for run in runs])
        add_all("ε = 6", runs)
    probes: Mapping[str, Settings] = {
        "no noise": {"noise_multiplier": 0.0},
        "ε = 0.5": {"noise_multiplier": made.noise(0.5)},
        "rate 8": noise | {"learning_rate": 8.0},
    }
    for part, changed in probes.items():
        settings = dict(chosen[BASELINE]) | dict(changed)
        runs = [
            made.scores(f"{part}_{BASELINE}", settings, seed, "test", PROBE)
            for seed in SEEDS
        ]
        add(part, BASELINE, settings, [run["last"] for run in runs])
        add_all(part, runs)
    return rows


def _best(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns each method's parameter with the least mean AUC-loss."""
    found: dict[str, tuple[float, float]] = {}
    for key in runs[0]:
        if key in ("last", "curve"):
            continue
        method, parameter = key.split()
        mean = statistics.fmean(run[key] for run in runs)
        found[method] = min(
            found.get(method, (math.inf, 0.0)), (mean, float(parameter))
        )
    return {method: parameter for method, (_, parameter) in found.items()}


def relative(values: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    """Returns by how many per cent mean and standard deviation are below the base's.

    And t of the mean difference, run by run.
    """
    gains = [b - v for v, b in zip(values, base, strict=True)]
    spread = statistics.stdev(gains)
    error = spread / len(gains) ** 0.5
    return {
        "mean": 100 * statistics.fmean(gains) / statistics.fmean(base),
        "std": 100 * (1 - statistics.stdev(values) / statistics.stdev(base)),
        "t": statistics.fmean(gains) / error if error else 0.0,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Formats the rows on test data, each beside the last iterate of its part."""
    lines = [
        "| part | arm | chosen | AUC-loss (proxy), mean ± std | mean | std | t |",
        "|---|---|---|---|---|---|---|",
    ]
    base: list[float] = []
    for row in rows:
        values = [value for key, value in row.items() if key.startswith("run")]
        if row["part"] == "tuning":
            continue
        shown = f"{statistics.fmean(values):.5f} ± {statistics.stdev(values):.5f}"
        line = f"| {row['part']} | {row['arm']} | {row['candidate']} | {shown} |"
        if row["arm"] == BASELINE:
            base = values
            lines.append(f"{line} | | |")
            continue
        gain = relative(values, base)
        lines.append(
            f"{line} {gain['mean']:+.2f} % | {gain['std']:+.1f} % | {gain['t']:.1f} |"
        )
    return "\n".join(lines)


def draw(out: str) -> None:
    """Draws the AUC-loss on heldout clicks over the steps, for the final runs."""
    curves = {}
    for arm in ARMS:
        found = [
            json.loads((pathlib.Path(out) / f"final_{arm}_{s}_test.json").read_text())
            for s in SEEDS
        ]
        steps = [int(step) for step in found[0]["curve"]]
        values = [list(one["curve"].values()) for one in found]
        curves[arm] = figures.Curve(steps, values)
    figures.curves(
        pathlib.Path(out) / "pcvr.png", {"noise of ε = 6": curves}, Pcvr.metrics[0],
        y_label="AUC-loss on heldout clicks", title="Proxy data: news sessions",
    )  # fmt: skip


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags."""
    flag_fields.define_one(values, "string", "data", None, "the file of clicks")
    flag_fields.define_one(values, "string", "out", "results/pcvr", "where all goes")


def main(values: flags.FlagValues) -> int:
    """Runs the study, writes scores.csv and pcvr.png, prints the table."""
    rows = study(values.data, values.out)
    text = io.StringIO()
    writer = csv.DictWriter(text, max(rows, key=len))
    writer.writeheader()
    writer.writerows(rows)
    files.write_text(pathlib.Path(values.out) / "scores.csv", text.getvalue())
    draw(values.out)
    print(table(rows))
    return 0


if __name__ == "__main__":
    binaries.run_main(define_flags, main)
