"""CIFAR-10 and CIFAR-100 with sample-level privacy, as a task of the experiment layer.

Either a WideResNet is trained on the images, or only the last layer of a network that
was trained on public data, on its frozen features.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cifar import data
from cifar.data import Data
from pds import groups
from tff_agg.experiment.jax_task import JaxTask
from tff_agg.experiment.rows import Examples
from tff_agg.experiment.sample_config import SampleConfig
from tff_agg.experiment.task import PrivacyFacts, Weights
from tff_agg.fields import described
from tff_agg.recycling.grids import Grids

_SYNTHETIC_WIDTH = 64
_IMAGES_TO_TRAIN = 50_000
# In a micro-batch of the network, of 32 × 32 pixels.
_IMAGES = 4
_PRETRAINED = (
    "The network that made the features: it was trained on public data, which no "
    "figure here is about."
)


@dataclasses.dataclass(frozen=True)
class CifarConfig(SampleConfig):
    """A run on CIFAR: what every run of DP-SGD has, and data and model."""

    dataset: str = described("cifar100", "which classes", tuple(data.CLASSES))
    model: str = described(
        "last_layer",
        "last_layer: on frozen features; wide_resnet: on images",
        ("last_layer", "wide_resnet"),
    )
    data_dir: str = described(
        "../shared/data", "folder with cifar10/ and cifar100/", role="place", data=True
    )
    synthetic: bool = described(
        False, "make data up instead of reading files", role="cohort"
    )
    features: str = described(
        data.FEATURES, "last_layer: the file with the features, in the data set's "
        "folder", only_with=("model", ("last_layer",)),
    )  # fmt: skip
    labels: str = described(
        "all", "images of which classes: those with even, with odd or with all labels",
        data.LABELS, role="cohort",
    )  # fmt: skip
    projected: int = described(
        0, "last_layer: project features to so many dimensions; 0: as they are",
        only_with=("model", ("last_layer",)),
    )  # fmt: skip
    training_examples: int = described(
        0, "train on so many, the first, and validate on the others; 0: train on all, "
        "and validate on half of the test data", role="cohort",
    )  # fmt: skip
    shrink: int = described(
        1, "wide_resnet: squares of so many pixels a side become one; 1: as it is",
        at_least=1, only_with=("model", ("wide_resnet",)),
    )  # fmt: skip
    augmentations: int = described(
        1, "wide_resnet: K, copies of an example moved and mirrored; 1: as it is",
        at_least=1, only_with=("model", ("wide_resnet",)),
    )  # fmt: skip
    depth: int = described(
        16, "wide_resnet: layers", only_with=("model", ("wide_resnet",))
    )
    width: int = described(
        4, "wide_resnet: factor of the width", only_with=("model", ("wide_resnet",))
    )
    groups: int = described(
        16, "wide_resnet: of the group normalisation, for any number of channels",
        at_least=1, only_with=("model", ("wide_resnet",)),
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pds and self.labels != "all":
            raise ValueError(
                "pds moves between even and odd labels, and needs labels=all; it is "
                f"{self.labels}"
            )


class Cifar(JaxTask):
    """An image is an example; even and odd classes are the shifting populations.

    Models are validated on the training images that are held out. Where none are, every
    second official test image is for validation, and no test image any more.
    """

    package = "cifar"
    Config = CifarConfig
    config: CifarConfig
    data: Data

    def open_data(self) -> Data:
        """Reads the data."""
        config = self.config
        return _read(
            config.dataset,
            config.features if config.model == "last_layer" else None,
            config.data_dir,
            config.synthetic,
            config.projected,
            config.shrink,
            config.labels,
        ).holding_out(config.training_examples)

    @classmethod
    def grids(cls, config: CifarConfig) -> Grids:
        """Returns the paper's: τ by hundreds below T, or up to 250 for CIFAR-100."""
        if config.dataset == "cifar100":
            starts = range(50, 251, 50)
        else:
            images = config.training_examples or _IMAGES_TO_TRAIN
            starts = range(100, config.for_population(images).rounds, 100)
        return Grids(starts=tuple(starts))

    def training_arrays(self) -> Sequence[np.ndarray]:
        """Returns bytes and labels."""
        return self.data.train

    def evaluation_examples(self, split: str) -> Mapping[str, Examples]:
        """Returns what is held out and all test data; or halves of the latter."""
        if self.data.heldout is not None:
            features, labels = (
                self.data.heldout if split == "heldout" else self.data.test
            )
        else:
            first = 0 if split == "heldout" else 1
            features, labels = (array[first::2] for array in self.data.test)
        parities = groups.by_label_parity(labels)
        return {
            g.name: (features[g.users], labels[g.users])
            for g in parities
            if self.config.labels in ("all", g.name)
        }

    def shifting_groups(self) -> Sequence[groups.Group]:
        """Returns the images of even and of odd classes."""
        return groups.by_label_parity(self.data.train.labels)

    def privacy_facts(self) -> PrivacyFacts:
        """Weights that no data have touched; public data have made frozen features."""
        if self.config.model == "wide_resnet":
            return PrivacyFacts(
                initial_weights="they are drawn at random from the run's seed"
            )
        return PrivacyFacts(not_covered=(_PRETRAINED,), initial_weights="they are zero")

    @property
    def classes(self) -> int:
        """Ten or a hundred."""
        return data.CLASSES[self.config.dataset]

    @functools.cached_property
    def network(self) -> Any:
        """The network's sizes."""
        from cifar.wide_resnet import WideResNet

        sizes = (self.config.depth, self.config.width, self.classes)
        return WideResNet(*sizes, groups=self.config.groups)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The weights."""
        if self.config.model == "wide_resnet":
            return self.network.shapes()
        width = self.data.train.features.shape[1]
        return {"bias": (self.classes,), "kernel": (width, self.classes)}

    def initial_weights(self) -> Weights:
        """Returns the weights of step 0; a last layer starts at zero."""
        if self.config.model == "wide_resnet":
            return self.network.initial_weights(self.config.seed)
        return {name: np.zeros(s, np.float32) for name, s in self.shapes.items()}

    def _numbers(self, stored: Any) -> Any:
        """Returns bytes as the numbers that they stand for; in JAX."""
        import jax.numpy as jnp

        return stored.astype(jnp.float32) * self.data.scale + self.data.offset

    def logits(self, weights: Mapping[str, Any], features: Any) -> Any:
        """Returns one logit per class."""
        from tff_agg.sample import linear

        numbers = self._numbers(features)
        if self.config.model == "wide_resnet":
            return self.network.logits(weights, numbers)
        return linear.logits(weights, numbers)

    def sample_model(self) -> Any:
        """Returns the closed form of a last layer, or the network's loss."""
        from cifar import layers, wide_resnet
        from tff_agg.sample import linear
        from tff_agg.sample.per_example import SampleModel

        if self.config.model == "last_layer":
            return linear.softmax_layer(self._numbers)
        import jax

        def loss(weights: Any, example: Sequence[Any]) -> Any:
            image, label, *moves = example
            copies = self._numbers(image)[None]
            if moves:
                copies = wide_resnet.augmented(copies[0], moves[0])
            scores = jax.nn.log_softmax(self.network.logits(weights, copies))
            return -scores[:, label].mean()

        shapes = {
            name: jax.ShapeDtypeStruct(shape, np.float32)
            for name, shape in self.shapes.items()
        }
        return SampleModel(
            loss,
            layers.clipped_by_layers(loss),
            layers.example_bytes(loss, shapes, self.batch(np.arange(1), 0)),
            # More copies at a time gain nothing, and leave the cache.
            max(1, _IMAGES * self.config.shrink**2 // self.config.augmentations),
            by_core=True,
        )

    def batch(self, examples: np.ndarray, round_number: int) -> list[np.ndarray]:
        """Returns bytes and labels, and how the copies of each image are moved."""
        arrays = super().batch(examples, round_number)
        if (copies := self.config.augmentations) > 1:
            generator = np.random.default_rng([self.config.seed, round_number])
            moves = generator.integers(0, 9, (len(examples), copies, 3), np.uint8)
            moves[..., 2] = generator.integers(0, 2, moves.shape[:2], np.uint8)
            arrays.append(moves)
        return arrays


@functools.lru_cache(2)  # Runs of one process share their data.
def _read(
    dataset: str,
    features: str | None,
    folder: str,
    synthetic: bool,
    projected: int,
    shrink: int,
    labels: str,
) -> data.Data:
    """Reads what a configuration asks for; images, unless a file of features."""
    where = pathlib.Path(folder) / dataset
    if synthetic:
        shape = (_SYNTHETIC_WIDTH,) if features else (32, 32, 3)
        read = data.synthetic(dataset, shape)
    elif features:
        read = data.features(where / features)
    else:
        read = data.images(dataset, where)
    read = data.projected(read, projected) if projected else read
    read = data.shrunk(read, shrink) if shrink > 1 else read
    return data.labelled(read, labels)
