"""The next-word model: its sizes, its token ids, its weights and its Keras form.

An embedding, one LSTM, a projection back to the embedding's size and an output layer.
The weights are a plain list, in the order of `ModelConfig.weight_shapes`; whatever
trains or evaluates the model takes and returns such a list.
"""

import dataclasses
import math
from typing import Any

from stackoverflow.token_ids import TokenIds
from tff_agg import checks

WEIGHT_NAMES = (
    "embedding",
    "lstm_kernel",
    "lstm_recurrent",
    "lstm_bias",
    "dense_kernel",
    "dense_bias",
    "output_kernel",
    "output_bias",
)


@dataclasses.dataclass(frozen=True)
class ModelConfig(TokenIds):
    """The sizes of the next-word model and the token ids that follow from them.

    Attributes:
      vocab_size: The number of words, special tokens not counted.
      embedding_size: The width of the embedding and of the last projection.
      lstm_size: The number of LSTM units.
      max_tokens: The number of predictions in a row; a row has one token more.

    Example:
      >>> ModelConfig().num_parameters
      4050748
    """

    vocab_size: int = 10_000
    embedding_size: int = 96
    lstm_size: int = 670
    max_tokens: int = 20

    def __post_init__(self):
        checks.make_whole(self, *(field.name for field in dataclasses.fields(self)))

    @property
    def row_length(self) -> int:
        """The number of ids in a row of tokens, the first one included."""
        return self.max_tokens + 1

    @property
    def weight_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the weights, in the order of `WEIGHT_NAMES`."""
        ids, width, units = self.num_ids, self.embedding_size, self.lstm_size
        return (
            (ids, width),
            (width, 4 * units),
            (units, 4 * units),
            (4 * units,),
            (units, width),
            (width,),
            (width, ids),
            (ids,),
        )

    @property
    def num_parameters(self) -> int:
        """The number of trainable parameters."""
        return sum(map(math.prod, self.weight_shapes))


def keras_model(config: ModelConfig) -> Any:
    """Builds the model with stock Keras layers: rows of ids in, logits out.

    The packed trainer and the evaluator do not use it; it is the reference that they
    are checked against, and what a user of plain Keras or TFF can start from.

    Example:
      >>> keras_model(ModelConfig(vocab_size=8, embedding_size=2, lstm_size=3))
      ... # doctest: +ELLIPSIS
      <keras...Sequential object at ...>
    """
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input(shape=(None,), dtype=tf.int32),
            layers.Embedding(config.num_ids, config.embedding_size, mask_zero=True),
            layers.LSTM(config.lstm_size, return_sequences=True),
            layers.Dense(config.embedding_size),
            layers.Dense(config.num_ids),
        ]
    )


def initial_weights(config: ModelConfig, seed: int = 0) -> list[Any]:
    """Draws initial weights as Keras' layers do, in TensorFlow ops, from a seed.

    Args:
      config: The sizes of the model.
      seed: Weights with the same seed are the same, on every machine and runtime.

    Returns:
      Float32 tensors in the order of `WEIGHT_NAMES`.

    Example:
      >>> weights = initial_weights(ModelConfig(), seed=7)
      >>> [w.shape.as_list() for w in weights][0]
      [10004, 96]
    """
    import tensorflow as tf

    init = tf.keras.initializers
    makers = (
        init.RandomUniform(seed=seed),
        init.GlorotUniform(seed=seed + 1),
        init.Orthogonal(seed=seed + 2),
        _forget_gates_open,
        init.GlorotUniform(seed=seed + 3),
        init.Zeros(),
        init.GlorotUniform(seed=seed + 4),
        init.Zeros(),
    )
    return [
        make(shape, dtype=tf.float32)
        for make, shape in zip(makers, config.weight_shapes, strict=True)
    ]


def check_weights(config: ModelConfig, weights: Any) -> list[Any]:
    """Returns `weights` as a list, after checking their number and shapes."""
    weights = list(weights)
    shapes = tuple(tuple(w.shape) for w in weights)
    if shapes != config.weight_shapes:
        raise ValueError(
            f"weights must have the shapes {config.weight_shapes} ({config}), got "
            f"{shapes}."
        )
    return weights


def _forget_gates_open(shape: tuple[int, ...], dtype: Any) -> Any:
    """The LSTM's bias: zero but for the forget gate's quarter, which is one."""
    import tensorflow as tf

    units = shape[0] // 4
    return tf.concat(
        [tf.zeros([units], dtype), tf.ones([units], dtype), tf.zeros([2 * units])], 0
    )
