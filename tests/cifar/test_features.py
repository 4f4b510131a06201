"""Features of frozen networks: of a run, of a file of weights, of a Keras model."""

import dataclasses
import types

import numpy as np
import pytest

from cifar import data, features
from cifar.task import Cifar, CifarConfig
from tff_agg.experiment.runs import Run
from tff_agg.recycling.methods import LAST, Method

SMALL = {
    "synthetic": True, "rounds": 4, "noise_multiplier": 0.0, "batch_size": 20,
}  # fmt: skip
NETWORK = {
    "dataset": "cifar10", "model": "wide_resnet", "depth": 10, "width": 1, "shrink": 4,
}  # fmt: skip


def config(**changes):
    return CifarConfig(**(SMALL | changes))


def test_images_of_some_labels():
    task = Cifar(config(labels="odd", training_examples=900))
    assert {label % 2 for label in task.training_arrays()[1]} == {1}
    for split in ("heldout", "test"):
        assert list(task.evaluation_examples(split)) == ["odd"]
    assert len(task.data.heldout.labels) == 100
    whole = features.images_of(config(labels="odd", training_examples=900), "all")
    assert len(whole.train.labels) == 2000 and whole.heldout is None
    with pytest.raises(ValueError, match="needs labels=all; it is odd"):
        config(labels="odd", pds=True)


def test_a_last_layer_reads_the_file_that_it_names(tmp_path):
    images = data.synthetic("cifar10", (2, 2, 3), 20)

    def frozen(x):
        return x.reshape(len(x), -1) / 200.0

    path = tmp_path / "cifar10" / "mine.npz"
    told = []
    features.save(
        path, frozen, images, 0.1, 1.1, on_progress=lambda *all: told.append(all)
    )
    assert told == [("train", 20, 20), ("test", 5, 5)]
    named = {"dataset": "cifar10", "features": "mine.npz", "data_dir": str(tmp_path)}
    task = Cifar(config(synthetic=False, **named))
    found = task.data.train.features * task.data.scale + task.data.offset
    wanted = np.clip(frozen(images.train.features), 0.1, 1.1)
    np.testing.assert_allclose(found, wanted, atol=0.5 / 255 + 1e-6)
    np.testing.assert_array_equal(task.data.test.labels, images.test.labels)


def test_the_network_of_a_run_is_what_a_method_makes_of_it(monkeypatch):
    task = Cifar(config(**NETWORK))
    weights = {t: task.network.initial_weights(t) for t in (2, 4)}
    store = types.SimpleNamespace(
        rounds=lambda name: [2, 4],
        load=lambda t, name: [weights[t][n] for n in task.shapes],
    )
    run = Run(types.SimpleNamespace(path="runs/a", store=store), task)
    used = []
    monkeypatch.setattr(features, "of_task", lambda task, made: used.append(made))
    features.of_run(run, LAST)
    features.of_run(run, Method("uta", 2))
    for name in ("stem", "norm/scale"):
        np.testing.assert_array_equal(used[0][name], weights[4][name])
        mean = (weights[2][name] + weights[4][name]) / 2
        np.testing.assert_allclose(used[1][name], mean, rtol=1e-6)
    other = dataclasses.replace(run, task=Cifar(config()))
    with pytest.raises(ValueError, match="model=last_layer: it has no network"):
        features.of_run(other, LAST)


@pytest.mark.slow
def test_features_of_weights_in_a_file(tmp_path):
    task = Cifar(config(**NETWORK))
    weights = task.network.initial_weights(3)
    del weights["kernel"], weights["bias"]
    np.savez(tmp_path / "w.npz", **weights)
    shapes = task.network.shapes()
    loaded = features.load_weights(str(tmp_path / "w.npz"), shapes)
    images = task.data.test.features[:3]
    found = features.of_task(task, loaded)(images)
    assert found.shape == (3, 64) and found.std() > 0.1
    with pytest.raises(ValueError, match="stem must have the shape"):
        features.load_weights(str(tmp_path / "w.npz"), shapes | {"stem": (1, 3, 3, 16)})


@pytest.mark.slow
def test_any_network_in_keras_format_makes_features(tmp_path):
    import tensorflow as tf

    inputs = tf.keras.Input((4, 4, 3))
    middle = tf.keras.layers.Rescaling(1 / 255)(inputs)
    pooled = tf.keras.layers.GlobalAveragePooling2D()(middle)
    tf.keras.Model(inputs, pooled).save(tmp_path / "mean.keras")
    images = np.full((2, 32, 32, 3), 51, np.uint8)
    found = features.of_keras(str(tmp_path / "mean.keras"))(images)
    np.testing.assert_allclose(found, np.full((2, 3), 0.2), rtol=1e-5)
    tf.keras.Model(inputs, middle).save(tmp_path / "image.keras")
    with pytest.raises(ValueError, match="must return features"):
        features.of_keras(str(tmp_path / "image.keras"))


def test_options_name_one_network():
    for given in ({}, {"run": "a", "weights": "b.npz"}):
        with pytest.raises(ValueError, match="exactly one of --run"):
            features.FeaturesOptions(**given)
    with pytest.raises(ValueError, match=r"least=4.0 must be below"):
        features.FeaturesOptions(run="a", least=4.0)
