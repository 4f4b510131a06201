"""A warm start by a flag: the newest model of another run, named in the report."""

import json

import numpy as np
import pytest

from tff_agg.experiment.build import Compiled, build, start
from tff_agg.experiment.run import run as training
from tff_agg.experiment.run.run_folder import RunFolder

STARTS = "The weights that training starts from owe nothing to the protected data"


def assumed(folder):
    report = json.loads((folder / "privacy_report.json").read_text())
    (line,) = (text for text in report["assumed"] if text.startswith(STARTS))
    return line


def test_a_run_starts_at_another_ones_model_and_its_report_says_so(
    make_task, cache, tmp_path
):
    first = make_task(rounds=2, insecure_noise_seed=None)
    training.run(first, tmp_path / "first", compiled=cache)
    second = make_task(
        rounds=2, insecure_noise_seed=None, start_from=str(tmp_path / "first")
    )
    training.run(second, tmp_path / "second", compiled=cache)
    end = RunFolder(tmp_path / "first").store.load(2, "aggregate")
    begin = RunFolder(tmp_path / "second").store.load(0, "iterate")
    assert list(begin) == list(end)
    for name, array in begin.items():
        np.testing.assert_array_equal(array, end[name])
    assert "drawn at random" in assumed(tmp_path / "first")
    text = assumed(tmp_path / "second")
    epsilon = RunFolder(tmp_path / "first").epsilon
    assert "this does not hold here: they are the newest model of the run first" in text
    assert f"on these very data with ε = {epsilon:.4g}" in text


def test_what_is_said_depends_on_what_the_other_run_was(make_task, tmp_path):
    task = make_task(start_from=str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"data_fingerprint": "other"}))
    assert "was trained on other data" in start.in_words(task)
    same = {"data_fingerprint": task.fingerprint}
    (tmp_path / "config.json").write_text(json.dumps(same))
    assert "WITHOUT a guarantee" in start.in_words(task)


def test_what_is_no_run_or_another_model_is_refused(make_task, cache, tmp_path):
    with pytest.raises(ValueError, match=r"start_from=.*: is no folder of a run"):
        start.first_weights(make_task(start_from=str(tmp_path)))
    small = make_task(rounds=2, lstm_size=3)
    training.run(small, tmp_path / "small", compiled=cache)
    other = make_task(start_from=str(tmp_path / "small"))
    with pytest.raises(ValueError, match=r"start_from=.*: weights of stackoverflow"):
        build(other, Compiled()).initialize()
