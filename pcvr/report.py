"""Writes one HTML page about a run that a colleague can open.

python -m pcvr.report --run=runs/uta
"""

from pcvr.task import Pcvr
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs the binary."""
    binaries.run(Pcvr, "report")


if __name__ == "__main__":
    entry_point()
