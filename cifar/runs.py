"""Lists the runs below a folder.

python -m cifar.runs runs
"""

from cifar.task import Cifar
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs `python -m cifar.runs`."""
    binaries.run(Cifar, "runs")


if __name__ == "__main__":
    entry_point()
