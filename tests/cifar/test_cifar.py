"""CIFAR: file layouts, network, flag files, and a run without any data file."""

import dataclasses
import pathlib
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cifar import data, layers, wide_resnet
from cifar.layers import Layers
from cifar.task import Cifar, CifarConfig
from tff_agg import privacy
from tff_agg.experiment.build import Compiled, build
from tff_agg.experiment.commands import flags

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "cifar" / "configs").glob("*.cfg"))


def config(**changes):
    values = {
        "synthetic": True,
        "rounds": 4,
        "noise_multiplier": 1.0,
        "batch_size": 20,
        "training_examples": 60,
    }
    return CifarConfig(**(values | changes))


def pictures(count, classes):
    generator = np.random.default_rng(count)
    images = generator.integers(256, size=(count, 32, 32, 3), dtype=np.uint8)
    return images, generator.integers(classes, size=count)


def planes(images):
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_pickle(path, images, labels, dataset):
    key = b"labels" if dataset == "cifar10" else b"fine_labels"
    content = {b"data": planes(images), key: labels.tolist(), b"batch_label": b"x"}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def write_binary(path, images, labels, dataset):
    coarse = [] if dataset == "cifar10" else [np.full((len(labels), 1), 99)]
    records = np.hstack([*coarse, labels[:, None], planes(images)]).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    records.tofile(path)


@pytest.mark.parametrize(
    ("dataset", "write", "names"),
    [
        ("cifar10", write_pickle,
         ["cifar-10-batches-py/data_batch_1", "cifar-10-batches-py/data_batch_2",
          "cifar-10-batches-py/test_batch"]),
        ("cifar10", write_binary,
         ["cifar-10-batches-bin/data_batch_1.bin",
          "cifar-10-batches-bin/data_batch_2.bin",
          "cifar-10-batches-bin/test_batch.bin"]),
        ("cifar100", write_pickle,
         ["cifar-100-python/train", "cifar-100-python/test"]),
        ("cifar100", write_binary,
         ["cifar-100-binary/train.bin", "cifar-100-binary/test.bin"]),
    ],
)  # fmt: skip
def test_the_official_layouts(dataset, write, names, tmp_path):
    made = [pictures(4 + i, data.CLASSES[dataset]) for i in range(len(names))]
    for name, (images, labels) in zip(names, made, strict=True):
        write(tmp_path / name, images, labels, dataset)
    found = data.images(dataset, tmp_path)
    train = [np.concatenate(part) for part in zip(*made[:-1], strict=True)]
    for split, wanted in ((found.train, train), (found.test, made[-1])):
        np.testing.assert_array_equal(split.features, wanted[0])
        np.testing.assert_array_equal(split.labels, wanted[1])


def test_a_pickle_may_hold_arrays_only(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(pickle.dumps(pathlib.PurePosixPath("x")))
    with pytest.raises(pickle.UnpicklingError, match="no part of a CIFAR file"):
        data.images("cifar10", tmp_path)
    with pytest.raises(FileNotFoundError, match="--synthetic"):
        data.images("cifar100", tmp_path)


def test_features_are_read_and_projected(tmp_path):
    generator = np.random.default_rng(0)
    arrays = {
        "train_x": generator.integers(256, size=(9, 8), dtype=np.uint8),
        "train_y": np.arange(9, dtype=np.uint8),
        "test_x": generator.integers(256, size=(4, 8), dtype=np.uint8),
        "test_y": np.arange(4, dtype=np.uint8),
        "scale": np.full(8, 0.5, "f"),
        "offset": np.full(8, -3, "f"),
    }
    np.savez(tmp_path / "features.npz", **arrays)
    found = data.features(tmp_path / "features.npz")
    numbers = arrays["train_x"] * np.float32(0.5) - 3
    whole = data.projected(found, 8).train.features
    # All dimensions: turned, so that lengths stay; fewer: shorter.
    lengths = np.linalg.norm(whole.astype("f"), axis=1)
    np.testing.assert_allclose(lengths, np.linalg.norm(numbers, axis=1), rtol=1e-2)
    assert data.projected(found, 3).test.features.shape == (4, 3)
    with pytest.raises(ValueError, match="projected=9 must be from 1"):
        data.projected(found, 9)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [1, 3])
