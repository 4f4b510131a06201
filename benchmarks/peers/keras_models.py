"""The models of the workload in Keras, for whatever trains Keras models."""

from typing import Any

from benchmarks.peers import workload


def build(task: workload.Sentences | workload.Pictures) -> Any:
    """Returns a fresh Keras model; rows of ids or pictures in, logits out."""
    import tensorflow as tf

    layers = tf.keras.layers
    if isinstance(task, workload.Sentences):
        return tf.keras.Sequential(
            [
                layers.Input(shape=(None,), dtype=tf.int64),
                layers.Embedding(task.ids, task.width, mask_zero=True),
                layers.LSTM(task.units, return_sequences=True),
                layers.Dense(task.width),
                layers.Dense(task.ids),
            ]
        )
    if not task.convolutions:
        return tf.keras.Sequential(
            [layers.Input(shape=task.shape), layers.Dense(task.classes)]
        )
    return tf.keras.Sequential(
        [
            layers.Input(shape=task.shape),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(task.classes),
        ]
    )


def loss(task: workload.Sentences | workload.Pictures) -> Any:
    """Returns the mean cross entropy, of sentences over the real tokens."""
    import tensorflow as tf

    ignored = 0 if isinstance(task, workload.Sentences) else None
    return tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=ignored
    )


def datasets(
    task: workload.Sentences | workload.Pictures, users: int, count: int
) -> list[Any]:
    """Returns a batched `tf.data.Dataset` of (x, y) for each user."""
    import tensorflow as tf

    if isinstance(task, workload.Sentences):
        cohort = [
            (rows[:, :-1], rows[:, 1:])
            for rows in workload.sentences(task, users, count)
        ]
    else:
        cohort = workload.pictures(task, users, count)
    return [
        tf.data.Dataset.from_tensor_slices(pair).batch(task.batch) for pair in cohort
    ]
