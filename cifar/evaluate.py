r"""Evaluates every way to use the checkpoints of runs at inference.

  python -m cifar.evaluate --runs=runs/seed0,runs/seed1 --out=results/evaluate \
      --uta_k=5,50 --output_k=5,50 --ema=0.9,0.99

Prints a table for the last step and writes scores.csv and a picture.
"""

from cifar.task import Cifar
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs `python -m cifar.evaluate`."""
    binaries.run(Cifar, "evaluate")


if __name__ == "__main__":
    entry_point()