def test_a_convolution_is_one(size, stride):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((2, 8, 8, 5)).astype("f")
    kernel = generator.standard_normal((size, size, 5, 4)).astype("f")
    mean, fan_in = kernel.mean((0, 1, 2)), size * size * 5
    standard = (kernel - mean) / np.sqrt(kernel.var((0, 1, 2)) * fan_in + 1e-5)
    edge = [(size // 2, size // 2)] * 2
    wanted = jax.lax.conv_general_dilated(
        x, standard, (stride, stride), edge, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    layers = Layers({"it": kernel})
    found = wide_resnet._convolution(layers, "it", x, stride)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_the_network_has_its_sizes_and_no_mixing_of_examples():
    network = wide_resnet.WideResNet(16, 4, 10)
    count = sum(np.prod(shape) for shape in network.shapes().values())
    assert count == 2_748_890
    small = wide_resnet.WideResNet(10, 1, 10)
    weights = small.initial_weights(0)
    weights["kernel"] = np.random.default_rng(1).standard_normal((64, 10)).astype("f")
    images = np.random.default_rng(2).standard_normal((3, 32, 32, 3)).astype("f")
    run = jax.jit(small.logits)
    np.testing.assert_allclose(
        run(weights, images)[1], run(weights, images[1:2])[0], atol=1e-4
    )
    with pytest.raises(ValueError, match="depth must be 6n"):
        wide_resnet.WideResNet(15, 4, 10)
    with pytest.raises(ValueError, match="groups=5 must divide the 16 channels"):
        wide_resnet.WideResNet(10, 1, 10, groups=5)


def test_kernels_start_as_long_as_they_are_used():
    # A longer one would be the same network, but one that steps hardly turn.
    weights = wide_resnet.WideResNet(10, 1, 10).initial_weights(0)
    kernels = {name: w for name, w in weights.items() if w.ndim == 4}
    assert len(kernels) == 9
    for name, kernel in kernels.items():
        used = np.asarray(layers.standardised(kernel))
        np.testing.assert_allclose(kernel.std(), used.std(), rtol=0.15, err_msg=name)


def test_images_are_shrunk_to_the_means_of_squares():
    found = data.synthetic("cifar10", (32, 32, 3), 20)
    small = data.shrunk(found, 4)
    assert small.test.features.shape == (5, 8, 8, 3)
    square = found.train.features[3, 4:8, 24:28, 1]
    assert abs(int(small.train.features[3, 1, 6, 1]) - square.mean()) <= 0.5
    np.testing.assert_array_equal(small.train.labels, found.train.labels)
    with pytest.raises(ValueError, match="shrink=5 must divide the images' side, 32"):
        data.shrunk(found, 5)


def test_a_smaller_network_on_smaller_images():
    sizes = {"depth": 10, "width": 1, "groups": 4, "shrink": 2}
    task = Cifar(config(dataset="cifar10", model="wide_resnet", **sizes))
    assert task.network.groups == 4
    batch = task.batch(np.arange(3), 0)
    assert batch[0].shape == (3, 16, 16, 3)
    # Four times as many images as of the full size fit a core's cache.
    assert task.sample_model().largest_micro_batch == 16
    weights = task.initial_weights() | {"kernel": np.ones((64, 10), "f")}
    apart = dataclasses.replace(task.network, groups=16)
    numbers = batch[0] / 64 - 2.0
    assert np.abs(task.network.logits(weights, numbers)).max() > 0
    assert np.abs(
        task.network.logits(weights, numbers) - apart.logits(weights, numbers)
    ).max() > 0.01  # fmt: skip


def test_copies_are_moved_and_mirrored():
    image = jnp.arange(32 * 32 * 3.0).reshape(32, 32, 3)
    moves = np.array([[4, 4, 0], [4, 4, 1], [5, 3, 0]], np.uint8)
    still, mirrored, moved = wide_resnet.augmented(image, moves)
    np.testing.assert_array_equal(still, image)
    np.testing.assert_array_equal(mirrored, image[:, ::-1])
    np.testing.assert_array_equal(moved[:-1, 1:], image[1:, :-1])


def test_a_step_of_the_network_with_copies():
    task = Cifar(
        config(
            dataset="cifar10", model="wide_resnet", depth=10, width=1, augmentations=3,
            batch_size=3,
        )
    )  # fmt: skip
    batch = task.batch(np.arange(3), 0)
    assert [array.shape[1:] for array in batch] == [(32, 32, 3), (), (3, 3)]
    assert batch[2][..., :2].max() <= 8
    built = build(task, Compiled())
    process, state = built.process, built.initialize()
    assert process.micro_batch(state["aggregate"]) == 1
    state, metrics = process.next(state, batch)
    # At a last layer of zeros all classes are as likely.
    assert metrics["train"]["loss"] == pytest.approx(np.log(10), rel=1e-3)
    assert metrics["non_finite"] == 0


def test_even_and_odd_classes_shift():
    task = Cifar(config(pds=True, pds_period=4))
    even, odd = task.population()
    labels = task.data.train.labels
    assert (labels[even.users] % 2 == 0).all()
    assert (labels[odd.users] % 2 == 1).all()
    sampler = build(task, Compiled()).sampler
    assert (labels[sampler.users(0)] % 2 == 0).all()


def rows_of(part):
    return {row.tobytes() for features, _ in part.values() for row in features}


def test_models_are_validated_on_the_training_images_that_are_held_out():
    task = Cifar(config(training_examples=1900))
    heldout, test = (task.evaluation_examples(name) for name in ("heldout", "test"))
    assert sum(len(labels) for _, labels in heldout.values()) == 100
    # All official test data, then.
    assert sum(len(labels) for _, labels in test.values()) == 500
    trained = {row.tobytes() for row in task.training_arrays()[0]}
    assert len(trained) == 1900
    assert not trained & rows_of(heldout)
    assert not rows_of(test) & rows_of(heldout)
    with pytest.raises(ValueError, match="training_examples=2001: there are 2000"):
        Cifar(config(training_examples=2001))


def test_validation_and_test_data_are_halves():
    task = Cifar(config(training_examples=0))
    halves = [task.evaluation_examples(split) for split in ("heldout", "test")]
    sizes = [sum(len(labels) for _, labels in half.values()) for half in halves]
    assert sizes == [250, 250]
    assert not rows_of(halves[0]) & rows_of(halves[1])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_flag_files_are_rows_of_the_paper(path):
    (read,) = flags.parse([f"--flagfile={path}"], CifarConfig)
    printed = float(path.stem.rpartition("eps")[2])
    assert read.pds == ("pds" in path.stem)
    assert read.batch_size == (4096 if read.dataset == "cifar10" else 16384)
    # Counted as the paper seems to: by Rényi divergences, at one rate throughout.
    rate = read.batch_size / (read.training_examples or 50_000)
    steps = privacy.sampled.steps_of(read.noise_multiplier, rate, read.rounds)
    renyi = privacy.Loss(kinds=(steps,)).epsilon(1e-5, "rdp")
    # The printed 875 steps at σ = 10 spend all of ε = 1 at neither size.
    expected = 0.9877 if (read.noise_multiplier, read.rounds) == (10, 875) else printed
    assert renyi == pytest.approx(expected, rel=0.0025)
    dataclasses.replace(read).build_averager()


def test_there_is_a_flag_file_for_every_row():
    assert len(CONFIGS) == 24
