"""Runs in memory pass the weights that a saved run would keep."""

import numpy as np

from stackoverflow.task import StackOverflow
from tff_agg.experiment.build import build, rounds
from tff_agg.experiment.run import run as training
from tff_agg.experiment.runs import Run


def test_what_is_trained_in_memory_is_what_would_be_saved(make_task, cache, tmp_path):
    task = make_task()
    training.run(task, tmp_path / "run", compiled=cache)
    run = Run.open(StackOverflow, tmp_path / "run")
    passing = list(rounds(build(task, cache)))
    assert [passed.round for passed in passing] == run.rounds()[1:]
    for number, *both in passing:
        for name, weights in zip(("iterate", "aggregate"), both, strict=True):
            saved = run.load(number, name)
            assert all(np.array_equal(saved[key], weights[key]) for key in saved)
