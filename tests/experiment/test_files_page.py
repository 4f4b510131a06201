"""docs/files.md defines every file of a run folder and every column of its tables."""

import pathlib
import re

import pytest

from stackoverflow.task import StackOverflow
from tests.experiment.train_binary import tiny_config
from tff_agg.experiment.config import TrainConfig
from tff_agg.experiment.run import run as training
from tff_agg.experiment.run import tables

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "files.md").read_text()
NAMED = set(re.findall(r"`([^`]+)`", PAGE))


@pytest.fixture(scope="module")
def run(token_store, cache, tmp_path_factory):
    config = tiny_config(token_store, evaluate_every=3, pds=True, pds_period=4)
    folder = tmp_path_factory.mktemp("files") / "run"
    training.run(StackOverflow(config), folder, compiled=cache)
    return folder


def test_every_file_is_defined(run):
    for path in run.iterdir():
        name = f"{path.name}/" if path.is_dir() else path.name
        assert name in NAMED, name


@pytest.mark.parametrize(
    "name", ["metrics.csv", "validation.csv", "test.csv", "timing.csv"]
)
def test_every_column_is_defined(run, name):
    columns = list(tables.read_rows(run / name)[0])
    assert len(columns) > 1
    for column in columns:
        known = column.removeprefix("client_work/train/")
        if known == "tokens":
            assert "`tokens` is how many" in PAGE
            continue
        assert known in NAMED, column


def test_every_metric_is_defined():
    for metric in StackOverflow.metrics:
        assert f"| `{metric.name}` |" in PAGE, metric.name


def test_the_defaults_are_those_of_the_page():
    config = TrainConfig(noise_multiplier=1.0)
    kept = f"`--keep_last={config.keep_last} --keep_every={config.keep_every}`"
    assert kept in PAGE
