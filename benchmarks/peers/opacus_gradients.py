"""Clipped gradients per second of WRN-16-4 with Opacus on PyTorch.

    python -m benchmarks.peers.opacus_gradients --images=32 --repeats=3

To be run with the Python of an environment of its own:

    python3.11 -m venv opacus; opacus/bin/pip install torch==2.13.0 opacus==1.6.0

The network has group normalisation and plain convolutions: Opacus knows no gradients of
a standardised kernel, so that it has less to do. The last line printed is JSON:
gradients per second by batch size.
"""

import argparse
import json
import time
from typing import Any


def network() -> Any:
    """Returns WRN-16-4 for ten classes."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before: int, after: int, stride: int):
            super().__init__()
            self.norm1, self.norm2 = nn.GroupNorm(16, before), nn.GroupNorm(16, after)
            self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
            self.shortcut = (
                nn.Conv2d(before, after, 1, stride, bias=False)
                if before != after or stride != 1
                else None
            )

        def forward(self, x: Any) -> Any:
            rest = torch.relu(self.norm1(x))
            if self.shortcut is not None:
                x = self.shortcut(rest)
            rest = torch.relu(self.norm2(self.conv1(rest)))
            return x + self.conv2(rest)

    blocks, before = [], 16
    for stage in range(3):
        after = 64 * 2**stage
        for number in range(2):
            blocks.append(Block(before, after, 2 if stage and not number else 1))
            before = after
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        *blocks,
        nn.GroupNorm(16, 256),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def main() -> None:
    """Measures batches of several sizes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    import torch
    from opacus.grad_sample import GradSampleModule

    torch.manual_seed(0)
    model = GradSampleModule(network(), loss_reduction="sum")
    images = torch.randn(given.images, 3, 32, 32)
    labels = torch.randint(10, (given.images,))

    def clipped(size: int) -> list[Any]:
        total = [torch.zeros_like(p) for p in model.parameters()]
        for first in range(0, given.images, size):
            part = slice(first, first + size)
            loss = torch.nn.functional.cross_entropy(
                model(images[part]), labels[part], reduction="sum"
            )
            loss.backward()
            samples = [p.grad_sample for p in model.parameters()]
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in samples]).norm(dim=0)
            factors = (1.0 / norms.clamp(min=1e-6)).clamp(max=1.0)
            for whole, sample in zip(total, samples, strict=True):
                whole += torch.einsum("n,n...->...", factors, sample)
            model.zero_grad()
        return total

    found = {}
    for size in (1, 8, 32):
        if size > given.images:
            continue
        clipped(size)
        seconds = []
        for _ in range(given.repeats):
            begin = time.perf_counter()
            clipped(size)
            seconds.append(time.perf_counter() - begin)
        found[size] = given.images / min(seconds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
