"""CIFAR's files: the official pickle and binary layouts, and features of a network.

| folder in `data_dir` | layout |
|---|---|
| `cifar10/cifar-10-batches-py`, `cifar100/cifar-100-python` | pickles of dicts |
| `cifar10/cifar-10-batches-bin`, `cifar100/cifar-100-binary` | records of bytes |
| `cifar100/features.npz` | frozen features, as `cifar features` writes them |
"""

import io
import pathlib
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

PIXELS = 3 * 32 * 32
CLASSES = {"cifar10": 10, "cifar100": 100}
LABELS = ("all", "even", "odd")
#: What `cifar features` writes, unless told otherwise.
FEATURES = "features.npz"
# Of each record: bytes before the image, the last of which is the label.
_LABEL_BYTES = {"cifar10": 1, "cifar100": 2}
_LABEL_KEYS = {"cifar10": b"labels", "cifar100": b"fine_labels"}
_FILES = {
    "cifar10": ([f"data_batch_{i}" for i in range(1, 6)], ["test_batch"]),
    "cifar100": (["train"], ["test"]),
}
_FOLDERS = {
    "cifar10": ("cifar-10-batches-py", "cifar-10-batches-bin"),
    "cifar100": ("cifar-100-python", "cifar-100-binary"),
}


class Split(NamedTuple):
    """Examples with their labels.

    Attributes:
      features: Images [n, 32, 32, 3] as bytes; or features [n, width], as bytes or,
        projected, in half precision.
      labels: int32 [n].
    """

    features: np.ndarray
    labels: np.ndarray


class Data(NamedTuple):
    """A data set.

    Attributes:
      train: What is trained on.
      test: The official test data.
      scale: A feature is its byte times `scale` plus `offset`, per dimension.
      offset: See `scale`.
      heldout: Training examples that are not trained on, if there are any.
    """

    train: Split
    test: Split
    scale: Any
    offset: Any
    heldout: Split | None = None

    def holding_out(self, count: int) -> "Data":
        """Returns the data with the first `count` to train on, and the others held out.

        Args:
          count: How many; 0 or all of them: nothing is held out.
        """
        available = len(self.train.labels)
        if count > available:
            raise ValueError(f"training_examples={count}: there are {available}")
        if count in (0, available):
            return self
        first = Split(*(array[:count] for array in self.train))
        others = Split(*(array[count:] for array in self.train))
        return self._replace(train=first, heldout=others)


# Of any image, so that no data are looked at: bytes become numbers around 0.
_IMAGE_SCALE = np.array(1 / 64, np.float32)
_IMAGE_OFFSET = np.array(-2, np.float32)


def images(dataset: str, folder: pathlib.Path) -> Data:
    """Reads the images of a data set, from whichever official layout is there.

    Args:
      dataset: 'cifar10' or 'cifar100'.
      folder: Holds one of the official folders. Of CIFAR-10's five training files
        those that are there are read.
    """
    readers: list[Callable] = [_read_pickle, _read_binary]
    for name, reader in zip(_FOLDERS[dataset], readers, strict=True):
        if (folder / name).is_dir():
            suffix = ".bin" if reader is _read_binary else ""
            train, test = (
                [folder / name / (file + suffix) for file in files]
                for files in _FILES[dataset]
            )
            return Data(
                _joined(dataset, train, reader),
                _joined(dataset, test, reader),
                _IMAGE_SCALE,
                _IMAGE_OFFSET,
            )
    raise FileNotFoundError(
        f"{folder} has neither {' nor '.join(_FOLDERS[dataset])}: put the official "
        "files there, or use --synthetic"
    )


