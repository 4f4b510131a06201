"""Other models for the digits: a transformer, and a head on a frozen backbone."""

from typing import Any

from examples.emnist.task import Emnist


class Transformer(Emnist):
    """One block of attention over the eight rows of an image."""

    def keras_model(self, seed: int) -> Any:
        """Rows become tokens; what the block makes of them is pooled and classified."""
        import tensorflow as tf

        layers, width = tf.keras.layers, 16

        def dense(units: int, place: int, activation: str | None = None) -> Any:
            drawn = tf.keras.initializers.GlorotUniform(seed=10 * seed + place)
            return layers.Dense(units, activation, kernel_initializer=drawn)

        images = tf.keras.Input([8, 8, 1])
        rows = dense(width, 1)(images[..., 0])
        # Where a row stands.
        places = tf.one_hot(tf.range(8), 8)[None] + tf.zeros_like(images[..., 0])
        tokens = rows + dense(width, 2)(places)
        attention = layers.MultiHeadAttention(
            2, width // 2,
            kernel_initializer=tf.keras.initializers.GlorotUniform(seed=10 * seed + 3),
        )  # fmt: skip
        tokens = layers.LayerNormalization()(tokens + attention(tokens, tokens))
        wide = dense(2 * width, 4, "gelu")(tokens)
        tokens = layers.LayerNormalization()(tokens + dense(width, 5)(wide))
        both = tf.concat([tf.reduce_mean(tokens, 1), tf.reduce_max(tokens, 1)], 1)
        return tf.keras.Model(images, dense(10, 6)(both))


class FrozenBackbone(Emnist):
    """A head that is trained privately, on a backbone that stays as it is."""

    def keras_model(self, seed: int) -> Any:
        """The backbone is the same whatever the seed: here random filters.

        In earnest it would be read from a file, trained on public data. Its batch
        normalisation is frozen with it, and so has statistics that nothing changes.
        """
        import tensorflow as tf

        layers = tf.keras.layers
        backbone = tf.keras.Sequential(
            [
                layers.InputLayer([8, 8, 1]),
                layers.Conv2D(
                    32, 3, activation="swish", padding="same",
                    kernel_initializer=tf.keras.initializers.HeNormal(seed=1),
                ),
                layers.BatchNormalization(),
                layers.MaxPooling2D(2),
                layers.Flatten(),
            ]
        )  # fmt: skip
        backbone.trainable = False
        head = layers.Dense(
            10, kernel_initializer=tf.keras.initializers.GlorotUniform(seed=seed)
        )
        return tf.keras.Sequential([backbone, head])
