r"""Tunes the aggregation of checkpoints: on validation data, tested once.

python -m cifar.tune --runs=runs/seed0,runs/seed1 --out=results/tune
"""

from cifar.task import Cifar
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs `python -m cifar.tune`."""
    binaries.run(Cifar, "tune")


if __name__ == "__main__":
    entry_point()
