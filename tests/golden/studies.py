"""Figures of every study at a size of seconds, in one form: golden.csv files.

    python -m tests.golden.studies --out=tests/golden STUDY …

A row is one value: of which line (and method), seed, split, round, metric. The files
here were written by the code before there was one way to make a study; the tests in
this folder compare what the studies give today, digit for digit.
"""
# Sizes are put into modules from outside.
# mypy: ignore-errors

import csv
import io
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

COLUMNS = ("line", "seed", "split", "round", "metric", "value")
Row = tuple[str, int, str, str, str, str]


def write(path: pathlib.Path, rows: list[Row]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(sorted(rows))
    path.write_text(text.getvalue())


def row(line, seed, split, number, metric, value) -> Row:
    text = repr(float(value)) if isinstance(value, int | float) else str(value)
    return (line, seed, split, str(number), metric, text)


_KINDS = {"UTA_inf": "uta", "EMA_inf": "ema", "PDA": "pda", "OPA": "opa", "OMV": "omv"}


def _method(name: str, parameter: float | None) -> str:
    if name == "EMA_baseline":
        return "ema:0.9999"
    return name if parameter is None else f"{_KINDS[name]}:{parameter:g}"


# CIFAR: runs in lockstep, on made-up images.


def cifar(tmp: pathlib.Path) -> Iterator[Row]:
    from benchmarks import cifar_arms as arms
    from benchmarks import cifar_table
    from tff_agg.recycling import inference

    small = {
        "dataset": "cifar10",
        "synthetic": True,
        "batch_size": 256,
        "pds_period": 4,
    }
    level = arms.Level(
        8, 0.5, (4, 8), (1, 2),
        inference.Grid(uta=(2, 3, 5), outputs=(2, 3), ema=(0.5, 0.8)), 4, small,
    )  # fmt: skip
    arms.LEVELS = {"tiny": level}
    arms.ALL_LEVELS = {"tiny": level}
    arms.CANDIDATES = {
        ("tiny", task): {
            arms.BASELINE: [arms.plain(1.0), arms.plain(4.0)],
            arms.EMA: [arms.ema(1.0, 0.5, 4), arms.ema(2.0, 0.8, 4)],
            arms.UTA: [arms.uta(1.0, 3, 5), arms.uta(2.0, 2, 5)],
        }
        for task in (arms.ORIGINAL, arms.SHIFT)
    }
    study = cifar_table.Study(tmp, "", range(2))
    for task in (arms.ORIGINAL, arms.SHIFT):
        lines = study.lines("tiny", task, study.seeds)
        for line, facts in lines.items():
            name = f"tiny {task}: {line}"
            words = cifar_table._words(facts["settings"])
            yield row(name, 0, "", "", "settings", words)
            for method, cell in facts["cells"].items():
                at = cell["parameter"]
                if at is not None:
                    chosen = _method(method, at)
                    yield row(f"{name}/{method}", 0, "", "", "chosen", chosen)
                for seed, value in enumerate(cell["test"]):
                    yield row(f"{name}/{method}", seed, "test", "8", "accuracy", value)
            if line.startswith(arms.BASELINE):
                bundle = study.judged("tiny", task, 0)
                for step, last, mean in bundle.scores(facts["settings"])["curve"]:
                    for method, value in (("last", last), ("uta:50", mean)):
                        yield row(
                            f"{name} curve {method}", 0, "heldout", step, "accuracy",
                            value,
                        )  # fmt: skip
        every = [
            o for several in arms.CANDIDATES["tiny", task].values() for o in several
        ]
        tuned = study.bundle("tiny", task, every, cifar_table.TUNING_SEED)
        for one in every:
            for key, value in tuned.scores(one)["scores"]["heldout"].items():
                method, _, parameter = key.partition(" ")
                at = float(parameter) if parameter else None
                made = key if key in ("trained", "last") else _method(method, at)
                name = f"tiny {task}: {cifar_table._words(one)}/{made}"
                yield row(name, 100, "heldout", "8", "accuracy", value)


# pCVR: runs in memory, on made-up clicks.


def pcvr(tmp: pathlib.Path) -> Iterator[Row]:
    import pyarrow.parquet as pq

    from benchmarks import pcvr_table as old
    from pcvr import synthetic
    from tff_agg.recycling import inference

    pq.write_table(synthetic.clicks(3000), tmp / "clicks.parquet")
    old.STEPS, old.BATCH, old.EXAMPLES = 16, 100, 200
    old.KEEP_LAST, old.KEEP_EVERY = 6, 2
    old.SEEDS = (0, 1)
    old.ARMS = {
        old.BASELINE: [{"learning_rate": rate} for rate in (2.0, 4.0)],
        "EMA_tr": [old._ema(0.5, 4, 0), old._ema(0.9, 4, 8)],
        "UTA_tr": [old._uta(3, 4, 0), old._uta(3, 4, 8)],
    }
    old.GRID = inference.Grid(
        uta=(3, 6), outputs=(2, 4), ema=(0.5, 0.8), baseline=False, votes=False
    )
    old.PROBE = inference.Grid(uta=(3,), outputs=(2,), baseline=False, votes=False)
    made = old.study(str(tmp / "clicks.parquet"), str(tmp / "out"))
    for found in made:
        values = [v for k, v in found.items() if k.startswith("run")]
        tuning = found["part"] == "tuning"
        for seed, value in enumerate(values, 100 if tuning else 0):
            split = "heldout" if tuning else "test"
            line = f"{found['part']}/{found['arm']} {_candidate(found)}"
            yield row(line, seed, split, "16", "auc_loss", value)


def _candidate(found: dict[str, Any]) -> str:
    what = found["candidate"]
    if not isinstance(what, dict):
        return str(float(what))
    left_out = ("noise_multiplier",)
    return " ".join(f"{k}={v}" for k, v in what.items() if k not in left_out)


STUDIES = {one.__name__: one for one in (cifar, pcvr)}


def main(arguments: list[str]) -> None:
    out = pathlib.Path(arguments[0].removeprefix("--out="))
    for name in arguments[1:] or STUDIES:
        with tempfile.TemporaryDirectory() as tmp:
            write(out / f"{name}.csv", list(STUDIES[name](pathlib.Path(tmp))))


if __name__ == "__main__":
    main(sys.argv[1:])
