"""Classes of features, and categories hashed into rows of embedding tables.

Which columns there are, which encoder reads them and how large their tables are is
declared and never read off the data, so that nothing of it needs privacy.
"""

import hashlib
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pcvr.clicks import Clicks

# Of the proxy data: news sessions. `article` is what was clicked.
NEWS = (
    "content=article:2048 device=environment,device,os place=country,region "
    "visit=referrer,hour,weekday"
)
BUCKETS = 64


class Feature(NamedTuple):
    """A column, the encoder that reads it, and the rows of its table."""

    encoder: str
    column: str
    buckets: int

    @property
    def table(self) -> str:
        """The name of its embedding table among the weights."""
        return f"table/{self.encoder}/{self.column}"


def parse(text: str) -> tuple[Feature, ...]:
    """Reads the classes of features from their declaration.

    Args:
      text: `class=column:buckets,column …`, classes apart by spaces; 64 buckets where
        no number is given.

    Example:
      >>> parse('ad=advert:1000,size user=country')[1]
      Feature(encoder='ad', column='size', buckets=64)
    """
    features = []
    for part in text.split():
        encoder, equals, columns = part.partition("=")
        for column in columns.split(","):
            name, colon, buckets = column.partition(":")
            good = buckets.isdecimal() and int(buckets) > 0 if colon else True
            if not (encoder and equals and name and good):
                raise ValueError(
                    f"feature_classes: {part!r} must be class=column,column:buckets "
                    "with at least one column"
                )
            features.append(Feature(encoder, name, int(buckets) if colon else BUCKETS))
    if not features or len({feature.column for feature in features}) < len(features):
        raise ValueError(
            f"feature_classes={text!r}: must name at least one column, and each once"
        )
    return tuple(features)


def bucket(column: str, value: str | None, buckets: int) -> int:
    """Returns the row of a value, the same in every process and on every machine.

    Example:
      >>> bucket('device', 'phone', 64), bucket('device', None, 64)
      (7, 62)
    """
    # A missing value has no separator, so no text can be mistaken for it.
    key = column if value is None else f"{column}\0{value}"
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % buckets


def encode(clicks: Clicks, features: tuple[Feature, ...]) -> np.ndarray:
    """Returns [clicks, features]: which row of its table each value has."""
    rows = np.empty((len(clicks.times), len(features)), np.int32)
    for place, feature in enumerate(features):
        values: pa.DictionaryArray = clicks.features[feature.column]
        names = [*values.dictionary.to_pylist(), None]
        hashed = [bucket(feature.column, name, feature.buckets) for name in names]
        codes = values.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)
        rows[:, place] = np.array(hashed, np.int32)[codes]
    return rows
