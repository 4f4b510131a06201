"""Fine-tuning from the last iterate of a pre-training, and from an average of it."""

import dataclasses
import types

import numpy as np
import pytest

from cifar import data, features
from cifar.data import synthetic
from cifar.studies import pretraining
from cifar.task import Cifar
from tests.study.tiny_studies import Told
from tff_agg.experiment.run import run as training
from tff_agg.experiment.runs import Run
from tff_agg.experiment.study.search import perform


def test_fine_tuning_from_the_average_stands_beside_that_from_the_last(
    monkeypatch, tmp_path
):
    options = pretraining.Pretraining(out=str(tmp_path), epsilons=(1.0,), seeds=3)
    declared = pretraining.declare(options)
    monkeypatch.setattr(Cifar, "open_data", lambda self: synthetic("cifar10", (8,)))

    # A network for each seed, whose average's features are two points better.
    def told(config, *_):
        better = 0.02 * ("EMA" in config.features)
        return 0.5 + better + 0.01 * config.learning_rate + 0.03 * config.seed

    train = Told(told)
    found = perform(dataclasses.replace(declared, train=train), tmp_path)
    folders = {config.data_dir for config, _ in train.asked}
    assert len(folders) == 4  # One is for the choice of the rate.
    table = pretraining.report(options, found).tables["pretraining"]
    rows = [list(map(str, row)) for row in table.rows]
    assert [row[:3] for row in rows] == [
        [f"ε = 1, {schedule} rate", model, "4"]
        for schedule in ("constant", "cosine")
        for model in ("last iterate", "EMA")
    ]
    assert [row[-1] for row in rows] == ["", "+2.00 ± 0.00"] * 2
    with pytest.raises(ValueError, match="8 networks are not pre-trained yet"):
        dataclasses.replace(options, dry_run=True).prepared()


def test_networks_are_pretrained_on_public_images_and_shown_the_others(
    monkeypatch, tmp_path
):
    trained = []

    def train(task, folder, compiled):
        trained.append((task.config.rate_schedule, task.config.seed))
        assert {label % 2 for label in task.training_arrays()[1]} == {0}
        assert task.config.noise_multiplier == 0
        folder.mkdir(parents=True)

    def opened(task_class, folder, bind):
        assert folder.is_dir()
        return types.SimpleNamespace(config=options.network("constant", 0))

    def frozen(run, method):
        return lambda images: images.mean((1, 2)) / 64 * (method.value or 1)

    monkeypatch.setattr(training, "run", train)
    monkeypatch.setattr(Run, "open", opened)
    monkeypatch.setattr(features, "of_run", frozen)
    options = pretraining.Pretraining(out=str(tmp_path), synthetic=True, seeds=1)
    assert options.prepared() == options.prepared()
    both = [
        (schedule, seed) for seed in (100, 0) for schedule in ("constant", "cosine")
    ]
    assert trained == both
    written = tmp_path / "features" / "seed0" / "cifar10"
    last, ema = (
        data.features(written / f"cosine_{name}.npz")
        for name in ("last_iterate", "EMA")
    )
    assert {label % 2 for label in last.train.labels} == {1}
    assert last.train.features.shape == (1000, 3)
    assert ema.train.features.mean() < 0.95 * last.train.features.mean()
    study = pretraining.declare(options)
    (trial,) = study.trials(study.lines[-1], {}, [0])
    tuned = Cifar(dataclasses.replace(trial.config, training_examples=800))
    assert tuned.data.heldout.features.shape == (200, 3)
    np.testing.assert_array_equal(tuned.data.test.features, ema.test.features)
