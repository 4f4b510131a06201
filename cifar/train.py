r"""Trains CIFAR with sample-level privacy, by DP-SGD.

  python -m cifar.train --flagfile=cifar/configs/c100_uta_eps8.cfg --out=runs/uta

`--synthetic` needs no data. Run the same command again to go on with a run that was
stopped.
"""

from cifar.task import Cifar
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs `python -m cifar.train`."""
    binaries.run(Cifar, "train")


if __name__ == "__main__":
    entry_point()
