"""What saving a round's whole state costs, at the size of the next-word model.

    python -m benchmarks.saving

Trains a few rounds of the real process, whose one client sends an update without any
work, and saves each as the training loop does: once the weights alone, once with the
state. Shown are processor time, wall time and bytes written of a save.
"""

import dataclasses
import os
import pathlib
import tempfile
import time

from benchmarks import programs
from tff_agg.checkpoints import manifests
from tff_agg.fields import described


@dataclasses.dataclass(frozen=True)
class Options:
    """What is saved."""

    rounds: int = described(6, "rounds; the first three fill windows", at_least=4)
    scale: float = described(1.0, "share of the model's parameters")


def _trainer(shapes):
    from collections import OrderedDict

    import tensorflow as tf
    import tensorflow_federated as tff

    from tff_agg.federated import trainers

    def update(weights, dataset):
        seed = dataset.reduce(tf.constant(0), lambda total, row: total + row)
        delta = [
            0.01 * tf.random.stateless_normal(shape, [seed, i])
            for i, shape in enumerate(shapes)
        ]
        return delta, tf.constant(1.0), OrderedDict(clients=tf.constant(1.0))

    return trainers.Trainer(
        element_spec=tf.TensorSpec([], tf.int32),
        initial_weights=lambda: tff.learning.models.ModelWeights(
            [
                0.05 * tf.random.stateless_normal(shape, [1, i])
                for i, shape in enumerate(shapes)
            ],
            [],
        ),
        update=trainers.one_user(update),
        finalize_metrics=lambda sums: OrderedDict(clients=sums["clients"]),
    )


def _measure(store, number, items) -> tuple[float, float, float]:
    """Returns processor seconds, wall seconds and megabytes written of a save."""
    blobs = store.folder / "blobs"
    before = set(os.listdir(blobs)) if blobs.exists() else set()
    cpu, wall = time.process_time(), time.perf_counter()
    store.save(number, items)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    new = set(os.listdir(blobs)) - before
    written = sum((blobs / name).stat().st_size for name in new)
    manifest = manifests.manifest_path(store.folder / "manifests", number)
    written += manifest.stat().st_size
    if "state" in items:
        store.discard({"state": 2})
    return cpu, wall, written / 1e6


def main(options: Options) -> None:
    """Saves, and prints what it costs."""
    import numpy as np
    import tensorflow as tf

    from stackoverflow.model import next_word
    from tff_agg import averaging, checkpoints, noise, privacy, runtime
    from tff_agg.experiment.run import releasing
    from tff_agg.federated import process

    runtime.configure_threads()
    runtime.use("local", lanes=1)
    sizes = next_word.ModelConfig(vocab_size=int(10_000 * options.scale))
    shapes = [np.shape(w) for w in next_word.initial_weights(sizes, 0)]
    count = sum(int(np.prod(shape)) for shape in shapes)
    print(f"{count:,} parameters, {4 * count / 1e6:.1f} MB")
    for mechanism, averager in (
        (noise.tree(), averaging.uta(3)),
        (noise.blt(rounds=2000, buffers=3), averaging.ema(decay=0.95)),
    ):
        plan = privacy.Plan(
            clip_norm=1.0,
            cohort_size=1,
            rounds=2000,
            mechanism=mechanism,
            noise_multiplier=0.3,
        )
        training = process.build_dp_ftrl_process(
            _trainer(shapes), plan=plan, averager=averager, server_momentum=0.9
        )
        state = training.initialize()
        found: dict[str, list] = {"weights": [], "state": []}
        with tempfile.TemporaryDirectory() as folder:
            stores = {
                kind: checkpoints.CheckpointStore(pathlib.Path(folder) / kind)
                for kind in found
            }
            for number in range(options.rounds):
                data = [tf.data.Dataset.from_tensors(np.int32(number))]
                state = training.next(state, data).state
                whole = releasing.stored_items(state)
                weights = {k: v for k, v in whole.items() if k != "state"}
                for (kind, store), items in zip(
                    stores.items(), (weights, whole), strict=True
                ):
                    found[kind].append(_measure(store, number, items))
        for kind, rows in found.items():
            cpu, wall, size = np.median(rows[3:], axis=0)
            print(
                f"{mechanism.name} and {averager.name}, {kind}: {size:.1f} MB written, "
                f"{cpu:.2f} s of processor time, {wall:.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)
