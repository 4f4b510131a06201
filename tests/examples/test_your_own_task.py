"""The tutorial of docs/your_own_task.md holds: its code and its commands."""

import json
import pathlib
import re
import shlex

import numpy as np
import pytest

from examples.emnist import data
from examples.emnist.task import Emnist, EmnistConfig
from tests import command_lines
from tff_agg.experiment.build import Compiled
from tff_agg.experiment.commands import evaluate, uncertainty
from tff_agg.experiment.run import run as training
from tff_agg.experiment.runs import Run
from tff_agg.experiment.study.search import perform
from tff_agg.recycling.methods import parse_methods

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/your_own_task.md").read_text()
SMALL = {
    "writers": 60,
    "rounds": 4,
    "clients_per_round": 5,
    "batch_size": 10,
    "client_learning_rate": 0.3,
    "server_learning_rate": 1.0,
    "epsilon": 8.0,
    "evaluate_every": 2,
    "validation_examples": 200,
    "test_examples": 200,
}


def test_the_page_shows_the_code_that_is_there():
    shown = re.findall(r"`(examples/\S+\.py)`:\n\n```python\n(.*?)\n```", PAGE, re.S)
    assert [path for path, _ in shown] == [
        "examples/emnist/task.py",
        "examples/emnist/__main__.py",
    ]
    for path, code in shown:
        assert code == (ROOT / path).read_text().rstrip(), path


def test_every_command_of_the_page_is_one_that_there_is():
    block = re.search(r"```sh\n(.*?)```", PAGE, re.S).group(1).replace("\\\n", " ")
    lines = re.findall(r"python -m examples\.emnist (\w+) (.*)", block)
    assert [name for name, _ in lines] == [
        "train",
        "train",
        "evaluate",
        "uncertainty",
    ]
    for name, arguments in lines:
        given = shlex.split(arguments.replace("$seed", "0"))
        read = command_lines.options(Emnist, name, *given)
        if name == "train":
            assert read[1].rounds == 50


def test_writers_of_different_splits_share_no_image():
    splits = {name: data.make_writers(name, 40) for name in data.SPLITS}
    seen = {
        # Places and contrasts differ from writer to writer; what is drawn does not.
        name: {tuple(np.sort(i.ravel() / i.max())) for w in found for i in w.images}
        for name, found in splits.items()
    }
    assert not seen["train"] & seen["heldout"] and not seen["train"] & seen["test"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("digits")
    with Compiled() as cache:
        for seed in range(2):
            config = EmnistConfig(**SMALL, seed=seed, pds=True, pds_period=2)
            training.run(Emnist(config), root / str(seed), compiled=cache)
    return [str(root / str(seed)) for seed in range(2)]


@pytest.mark.slow
def test_it_trains_under_a_shift_and_reports_its_guarantee(folders):
    report = json.loads((pathlib.Path(folders[0]) / "privacy_report.json").read_text())
    assert report["guarantee"]["epsilon"] <= 8
    assert "takes part in at most one round" in json.dumps(report)
    header, *rows = (pathlib.Path(folders[0]) / "metrics.csv").read_text().splitlines()
    assert "even_clients" in header.split(",") and len(rows) == 4
    run = Run.open(Emnist, folders[0])
    assert list(run.load(4)) == list(run.task.shapes)
    assert run.load(4)["0_conv2d/kernel"].shape == (3, 3, 1, 8)


@pytest.mark.slow
def test_its_checkpoints_are_recycled_and_give_error_bars(folders, tmp_path):
    options = evaluate.EvaluateOptions(
        runs=tuple(folders), out=str(tmp_path), examples=200,
        methods=parse_methods("uta:2,3 opa:2 omv:2 ema:0.5"),
    )  # fmt: skip
    results = perform(evaluate.declare(Emnist, options), tmp_path)
    assert len(results.lines) == 6
    for line in results.lines:
        assert all(0 <= value <= 1 for value in results.values(line))
    last = results.lines[0]
    found = Run.open(Emnist, folders[0]).scorer("heldout", 200)
    other = Run.open(Emnist, folders[1]).scorer("heldout", 200)
    values = [
        score(Run.open(Emnist, folder).load(4, "aggregate"))["accuracy"]
        for score, folder in zip((found, other), folders, strict=True)
    ]
    assert results.values(last) == pytest.approx(values)
    widths = uncertainty.run(
        Emnist,
        uncertainty.UncertaintyConfig(
            runs=tuple(folders), out=str(tmp_path), sizes=(2,), repeats=2, examples=100
        ),
    )
    independent = widths.widths.independent
    assert independent.shape == (2, 1) and (independent > 0).all()