def features(path: pathlib.Path) -> Data:
    """Reads features of a frozen network, as `cifar features` writes them."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: make it from a network's weights with python -m "
            "cifar features, or use --synthetic"
        )
    with np.load(path) as archive:
        train, test = (
            Split(archive[f"{name}_x"], archive[f"{name}_y"].astype(np.int32))
            for name in ("train", "test")
        )
        return Data(train, test, archive["scale"], archive["offset"])


def projected(data: Data, width: int) -> Data:
    """Returns features in fewer dimensions, by a fixed random orthogonal projection.

    It is the same whatever the data are, so that it costs no privacy.

    Args:
      data: Features, not images.
      width: How many dimensions are left.
    """
    before = data.train.features.shape[1:]
    if len(before) != 1 or not 1 <= width <= before[0]:
        raise ValueError(
            f"projected={width} must be from 1 to the width of the features, which "
            f"have the shape {before}"
        )
    normal = np.random.default_rng(0).standard_normal((before[0], width))
    base = np.linalg.qr(normal)[0].astype(np.float32)

    def split(part: Split) -> Split:
        numbers = part.features * data.scale + data.offset
        return Split((numbers @ base).astype(np.float16), part.labels)

    scale = np.ones(width, np.float32)
    return Data(split(data.train), split(data.test), scale, 0 * scale)


def shrunk(data: Data, factor: int) -> Data:
    """Returns smaller images: the mean of every square of pixels, as a byte.

    Args:
      data: Images.
      factor: The side of a square.

    Example:
      >>> shrunk(synthetic('cifar10', (32, 32, 3), 20), 2).train.features.shape
      (20, 16, 16, 3)
    """
    side = data.train.features.shape[1]
    if side % factor:
        raise ValueError(f"shrink={factor} must divide the images' side, {side}")

    def split(part: Split) -> Split:
        count, few = len(part.labels), side // factor
        squares = part.features.reshape(count, few, factor, few, factor, -1)
        means = squares.mean(axis=(2, 4), dtype=np.float32)
        return Split(np.round(means).astype(np.uint8), part.labels)

    return data._replace(train=split(data.train), test=split(data.test))


def labelled(data: Data, labels: str) -> Data:
    """Returns the examples with some labels, such as those that count as public.

    Args:
      data: Examples; none are held out yet.
      labels: One of `LABELS`.

    Example:
      >>> labelled(synthetic('cifar10', (8,), 20), 'odd').train.labels[:3].tolist()
      [1, 3, 5]
    """
    if labels == "all":
        return data

    def split(part: Split) -> Split:
        chosen = part.labels % 2 == LABELS[1:].index(labels)
        return Split(part.features[chosen], part.labels[chosen])

    return data._replace(train=split(data.train), test=split(data.test))


def synthetic(dataset: str, shape: tuple[int, ...], examples: int = 2000) -> Data:
    """Makes up data of which a model can learn something: a pattern for each class.

    Example:
      >>> synthetic('cifar10', (32, 32, 3), 20).train.features.shape
      (20, 32, 32, 3)
    """
    generator = np.random.default_rng(20)
    classes = CLASSES[dataset]
    centres = generator.uniform(64, 192, (classes, *shape))

    def split(count: int) -> Split:
        labels = (np.arange(count) % classes).astype(np.int32)
        noisy = centres[labels] + 40 * generator.standard_normal((count, *shape))
        return Split(np.clip(noisy, 0, 255).astype(np.uint8), labels)

    train, test = split(examples), split(max(examples // 4, 4))
    return Data(train, test, _IMAGE_SCALE, _IMAGE_OFFSET)


def _joined(dataset: str, paths: list[pathlib.Path], reader: Callable) -> Split:
    read = [reader(dataset, path) for path in paths if path.is_file()]
    if not read:
        raise FileNotFoundError(f"{paths[0].parent} has no {paths[0].name}")
    pixels, labels = (np.concatenate(part) for part in zip(*read, strict=True))
    # Stored plane by plane: all red, all green, all blue.
    by_pixel = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Split(np.ascontiguousarray(by_pixel), labels.astype(np.int32))


def _read_pickle(dataset: str, path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    try:
        pixels = np.asarray(content[b"data"], np.uint8).reshape(-1, PIXELS)
        return pixels, np.asarray(content[_LABEL_KEYS[dataset]])
    except KeyError as error:
        raise ValueError(f"{path} is no file of {dataset}: it has no {error}") from None


def _read_binary(dataset: str, path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    before = _LABEL_BYTES[dataset]
    content = np.fromfile(path, np.uint8)
    if len(content) % (before + PIXELS):
        raise ValueError(
            f"{path} is no file of {dataset}: its {len(content)} bytes are not records "
            f"of {before + PIXELS}"
        )
    records = content.reshape(-1, before + PIXELS)
    return records[:, before:], records[:, before - 1]


class _ArraysOnly(pickle.Unpickler):
    """Reads arrays and nothing else: another's pickle could run any code."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns what an array is made of."""
        allowed = ("_reconstruct", "ndarray", "dtype", "_frombuffer")
        of_numpy = module.partition(".")[0] == "numpy" and name in allowed
        if of_numpy or (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a CIFAR file")
