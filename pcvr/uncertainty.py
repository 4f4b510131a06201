r"""How uncertain are predictions, from one run's checkpoints and from independent runs?

python -m pcvr.uncertainty --runs=runs/seed0,…,runs/seed4 --out=results/uncertainty
"""

from pcvr.task import Pcvr
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs the binary."""
    binaries.run(Pcvr, "uncertainty")


if __name__ == "__main__":
    entry_point()
