"""Writes one HTML page about a run that a colleague can open.

python -m cifar.report --run=runs/uta
"""

from cifar.task import Cifar
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs `python -m cifar.report`."""
    binaries.run(Cifar, "report")


if __name__ == "__main__":
    entry_point()
