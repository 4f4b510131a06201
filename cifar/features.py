r"""Writes the features of a frozen WideResNet, for training its last layer.

  python -m cifar features --weights=wrn_28_10.npz --dataset=cifar100 \
      --data_dir=../shared/data --depth=28 --width=10

The weights are an .npz with an array for each name of `WideResNet.shapes()`, trained
on public data; the last layer ('kernel', 'bias') may be absent. Writes
{data_dir}/{dataset}/features.npz: bytes with a scale and an offset. The range is given
(--largest), not measured: a range measured on private images would say something about
them.
"""

import dataclasses
import pathlib

import numpy as np

from cifar import data
from tff_agg import fields
from tff_agg.experiment import progress
from tff_agg.experiment.commands import Command
from tff_agg.fields import described

_BATCH = 250


def quantised(values: np.ndarray, largest: float) -> np.ndarray:
    """Returns features from 0 to `largest` as bytes; ReLU has made them so.

    Example:
      >>> quantised(np.array([0.0, 1.0, 9.0]), largest=2.0).tolist()
      [0, 128, 255]
    """
    return np.clip(np.round(values * (255 / largest)), 0, 255).astype(np.uint8)


def load_weights(
    path: str, shapes: dict[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Reads the weights of all layers but the last.

    Raises:
      ValueError: One is missing or has another shape.
    """
    with np.load(path) as found:
        weights = {name: found[name] for name in found.files}
    for name, shape in shapes.items():
        if name in ("kernel", "bias"):
            continue
        if name not in weights or weights[name].shape != shape:
            had = weights[name].shape if name in weights else "nothing"
            raise ValueError(
                f"{path}: {name} must have the shape {shape}; it has {had}"
            )
    return weights


@dataclasses.dataclass(frozen=True)
class FeaturesOptions:
    """Of which images, by which network."""

    weights: str = described("", "an .npz with the network's weights")
    dataset: str = described("cifar100", "which images", data.CLASSES)
    data_dir: str = described("../shared/data", "folder with cifar10/ and cifar100/")
    depth: int = described(28, "layers of the network", at_least=1)
    width: int = described(10, "factor of its width", at_least=1)
    largest: float = described(4.0, "features are cut off there")

    def __post_init__(self) -> None:
        fields.check(self)
        if not self.weights:
            raise ValueError("--weights must name an .npz of weights; it is empty")


def write(options: FeaturesOptions) -> int:
    """Computes and writes the features of all images."""
    import jax

    from cifar.wide_resnet import WideResNet

    folder = pathlib.Path(options.data_dir) / options.dataset
    found = data.images(options.dataset, folder)
    network = WideResNet(options.depth, options.width, data.CLASSES[options.dataset])
    weights = load_weights(options.weights, network.shapes())
    run = jax.jit(lambda x: network.features(weights, x * found.scale + found.offset))
    arrays = {}
    for name, split in (("train", found.train), ("test", found.test)):
        bar = progress.open_bar(name, len(split.labels), unit="image")
        parts = []
        for first in range(0, len(split.labels), _BATCH):
            part = split.features[first : first + _BATCH].astype(np.float32)
            parts.append(quantised(np.asarray(run(part)), options.largest))
            bar.update(len(part))
        bar.close()
        arrays[f"{name}_x"] = np.concatenate(parts)
        arrays[f"{name}_y"] = split.labels.astype(np.uint8)
    width = network.features_width
    arrays["scale"] = np.full(width, options.largest / 255, np.float32)
    arrays["offset"] = np.zeros(width, np.float32)
    np.savez(folder / "features.npz", **arrays)
    print(f"Written: {folder / 'features.npz'}")
    return 0


def command(task: object) -> Command:
    """Returns the command."""
    del task
    return Command(write, (FeaturesOptions,), tensorflow=False)
