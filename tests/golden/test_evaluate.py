"""`evaluate` and `tune` over runs give the figures that they gave before."""

from statistics import fmean

import pytest

from stackoverflow.task import StackOverflow
from tests import tiny_stores
from tests.golden.compare import differences, golden
from tests.recycling.written_runs import write_run
from tff_agg.experiment.commands import evaluate, tune
from tff_agg.experiment.commands.evaluate import EvaluateOptions
from tff_agg.experiment.commands.tune import TuneOptions
from tff_agg.experiment.study.search import perform
from tff_agg.recycling.methods import parse_methods

METRICS = ("accuracy", "accuracy_with_oov", "loss", "perplexity")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """By their folders, what golden figures call runs: their kind and seed."""
    tmp = tmp_path_factory.mktemp("golden")
    store = tiny_stores.make_store(tmp / "data", users=40, words=40)
    runs = {
        write_run(tmp / f"seed{s}", store, s): ("averager=last", str(s))
        for s in range(2)
    }
    other = write_run(tmp / "other", store, 9, averager="uta")
    return runs | {other: ("averager=uta", "9")}


def test_evaluate(written, tmp_path):
    methods = "last uta:1,4 ema:0.5,0.9 ema:0.9999 pda:1 opa:1,3,20 omv:1,3,20"
    options = EvaluateOptions(
        runs=tuple(written), out=str(tmp_path), methods=parse_methods(methods),
        series="iterate", examples=60, span=6, every=3,
    )  # fmt: skip
    results = perform(evaluate.declare(StackOverflow, options), tmp_path)
    figures = {}
    for row in results.frame.iter_rows(named=True):
        if row["group"] == "all" and row["metric"] in METRICS:
            kind, seed = written[row["folder"]]
            line, split, number = f"{kind}/{row['method']}", row["split"], row["round"]
            key = (line, seed, split, str(number), row["metric"])
            figures[key] = repr(row["value"])
    wanted = {k: v for k, v in golden("evaluate").items() if k[0].startswith("aver")}
    assert len(wanted) == 306
    assert differences(figures, wanted) == {}


def test_tune(written, tmp_path):
    options = TuneOptions(
        runs=tuple(r for r, (kind, _) in written.items() if kind == "averager=last"),
        out=str(tmp_path), series="iterate", examples=60,
        methods=parse_methods("uta:2,4,50 opa:2,5 omv:2,5 ema:0.5,0.9,0.9999"),
    )  # fmt: skip
    results = perform(tune.declare(StackOverflow, options), tmp_path)
    figures = {}
    for line in results.lines:
        name = line.name
        if name == tune.BEST:
            for _, method, values in results.candidates(line):
                key = (f"tune/{method}", "0", "heldout", "mean", "accuracy")
                figures[key] = repr(fmean(values))
            continue
        figures[f"tune {name}", "0", "", "", "chosen"] = str(results.chosen[line][1])
        key = (f"tune {name}", "0", "test", "mean", "accuracy")
        figures[key] = repr(fmean(results.values(line)))
    wanted = {k: v for k, v in golden("evaluate").items() if k[0].startswith("tune")}
    assert len(wanted) == 22
    assert differences(figures, wanted) == {}
