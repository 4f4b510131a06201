"""Names for the types that many signatures share.

Nothing here imports TensorFlow or JAX when it runs, so a light module can name an array
of either library without loading it. A type that only one package uses is defined
there.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, Union

import numpy as np

if TYPE_CHECKING:
    import jax
    import tensorflow as tf

#: An array of any of the three libraries. All of them have `shape`, `dtype`, the
#: arithmetic operators and slicing; `tff_agg.structure` covers what differs.
Array: TypeAlias = Union[np.ndarray, "tf.Tensor", "jax.Array"]

#: One number: Python's, numpy's, or an array without dimensions. In a graph or a trace
#: it has no value yet.
Scalar: TypeAlias = int | float | np.number | Array

#: Arrays in dicts, tuples, lists and named tuples, nested to any depth: the weights of
#: a model, the state of a process. A single array is a structure too.
Structure: TypeAlias = Array | Mapping[str, "Structure"] | Sequence["Structure"]

#: The shapes and dtypes of a structure's tensors, in its form: a model's `input_spec`.
Specs: TypeAlias = Union["tf.TypeSpec", Mapping[str, "Specs"], Sequence["Specs"]]

#: What a checkpoint holds: numpy arrays and strings in dicts and lists.
Stored: TypeAlias = np.ndarray | str | Sequence["Stored"] | Mapping[str, "Stored"]

#: A model's weights by name, as numpy arrays.
Weights: TypeAlias = dict[str, np.ndarray]

#: Users or examples, by their numbers.
Ids: TypeAlias = Sequence[int] | np.ndarray

#: A value that `json` can write.
Json: TypeAlias = (
    bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
)

#: A JSON object, such as what `to_json` of a plan returns.
JsonObject: TypeAlias = dict[str, Json]
