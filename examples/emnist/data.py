"""Handwritten digits of many writers, made on the spot.

The images are those that scikit-learn ships (8 × 8 pixels). The writers are made up:
each has a contrast and a place on the page of their own, and writes mostly even or
mostly odd digits. Writers of the three splits share no image.
"""

import hashlib
from typing import NamedTuple

import numpy as np

SPLITS = {"train": (0.0, 0.7), "heldout": (0.7, 0.85), "test": (0.85, 1.0)}
PARITIES = ("even", "odd")


class Writer(NamedTuple):
    """One user: a parity, images [n, 8, 8, 1] and labels [n]."""

    parity: str
    images: np.ndarray
    labels: np.ndarray


def make_writers(split: str, writers: int, digits: int = 20) -> list[Writer]:
    """Makes the writers of a split, the same ones each time."""
    from sklearn import datasets

    found = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    low, high = (int(share * len(order)) for share in SPLITS[split])
    images = (found.images[order[low:high]] / 16).astype(np.float32)
    labels = found.target[order[low:high]].astype(np.int32)
    rng = np.random.default_rng([1, list(SPLITS).index(split)])
    made = []
    for number in range(writers):
        even = number % 2 == 0
        # Nine of ten digits are of the writer's own parity.
        odds = np.where((labels % 2 == 0) == even, 9.0, 1.0)
        chosen = rng.choice(len(labels), digits, p=odds / odds.sum())
        drawn = images[chosen] * rng.uniform(0.6, 1.0)
        drawn = np.roll(drawn, rng.integers(-1, 2, size=2), axis=(1, 2))
        made.append(Writer(PARITIES[not even], drawn[..., None], labels[chosen]))
    return made


def fingerprint(writers: list[Writer]) -> str:
    """A digest of all images and labels."""
    digest = hashlib.sha256()
    for writer in writers:
        digest.update(writer.images.tobytes() + writer.labels.tobytes())
    return digest.hexdigest()
