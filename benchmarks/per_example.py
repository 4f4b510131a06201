r"""Clipped gradients of single examples per second: a linear layer, and WRN-16-4.

    python -m benchmarks.per_example --opacus=opacus/bin/python \
        --jax_privacy=jax_privacy/bin/python

A softmax layer on 50,000 × 1,280 features with 100 classes: the closed form against
plain `vmap` in the same micro-batches of at most 256 MB. WideResNet-16-4 on 32 × 32
images: against Opacus and JAX Privacy, each in an environment of its own and with the
batch size that suits it best (benchmarks/peers/ says how to make them). Peers that are
not given are left out. Writes per_example.json to --out.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import programs, turns
from tff_agg.fields import described


@dataclasses.dataclass(frozen=True)
class Options:
    """What is timed."""

    opacus: str = described("", "Python of an environment with Opacus; none: skip")
    jax_privacy: str = described("", "Python of one with JAX Privacy; none: skip")
    examples: int = described(50_000, "rows of the linear layer", at_least=1)
    images: int = described(32, "images in a batch of the network", at_least=1)
    repeats: int = described(3, "best of so many", at_least=1)
    out: str = described("results/per_example", "folder for the JSON")


WIDTH, CLASSES = 1280, 100
CLIP_NORM = 1.0


def rate(run: Callable[[], Any], count: int, repeats: int) -> float:
    """Returns gradients per second, of the fastest run after one that compiles."""
    import jax

    jax.block_until_ready(run())
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(run())
        seconds.append(time.perf_counter() - begin)
    return count / min(seconds)


def linear_rates(examples: int, repeats: int) -> dict[str, float]:
    """Measures the linear layer, in closed form and by `vmap`."""
    import jax

    from tff_agg.sample import linear, per_example
    from tff_agg.sample.per_example import SampleModel

    generator = np.random.default_rng(0)
    features = generator.standard_normal((examples, WIDTH), np.float32)
    labels = generator.integers(CLASSES, size=examples, dtype=np.int32)
    weights = {
        "bias": np.zeros(CLASSES, np.float32),
        "kernel": 0.01 * generator.standard_normal((WIDTH, CLASSES), np.float32),
    }
    closed = linear.softmax_layer()
    found = {}
    # By vmap a tenth of the rows takes long enough.
    for name, model, share in (
        ("closed form", closed, 1),
        ("vmap", SampleModel(closed.loss), 10),
    ):
        micro = model.micro_batch(weights, per_example.MEMORY_BUDGET)
        count = examples // share
        room = -(-count // micro) * micro
        batch = [np.zeros((room, *a.shape[1:]), a.dtype) for a in (features, labels)]
        batch[0][:count], batch[1][:count] = features[:count], labels[:count]
        add = functools.partial(model.summed, clip_norm=CLIP_NORM, micro=micro)
        run = functools.partial(jax.jit(add), weights, batch, count)
        found[name] = rate(run, count, repeats)
    return found


def network_rate(images: int, repeats: int) -> float:
    """Measures WRN-16-4 with group normalisation and weight standardisation."""
    from cifar.task import Cifar, CifarConfig
    from tff_agg.sample import laned_sum, per_example

    task = Cifar(
        CifarConfig(
            dataset="cifar10",
            model="wide_resnet",
            synthetic=True,
            rounds=1,
            noise_multiplier=1.0,
            batch_size=images,
        )
    )
    model, weights = task.sample_model(), task.initial_weights()
    generator = np.random.default_rng(0)
    # At the initial zeros no gradient would reach the convolutions.
    drawn = generator.standard_normal(weights["kernel"].shape)
    weights["kernel"] = (0.1 * drawn).astype(np.float32)
    batch = task.batch(np.arange(images), 0)
    micro = model.micro_batch(weights, per_example.MEMORY_BUDGET)
    run = laned_sum.LanedSum(model, CLIP_NORM, micro)
    return rate(lambda: run(weights, batch, images), images, repeats)


def main(options: Options) -> None:
    """Measures, prints and writes."""
    images, repeats = options.images, options.repeats
    layer = linear_rates(options.examples, repeats)
    print(f"linear layer, {options.examples:,} × {WIDTH}, gradients per second:")
    for name, value in layer.items():
        print(f"  {name:<12}{value:>12,.0f}")
    ratio = layer["closed form"] / layer["vmap"]
    print(f"  closed form over vmap: {ratio:.1f}", flush=True)
    network: dict[str, Any] = {"this": network_rate(images, repeats)}
    print("WRN-16-4, gradients per second:")
    print(f"  {'this':<12}{network['this']:>12.2f}", flush=True)
    for name, python, module in (
        ("Opacus", options.opacus, "opacus_gradients"),
        ("JAX Privacy", options.jax_privacy, "jax_privacy_gradients"),
    ):
        if (path := turns.peer(python, name)) is None:
            continue
        sizes = [f"--images={images}", f"--repeats={repeats}"]
        by_batch = turns.run([path, "-m", f"benchmarks.peers.{module}", *sizes])
        network[name] = max(by_batch.values())
        print(f"  {name:<12}{network[name]:>12.2f} of {by_batch}", flush=True)
    for name, value in network.items():
        if name != "this":
            print(f"  this over {name}: {network['this'] / value:.2f}")
    programs.write(options.out, "per_example", {"linear": layer, "network": network})


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)
