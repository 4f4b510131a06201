r"""Writes what a frozen network makes of the images, for training its last layer.

The network has been trained on public data. It is

- a run of this task (`--run`), with the model that `--method` makes of its checkpoints:

    python -m cifar train --model=wide_resnet --labels=even --noise_multiplier=0 …
    python -m cifar features --run=runs/public --method=ema:0.9 --labels=odd \
        --out=features/cifar10/features.npz

- or a file of weights (`--weights`): an .npz with an array for each name of
  `WideResNet.shapes()`, where the last layer ('kernel', 'bias') may be absent;

    python -m cifar features --weights=wrn_28_10.npz --dataset=cifar100 \
        --depth=28 --width=10

- or any network in Keras' format (`--weights=….keras`) that takes images of whatever
  size, [n, side, side, 3] from 0 to 255, and returns features, [n, width].

Features become bytes with a scale and an offset. Their range is given (--least,
--largest), not measured: a range measured on private images would say something about
them.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable

import numpy as np

from cifar import data
from cifar.data import Data
from cifar.task import Cifar, CifarConfig
from tff_agg import fields, files
from tff_agg.aliases import Weights
from tff_agg.experiment import progress
from tff_agg.experiment.commands import Command
from tff_agg.experiment.runs import Run
from tff_agg.fields import described
from tff_agg.recycling import methods, series
from tff_agg.recycling.methods import LAST, Method

_BATCH = 250

#: From images as bytes to features.
Frozen = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class FeaturesOptions:
    """Of which images, by which network."""

    run: str = described("", "a run of model=wide_resnet, whose network it is")
    method: Method = described(
        LAST, "what is made of the run's checkpoints: last, uta:100, ema:0.95, pda:8",
        only_with=("weights", fields.NOT_GIVEN),
    )  # fmt: skip
    weights: str = described("", "or a file: an .npz of weights, or a .keras")
    dataset: str = described(
        "cifar100", "which images", tuple(data.CLASSES),
        only_with=("run", fields.NOT_GIVEN),
    )  # fmt: skip
    data_dir: str | None = described(
        None, "folder with cifar10/ and cifar100/; not given: as in training"
    )
    labels: str = described("all", "images of which classes", data.LABELS)
    depth: int = described(
        28, "of an .npz: layers", at_least=1, only_with=("run", fields.NOT_GIVEN)
    )
    width: int = described(
        10, "of an .npz: factor of the width", at_least=1,
        only_with=("run", fields.NOT_GIVEN),
    )  # fmt: skip
    least: float = described(0.0, "features are cut off below")
    largest: float = described(4.0, "and above")
    out: str = described("", "the file; not given: features.npz beside the images")

    def __post_init__(self) -> None:
        fields.check(self)
        if bool(self.run) == bool(self.weights):
            raise ValueError(
                "exactly one of --run, a folder, and --weights, a file, says which "
                f"network; got {self.run!r} and {self.weights!r}"
            )
        if not self.least < self.largest:
            raise ValueError(f"least={self.least} must be below largest={self.largest}")


def quantised(values: np.ndarray, least: float, largest: float) -> np.ndarray:
    """Returns features between two numbers as bytes.

    Example:
      >>> quantised(np.array([0.0, 1.0, 9.0]), 0.0, largest=2.0).tolist()
      [0, 128, 255]
    """
    return np.clip(
        np.round((values - least) * (255 / (largest - least))), 0, 255
    ).astype(np.uint8)


def save(
    path: pathlib.Path,
    frozen: Frozen,
    images: Data,
    least: float = 0.0,
    largest: float = 4.0,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> None:
    """Computes the features of all images and writes them.

    Args:
      path: Where.
      frozen: The network.
      images: Of what.
      least: Features are cut off below.
      largest: And above.
      on_progress: Called with the split, how many images are done, and of how many.
    """
    arrays = {}
    for name, split in (("train", images.train), ("test", images.test)):
        parts, total = [], len(split.labels)
        for first in range(0, total, _BATCH):
            part = frozen(split.features[first : first + _BATCH])
            parts.append(quantised(part, least, largest))
            if on_progress is not None:
                on_progress(name, min(first + _BATCH, total), total)
        arrays[f"{name}_x"] = np.concatenate(parts)
        arrays[f"{name}_y"] = split.labels.astype(np.uint8)
    width = arrays["train_x"].shape[1]
    arrays["scale"] = np.full(width, (largest - least) / 255, np.float32)
    arrays["offset"] = np.full(width, least, np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(path, durable=False) as file:
        np.savez(file, **arrays)


def of_task(task: Cifar, weights: Weights) -> Frozen:
    """Returns a WideResNet's last activations, with images as the task scales them."""
    import jax

    scale, offset = task.data.scale, task.data.offset
    run = jax.jit(lambda x: task.network.features(weights, x * scale + offset))
    return lambda images: np.asarray(run(images.astype(np.float32)))


