"""Clipped gradients per second of WRN-16-4 with JAX Privacy.

    python -m benchmarks.peers.jax_privacy_gradients --images=32 --repeats=3

To be run with the Python of an environment of its own:

    python3.11 -m venv jax_privacy; jax_privacy/bin/pip install jax-privacy==2.0.0

The network is this project's, with convolutions of JAX and their own gradients. The
last line printed is JSON: gradients per second by micro-batch size.
"""

import argparse
import json
import time
from typing import Any


def main() -> None:
    """Measures micro-batches of several sizes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    import jax
    import numpy as np
    from jax_privacy import clipping

    from cifar import wide_resnet

    def convolution(layers: Any, name: str, x: Any, stride: int) -> Any:
        kernel = layers.weight(name)
        fan_in = kernel.shape[0] * kernel.shape[1] * kernel.shape[2]
        centred = kernel - kernel.mean((0, 1, 2))
        standard = centred * jax.lax.rsqrt(kernel.var((0, 1, 2)) * fan_in + 1e-5)
        edge = [(kernel.shape[0] // 2,) * 2] * 2
        order = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, standard, (stride, stride), edge, dimension_numbers=order
        )

    wide_resnet._convolution = convolution
    network = wide_resnet.WideResNet(16, 4, 10)
    weights = network.initial_weights(0)
    weights["kernel"] += 0.01
    generator = np.random.default_rng(0)
    images = generator.standard_normal((given.images, 32, 32, 3), np.float32)
    labels = generator.integers(10, size=given.images)

    def loss(weights: Any, images: Any, labels: Any) -> Any:
        scores = jax.nn.log_softmax(network.logits(weights, images))
        return -scores[np.arange(1), labels].mean()

    found = {}
    for size in (1, 8):
        if size > given.images:
            continue
        clipped = jax.jit(
            clipping.clipped_grad(
                loss, l2_clip_norm=1.0, batch_argnums=(1, 2), microbatch_size=size
            )
        )
        jax.block_until_ready(clipped(weights, images, labels))
        seconds = []
        for _ in range(given.repeats):
            begin = time.perf_counter()
            jax.block_until_ready(clipped(weights, images, labels))
            seconds.append(time.perf_counter() - begin)
        found[size] = given.images / min(seconds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
