"""Error bars of predictions, from checkpoints and from independent runs.

python -m cifar.uncertainty --runs=runs/seed0,runs/seed1 --out=results/uncertainty
"""

from cifar.task import Cifar
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs `python -m cifar.uncertainty`."""
    binaries.run(Cifar, "uncertainty")


if __name__ == "__main__":
    entry_point()