def of_run(run: Run, method: Method) -> Frozen:
    """Returns the network that a method makes of a run's checkpoints."""
    if run.config.model != "wide_resnet":
        raise ValueError(
            f"{run.folder} is a run of model={run.config.model}: it has no network"
        )
    stored = series.Stored(run.rounds(series.BROADCAST), run.loader(series.BROADCAST))
    weights = methods.aggregate(stored, method, stored.rounds[-1])
    assert isinstance(run.task, Cifar)
    return of_task(run.task, weights)


def load_weights(
    path: str, shapes: dict[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Reads the weights of all layers but the last.

    Raises:
      ValueError: One is missing or has another shape.
    """
    with np.load(path) as archive:
        weights = {name: archive[name] for name in archive.files}
    for name, shape in shapes.items():
        if name in ("kernel", "bias"):
            continue
        if name not in weights or weights[name].shape != shape:
            given = weights[name].shape if name in weights else "nothing"
            raise ValueError(
                f"{path}: {name} must have the shape {shape}; it has {given}"
            )
    return weights


def of_keras(path: str) -> Frozen:
    """Returns a network in Keras' format, with images in the size that it takes."""
    import tensorflow as tf

    model = tf.keras.models.load_model(path, compile=False)
    side = model.input_shape[1]
    if len(model.output_shape) != 2:
        raise ValueError(
            f"{path} must return features, [n, width]; its output has the shape "
            f"{model.output_shape}"
        )

    def frozen(images: np.ndarray) -> np.ndarray:
        resized = tf.image.resize(images, (side, side), "bicubic")
        return model(tf.clip_by_value(resized, 0.0, 255.0), training=False).numpy()

    return frozen


def opened(options: FeaturesOptions) -> tuple[CifarConfig, Frozen]:
    """Returns which images, as a configuration, and the network."""
    if options.run:
        run = Run.open(Cifar, options.run, options.data_dir)
        return run.config, of_run(run, options.method)
    config = CifarConfig(
        rounds=1,
        noise_multiplier=0.0,
        dataset=options.dataset,
        model="wide_resnet",
        data_dir=options.data_dir or CifarConfig.data_dir,
        depth=options.depth,
        width=options.width,
    )
    if options.weights.endswith(".keras"):
        return config, of_keras(options.weights)
    task = Cifar(config)
    return config, of_task(task, load_weights(options.weights, task.network.shapes()))


def images_of(config: CifarConfig, labels: str) -> Data:
    """Returns the images of a configuration, those with other labels perhaps."""
    return Cifar(dataclasses.replace(config, labels=labels, training_examples=0)).data


def write(options: FeaturesOptions) -> int:
    """Computes and writes the features of all images."""
    config, frozen = opened(options)
    beside = pathlib.Path(config.data_dir) / config.dataset / data.FEATURES
    out = pathlib.Path(options.out or beside)
    images = images_of(config, options.labels)
    with contextlib.closing(progress.StageBar()) as bar:
        save(out, frozen, images, options.least, options.largest, bar)
    print(f"Written: {out}")
    return 0


def command(task: object) -> Command:
    """Returns the command."""
    del task
    return Command(write, (FeaturesOptions,), tensorflow=False)
